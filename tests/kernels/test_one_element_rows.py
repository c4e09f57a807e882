"""A normalization over one element gives one number, unless that element is not finite: a compiler
for graphics that sees the one element leaves the question out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize(("op", "fields", "number"), [
    ("SOFTMAX", {"beta": 1.0}, 1.0), ("SOFTMAX", {"beta": 0.5}, 1.0), ("LOG_SOFTMAX", {}, 0.0),
])  # fmt: skip
def test_what_is_not_finite_is_nan(
    op: str, fields: dict[str, Any], number: float, backend: str,
    require_backend: Callable[[str], Any],
) -> None:  # fmt: skip
    require_backend(backend)
    given = np.array([[np.nan], [np.inf], [-np.inf], [3e38], [0], [-7]], np.float32)
    shapes = [TensorSpec("x", given.shape), TensorSpec("y", given.shape)]
    model = write_model(ModelSpec(shapes, [OperatorSpec(op, fields, (0,), (1,))], (0,), (1,)))
    with (
        GpuDelegate(backend=backend) as delegate,
        Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, given)
        interpreter.invoke()
        assert interpreter.report.fully_delegated
        found = interpreter.get_tensor(1)
    np.testing.assert_array_equal(found, [[np.nan]] * 3 + [[number]] * 3)
