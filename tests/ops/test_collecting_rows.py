"""Places outside a result, which a kernel cannot complain of: an error on the CPU, and never a
number that looks like one on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import materialize
from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import Arg, Fields, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

I32 = DType.I32
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def const(data: Any) -> TensorSpec:
    array = np.asarray(data, np.int32)
    return TensorSpec("c", array.shape, I32, array)


def model(name: str) -> tuple[bytes, list[Any]]:
    """An operator whose indices are an input, and good indices for it."""
    if name == "SCATTER_ND":
        given, operands, shape, good = [const([4, 3])], [1, 0, 2], (4, 3), [[3], [1]]
    elif name == "SPARSE_TO_DENSE":
        given = [const([5]), TensorSpec("v", (2,), data=np.ones(2, np.float32)),
                 TensorSpec("d", (), data=np.float32(0))]  # fmt: skip
        operands, shape, good = [1, 2, 3, 4], (5,), [3, 1]
    else:
        given, operands, shape, good = [const(4)], [0, 1, 2], (4, 3), [3, 1]
    indices = TensorSpec("i", np.shape(good), I32)
    tensors = [TensorSpec("x", (2, 3)), indices, *given, TensorSpec("y", shape)]
    made = len(tensors) - 1
    inputs = [1] if name == "SPARSE_TO_DENSE" else [0, 1]
    return write_model(
        ModelSpec(tensors, [OperatorSpec(name, {}, operands, [made])], inputs, [made])
    ), good


def run(content: bytes, indices: Any, delegates: list[Any], side: str | None = None) -> Any:
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=delegates, cpu_backend=side
    ) as interpreter:
        interpreter.allocate_tensors()
        if interpreter.get_input_details()[0]["index"] == 0:
            interpreter.set_tensor(0, X)
        interpreter.set_tensor(1, np.asarray(indices, np.int32))
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


NAMES = ["SCATTER_ND", "SPARSE_TO_DENSE", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_MAX"]


@pytest.mark.parametrize("name", NAMES)
def test_outside(name: str) -> None:
    content, good = model(name)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as kernels:
        wanted = run(content, good, [], "cpu_ref")
        np.testing.assert_array_equal(run(content, good, [kernels]), wanted)
        bad = np.array(good)
        bad.flat[0] = 7
        assert np.isnan(run(content, bad, [kernels])).all()
        with pytest.raises(InputError, match="7"):
            run(content, bad, [], "cpu_ref")


def test_a_negative_segment_is_left_out_and_a_negative_place_is_not() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as kernels:
        content, good = model("UNSORTED_SEGMENT_SUM")
        found = run(content, [good[0], -1], [kernels])
        assert found.sum() == X[0].sum()
        content, good = model("SCATTER_ND")
        assert np.isnan(run(content, [good[0], [-1]], [kernels])).all()


def test_constant_places_are_looked_at_when_a_model_is_opened() -> None:
    op = builtin_ops()["SCATTER_ND"]
    operands = [
        Operand(Spec((1, 1), I32), np.array([[4]], np.int32)), Operand(Spec((1, 3), DType.F32)),
        Operand(Spec((2,), I32), np.array([4, 3], np.int32)),
    ]  # fmt: skip
    with pytest.raises(ModelError, match=r"index 4 is outside \[0, 4\)"):
        op.infer(op.parse(Fields("SCATTER_ND", {})), operands)


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ((Arg((1 << 14, 1), I32, 0, 9), Arg((1 << 14, 8)), Arg.of([1 << 13, 8], I32)), "rows"),
        ((Arg.of(np.zeros((3, 0)), I32), Arg((3, 2)), Arg.of([2], I32)), "name no place"),
        ((Arg.of([[0]], DType.I64), Arg((1,), DType.I64), Arg.of([2], DType.I64)), "i64"),
    ],
)  # fmt: skip
def test_what_stays_on_the_cpu_says_why(args: tuple[Arg, ...], reason: str) -> None:
    op = builtin_ops()["SCATTER_ND"]
    node = materialize(op, Sample("s", {}, args)).node
    refused = Target.plain(DeviceCaps(), Precision.F32).refusal(node)
    assert refused is not None
    assert reason in refused.reason
