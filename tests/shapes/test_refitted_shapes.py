"""Constants that say a shape, of models whose inputs are resized: TRANSPOSE_CONV's output shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shape_models import const, net
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import TensorSpec

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def upsampling(padding: int, told: tuple[int, ...], taps: int = 3) -> bytes:
    """Doubles 3 x 4 pixels; ``padding`` 0 is SAME, 1 VALID."""
    weights = np.random.default_rng(1).standard_normal((2, taps, taps, 3)).astype(np.float32)
    tensors = [
        const("shape", told), TensorSpec("w", weights.shape, data=weights), TensorSpec("x", (1, 3,
        4, 3)),
        TensorSpec("y", told), TensorSpec("z", told),
    ]  # fmt: skip
    options = {"stride_h": 2, "stride_w": 2, "padding": padding}
    return net(
        tensors, [("TRANSPOSE_CONV", "shape w x", "y", options), ("NEG", "y", "z")], "x", "z"
    )


def ran(interpreter: Any, x: Array) -> Array:
    interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], list(x.shape))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]))


@pytest.mark.parametrize("backend", [None, "cpu_ref"])
@pytest.mark.parametrize(
    ("padding", "told", "taps"),
    [(0, (1, 6, 8, 2), 3), (0, (1, 5, 7, 2), 4), (0, (1, 6, 8, 2), 2), (1, (1, 7, 10, 2), 3)],
    ids=["same", "same_odd", "taps2", "valid"],
)
def test_as_litert_by_default(
    padding: int, told: tuple[int, ...], taps: int, backend: str | None
) -> None:
    """XNNPACK, which has seen the file's shapes, makes the output of the input. (What is refitted
    is the graph, which is the same for all devices.)"""
    delegates = None if backend is None else [GpuDelegate(backend=backend)]
    content = upsampling(padding, told, taps)
    theirs = litert.Interpreter(model_content=content)
    with Interpreter(model_content=content, experimental_delegates=delegates) as ours:
        for shape in ((1, 3, 4, 3), (3, 3, 4, 3), (2, 5, 3, 3), (1, 3, 4, 3)):
            x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
            expected, found = ran(theirs, x), ran(ours, x)
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        empty = ran(ours, np.zeros((0, 3, 4, 3), np.float32))  # LiteRT's shape is accidental
        assert empty.shape == (0, *told[1:])


def test_a_shape_that_was_computed_is_taken_as_it_is() -> None:
    """As LiteRT's kernels do, which refuse one that does not fit."""
    tensors = [
        const("batch", [1]), const("rest", [6, 8, 2]), TensorSpec("shape", (4,), DType.I32),
        TensorSpec("w", (2, 3, 3, 3), data=np.ones((2, 3, 3, 3), np.float32)),
        TensorSpec("x", (1, 3, 4, 3)), TensorSpec("y", (1, 6, 8, 2)),
    ]  # fmt: skip
    options = {"stride_h": 2, "stride_w": 2, "padding": 0}
    operators = [
        ("CONCATENATION", "batch rest", "shape", {"axis": 0}),
        ("TRANSPOSE_CONV", "shape w x", "y", options),
    ]
    content = net(tensors, operators, "x", "y")
    for module, error in ((litert.Interpreter, RuntimeError), (Interpreter, TflgpuError)):
        interpreter = module(model_content=content)
        assert ran(interpreter, np.ones((1, 3, 4, 3), np.float32)).shape == (1, 6, 8, 2)
        for shape in ((2, 3, 4, 3), (1, 3, 5, 3)):
            with pytest.raises(error):
                ran(interpreter, np.ones(shape, np.float32))
