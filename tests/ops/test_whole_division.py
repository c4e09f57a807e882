"""Whole numbers divided by what processors refuse to divide by, on every API; and powers that do
not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

LEAST = -(2**31)
A = np.int32([LEAST, LEAST, 7, -7, LEAST])
B = np.int32([-1, 1, -1, 2, -3])
EXPECTED = {
    "DIV": [LEAST, LEAST, -7, -3, 715827882],  # whole numbers wrap around
    "FLOOR_DIV": [LEAST, LEAST, -7, -4, 715827882],
    "FLOOR_MOD": [0, 0, 0, 1, -2],
}


@pytest.mark.parametrize(
    ("backend", "device"),
    [("cpu_ref", 0), ("cpu_ref", 1), ("opencl", 0), ("vulkan", 0), ("wgpu", 0)],
)
def test_the_smallest_number_over_minus_one(
    backend: str, device: int, require_backend: Callable[[str], Any]
) -> None:
    """It does not fit: x86 traps, and a compiler of OpenCL C may make of it what it likes."""
    require_backend(backend)
    tensors = [TensorSpec(name, A.shape, DType.I32) for name in ("a", "b", *EXPECTED)]
    operators = [OperatorSpec(op, {}, [0, 1], [i]) for i, op in enumerate(EXPECTED, 2)]
    content = write_model(ModelSpec(tensors, operators, [0, 1], [2, 3, 4]))
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        it.allocate_tensors()
        it.set_tensor(0, A)
        it.set_tensor(1, B)
        it.invoke()
        found = {op: it.get_tensor(i).tolist() for i, op in enumerate(EXPECTED, 2)}
    assert found == EXPECTED


def test_powers_that_do_not_fit() -> None:
    """The smallest number, as LiteRT's conversion from a real one gives it on x86."""
    a = np.int32([3, -3, 2, -2, 46341, 46340, 0, -1])
    b = np.int32([25, 23, 31, 31, 2, 2, 0, 5])
    tensors = [TensorSpec(name, a.shape, DType.I32) for name in "aby"]
    content = write_model(ModelSpec(tensors, [OperatorSpec("POW", {}, [0, 1], [2])], [0, 1], [2]))
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="cpu_ref"
    ) as it:
        it.allocate_tensors()
        it.set_tensor(0, a)
        it.set_tensor(1, b)
        it.invoke()
        assert it.get_tensor(2).tolist() == [LEAST] * 5 + [46340**2, 1, -1]
