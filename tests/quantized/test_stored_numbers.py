"""Ops that take quantized tensors as they are stored, whatever their zero point: as LiteRT, bit for
bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

QUANT = Quantization((0.5,), (3,))
X = np.array([0, 3, -7, 3, 5, 0, 3], np.int8)


def stored(name: str, shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, shape, DType.I8, None, QUANT)


def const(data: Any) -> TensorSpec:
    array = np.asarray(data, np.int32)
    return TensorSpec("c", array.shape, DType.I32, array)


ZEROS = Quantization((0.0,), (0,))
MODELS: dict[str, tuple[list[TensorSpec], OperatorSpec, list[int]]] = {
    "SCATTER_ND": (
        [stored("x", (7,)), const([[1], [4], [1], [0], [8], [6], [4]]), const([9]), stored("y", (9,
        ))],
        OperatorSpec("SCATTER_ND", {}, [1, 0, 2], [3]), [3],
    ),
    "WHERE": (
        [stored("x", (7,)), TensorSpec("y", (1, 1), DType.I64, shape_signature=(-1, 1))],
        OperatorSpec("WHERE", {}, [0], [1], version=2), [1],
    ),
    "UNIQUE": (
        [stored("x", (7,)), stored("y", (7,)), TensorSpec("i", (7,), DType.I32)],
        OperatorSpec("UNIQUE", {"idx_out_type": 2}, [0], [1, 2]), [1, 2],
    ),
    # No zero point is looked at.
    "NEG": ([stored("x", (7,)), stored("y", (7,))], OperatorSpec("NEG", {}, [0], [1]), [1]),
}  # fmt: skip


def run(interpreter: Any) -> list[Any]:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["cpu_ref", "litert"])
def test_as_litert(name: str, side: str) -> None:
    tensors, operator, outputs = MODELS[name]
    content = write_model(ModelSpec(tensors, [operator], [0], outputs))
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend=side
    ) as ours:
        found = run(ours)
    for mine, theirs in zip(found, run(litert.Interpreter(model_content=content)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_constants_of_zeros_without_a_scale() -> None:
    """Converters write a scale of 0 for them, and a normalization repeats them by FILL."""
    fine = Quantization((1e-4,), (0,))
    tensors = [
        TensorSpec("x", (2, 6), DType.I16, None, fine),
        const([6]),
        TensorSpec("zero", (), DType.I16, np.array(0, np.int16), ZEROS),
        TensorSpec("zeros", (6,), DType.I16, None, ZEROS),
        TensorSpec("y", (2, 6), DType.I16, None, fine),
    ]
    operators = [
        OperatorSpec("FILL", {}, [1, 2], [3], version=3),
        OperatorSpec("SUB", {}, [0, 3], [4], version=5),
    ]
    content = write_model(ModelSpec(tensors, operators, [0], [4]))
    x = np.arange(-600, 600, 100, dtype=np.int16).reshape(2, 6)
    with tflgpu.Interpreter(model_content=content, experimental_delegates=[]) as ours:
        ours.allocate_tensors()
        ours.set_tensor(0, x)
        ours.invoke()
        np.testing.assert_array_equal(ours.get_tensor(4), x)
