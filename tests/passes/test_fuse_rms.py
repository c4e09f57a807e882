"""The nodes of an RMS norm become one, and its kernel gives what LiteRT gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def model(
    shape: tuple[int, ...] = (2, 3, 7), *, axis: int = -1, epsilon: float = 1e-5, keep: bool = True,
    square: str = "MUL", swap: bool = False, outputs: tuple[int, ...] = (8,),
) -> bytes:  # fmt: skip
    axis %= len(shape)
    rows = tuple(1 if a == axis else s for a, s in enumerate(shape) if keep or a != axis)
    tensors = [
        TensorSpec("x", shape), TensorSpec("squares", shape), TensorSpec("axis", (1,), DType.I32,
        [axis]),
        TensorSpec("mean", rows), TensorSpec("epsilon", (), data=epsilon), TensorSpec("sum", rows),
        TensorSpec("root", rows), TensorSpec("y", shape), TensorSpec("z", shape),
        TensorSpec("gamma", shape[-1:], data=np.linspace(0.5, 2, shape[-1], dtype=np.float32)),
    ]  # fmt: skip
    operators = [
        OperatorSpec(square, {}, [0, 0] if square == "MUL" else [0], [1]),
        OperatorSpec("MEAN", {"keep_dims": keep}, [1, 2], [3]),
        OperatorSpec("ADD", {}, [4, 3] if swap else [3, 4], [5]),
        OperatorSpec("RSQRT", {}, [5], [6]),
        OperatorSpec("MUL", {}, [6, 0] if swap else [0, 6], [7]),
        OperatorSpec("MUL", {}, [7, 9], [8]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], list(outputs)))


def run(content: bytes, x: Array, *, here: bool) -> tuple[list[Array], Any]:
    if not here:
        plain = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
        made = litert.Interpreter(model_content=content, experimental_op_resolver_type=plain)
        return _results(made, x), None
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        return _results(interpreter, x), interpreter.report


def _results(interpreter: Any, x: Array) -> list[Array]:
    allocate_and_run(interpreter, {interpreter.get_input_details()[0]["index"]: x})
    return outputs(interpreter)


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        ({}, 1), ({"swap": True, "square": "SQUARE"}, 1), ({"shape": (3, 515)}, 1),
        ({"axis": 1}, 2), ({"outputs": (8, 6)}, 2), ({"outputs": (8, 7)}, 2),
        ({"epsilon": 0.0}, 1),  # no such op, and yet one kernel (`tflgpu.compiler.join_rows`)
        ({"shape": (7, 7), "keep": False}, 2),
    ],
)  # fmt: skip
def test_kernels_and_results(changes: dict[str, Any], kernels: int) -> None:
    content = model(**changes)
    x = np.random.default_rng(1).uniform(-2, 2, changes.get("shape", (2, 3, 7))).astype(np.float32)
    found, report = run(content, x, here=True)
    wanted, _ = run(content, x, here=False)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=3e-6, atol=1e-6)
    assert (report.dispatches == 1) == (kernels == 1), report.dispatches
    assert report.fully_delegated
