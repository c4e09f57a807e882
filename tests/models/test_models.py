"""Real models, wholly on a device, against LiteRT's CPU interpreter on the same inputs.

The limits are relative L2 errors over each output: 1e-5 in F32, 1e-2 with 16-bit storage.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tflgpu

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

# The last one is a full-HD network; its convolutions work on any size, so a crop is run.
MODELS: dict[str, tuple[int, ...] | None] = {
    "deeplabv3_257_mv_gpu": None,
    "mobilenet_v1_0.25_224_float": None,
    "mobilenet_v1_1.0_224_f32": None,
    "mobilenet_v2_1.0_224_f32": None,
    "posenet_mobilenet_v1_100_257_f32": None,
    "ssd_mobilenet_v2_oidv4_fp16": None,
    "mp_pose_landmark_full_f16": None,
    "style_transfer_f16_384": None,
    "edsr_f32b5_fp32": (1, 54, 97, 3),
}
LIMITS = {"f32": 1e-5, "f32_f16": 1e-2}
INPUTS = 5


def _relative_l2(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> float:
    assert np.isfinite(got).all()
    return float(np.linalg.norm(got - expected) / max(np.linalg.norm(expected), 1e-30))


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("backend", ["opencl"])
def test_model_runs_wholly_on_the_device(
    name: str,
    precision: str,
    backend: str,
    require_backend: Callable[[str], Any],
    model_path: Callable[[str], Path],
) -> None:
    require_backend(backend)
    path = model_path(name)
    shape = MODELS[name]
    reference = litert.Interpreter(str(path))
    delegate = tflgpu.GpuDelegate(backend=backend, precision=precision)
    interpreter = tflgpu.Interpreter(str(path), experimental_delegates=[delegate])
    for each in (reference, interpreter):
        if shape is not None:
            each.resize_tensor_input(each.get_input_details()[0]["index"], shape)
        each.allocate_tensors()
    report = interpreter.delegation_report()
    assert not report.refusals, str(report)
    assert report.delegated_nodes == report.total_nodes > 0
    assert report.precision == precision
    rng = np.random.default_rng(17)
    for _ in range(INPUTS):
        for detail in reference.get_input_details():
            data = rng.uniform(-1, 1, detail["shape"]).astype(np.float32)
            for each in (reference, interpreter):
                each.set_tensor(detail["index"], data)
        reference.invoke()
        interpreter.invoke()
        for detail in reference.get_output_details():
            expected = reference.get_tensor(detail["index"])
            error = _relative_l2(interpreter.get_tensor(detail["index"]), expected)
            assert error <= LIMITS[precision], f"{detail['name']}: {error:.2e}"
    interpreter.close()
    delegate.close()
