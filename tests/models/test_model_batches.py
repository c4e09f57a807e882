"""Real models in batches of 2, on the CPU, against two runs of one; and why some are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tflgpu

pytest.importorskip("ai_edge_litert", reason="pip install tflgpu[litert]")

#: Of every kind, those that are quick: floats, 8 bits, dynamic range with slices and UNPACK of axes
#: of 1, f16 weights, indices, several outputs, a SQUEEZE.
MODELS = (
    "mobilenet_v1_0.25_224_float", "mobilenet_v2_1.0_224_ptq_int8", "dtln_model_quant_1",
    "mp_selfie_segmentation_f16", "movie_review_nl_classifier",
    "posenet_mobilenet_v1_100_257_int8_float_io",
)  # fmt: skip
REFUSED = {
    "litert_torchaudio_conformer": r"input tensor 0 .* shape \[335, 10, 80\]",
    "ssd_mobilenet_v1_coco_quant": "#63 TFLite_Detection_PostProcess: it finds the boxes",
    "tflm_mnist_lstm_fp32": "tensor 2 .* is state",
}


@pytest.mark.parametrize("name", MODELS)
def test_two_at_once_are_as_two(name: str, model_path: Callable[[str], Path]) -> None:
    path = model_path(name)
    rng = np.random.default_rng(0)
    with (
        tflgpu.Interpreter(path, experimental_delegates=[], batch=2) as two,
        tflgpu.Interpreter(path, experimental_delegates=[]) as one,
    ):
        two.allocate_tensors()
        one.allocate_tensors()
        arrays = []
        for detail in two.get_input_details():
            kind = np.dtype(detail["dtype"]).kind
            drawn = (
                rng.random(detail["shape"]) if kind == "f" else rng.integers(0, 99, detail["shape"])
            )
            arrays.append(drawn.astype(detail["dtype"]))
            two.set_tensor(detail["index"], arrays[-1])
        two.invoke()
        found = [two.get_tensor(d["index"]) for d in two.get_output_details()]
        alone = []
        for n in range(2):
            for detail, array in zip(one.get_input_details(), arrays, strict=True):
                one.set_tensor(detail["index"], array[n : n + 1])
            one.invoke()
            alone.append([one.get_tensor(d["index"]) for d in one.get_output_details()])
        wanted = map(np.concatenate, zip(*alone, strict=True))
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.shape == theirs.shape
            assert not np.array_equal(mine[0], mine[1])
            if mine.dtype == np.float32:
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
            else:
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("name", REFUSED)
def test_others_say_why_not(name: str, model_path: Callable[[str], Path]) -> None:
    with pytest.raises(tflgpu.UnsupportedError, match=REFUSED[name]):
        tflgpu.Interpreter(model_path(name), batch=2)
