"""Long sums of few results, as heads of models have them: what is lost in f32 does not grow with
their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

_CONV = {
    "padding": 1, "stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1,
}  # fmt: skip
#: Operators, shapes of their operands and results, options; the last is of no whole number of
#: parts.
SUMS = (
    ("CONV_2D", (1, 2, 2, 1152), (1, 2, 2, 1152), (1, 1, 1, 1), _CONV),
    ("CONV_2D", (1, 1, 3, 3001), (5, 1, 1, 3001), (1, 1, 3, 5), _CONV),
    ("FULLY_CONNECTED", (3, 4097), (7, 4097), (3, 7), {}),
)
#: Roundings of f32, each half a unit in the last place. One after another 4,000 numbers lose some
#: 50.
MOST = 8


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize("which", range(len(SUMS)))
def test_long_sums_of_few_results(
    which: int, backend: str, require_backend: Callable[[str], Any]
) -> None:
    require_backend(backend)
    op, given, matrix, result, fields = SUMS[which]
    rng = np.random.default_rng(which)
    x, w = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in (given, matrix))
    tensors = [
        TensorSpec("x", given), TensorSpec("w", matrix, data=w),
        TensorSpec("b", matrix[:1], data=np.zeros(matrix[:1], np.float32)), TensorSpec("y", result),
    ]  # fmt: skip
    content = write_model(
        ModelSpec(tensors, [OperatorSpec(op, fields, (0, 1, 2), (3,))], (0,), (3,))
    )
    rows = x.reshape(-1, w[0].size).astype(np.float64)
    wanted = (rows @ w.reshape(len(w), -1).astype(np.float64).T).reshape(result)
    device = 1 if backend == "cpu_ref" else 0
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as one,
    ):
        one.allocate_tensors()
        one.set_tensor(0, x)
        one.invoke()
        lost = np.abs(one.get_tensor(3) - wanted).max() / wanted.max()
    assert lost <= MOST * np.finfo(np.float32).eps / 2
