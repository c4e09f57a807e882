"""A bias of a convolution has a number per output channel, however many dimensions hold them."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.language.caps import DeviceCaps
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

GPU = DeviceCaps(is_gpu=True, shared_bytes=48 << 10, compute_units=132, subgroup_shuffle=32)
_OPTIONS = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}


@pytest.mark.parametrize("caps", [None, GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("depth", "filter_shape", "bias_shape"),
    [
        (8, (1, 3, 3, 8), ()),
        (8, (5, 3, 3, 8), (1, 1, 5)),
        (64, (72, 1, 1, 32), (1, 72)),  # two groups, each a product of its own on a GPU
    ],
    ids=["scalar", "rank3", "groups"],
)
def test_bias_of_any_rank(
    depth: int,
    filter_shape: tuple[int, ...],
    bias_shape: tuple[int, ...],
    caps: DeviceCaps | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    image, weights, bias = (
        rng.uniform(-1, 1, shape).astype(np.float32)
        for shape in ((1, 5, 4, depth), filter_shape, bias_shape)
    )
    outs = filter_shape[0]

    def run(held: np.ndarray, delegates: object) -> np.ndarray:
        tensors = [
            TensorSpec("x", image.shape),
            TensorSpec("w", weights.shape, data=weights),
            TensorSpec("b", held.shape, data=held),
            TensorSpec("y", (1, 5, 4, outs)),
        ]
        conv = OperatorSpec("CONV_2D", {"padding": 0, **_OPTIONS}, [0, 1, 2], [3])
        content = write_model(ModelSpec(tensors, [conv], [0], [3]))
        with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as one:
            one.allocate_tensors()
            one.set_tensor(0, image)
            one.invoke()
            return one.get_tensor(3)

    expected = run(bias.reshape(-1), None)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        if caps is not None:
            monkeypatch.setattr(OpenedDevice, "caps", caps)
        got = run(np.asarray(bias, np.float32), [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
