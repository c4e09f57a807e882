"""However much a file or a caller gives, an error shows a few values of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.errors import TflgpuError
from tflgpu.errors.blame import shown
from tflgpu.ir.brief import listed
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ops.base import Arg, Fields, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

MANY = 5000
#: Characters. The longest honest message says three vectors and a remedy.
LONGEST = 700


def _operands(sample: Sample) -> list[Operand | None]:
    return [
        None
        if a is None
        else Operand(Spec(a.shape, a.dtype), a.draw(np.random.default_rng(0)) if a.const else None)
        for a in sample.args
    ]


def _spoilt(name: str) -> Iterator[tuple[str, dict[str, Any], list[Operand | None]]]:
    """A sample of an op with far too many numbers where it takes some."""
    op = builtin_ops()[name]
    for sample in list(op.samples())[:3]:
        operands, fields = _operands(sample), dict(sample.fields)
        for index, arg in enumerate(sample.args):
            if isinstance(arg, Arg) and arg.data is not None and arg.dtype.is_int:
                for number in (0, 1, -1, -7, 3):
                    data = np.full(MANY, number).astype(arg.dtype.numpy)
                    given = Operand(Spec((MANY,), arg.dtype), data)
                    yield (
                        f"operand {index}",
                        fields,
                        [given if i == index else o for i, o in enumerate(operands)],
                    )
        for field, value in fields.items():
            if isinstance(value, (list, tuple)):
                for number in (0, 1, -1, -7, 3):
                    yield field, {**fields, field: [number] * MANY}, operands


@pytest.mark.parametrize("name", sorted(builtin_ops()))
def test_of_ops(name: str) -> None:
    op = builtin_ops()[name]
    for what, fields, operands in _spoilt(name):
        try:
            op.infer(op.parse(Fields(name, fields)), operands)
        except TflgpuError as error:
            assert len(str(error)) <= LONGEST, f"{what}: {str(error)[:LONGEST]}"


def test_the_ops_above_do_raise() -> None:
    raised = set()
    for name, op in builtin_ops().items():
        for _, fields, operands in _spoilt(name):
            try:
                op.infer(op.parse(Fields(name, fields)), operands)
            except TflgpuError:
                raised.add(name)
    assert {"SPLIT", "RESHAPE", "TRANSPOSE", "FILL", "TILE", "REVERSE_V2", "SLICE"} <= raised


def _model(name: str, operators: list[OperatorSpec], axis: int = 1) -> bytes:
    tensors = [
        TensorSpec(name, (2, 4)),
        TensorSpec("axis", (axis,), DType.I32, np.full(axis, 1, np.int32)),
        TensorSpec("y", (2, 4)),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [2]))


def _long_name() -> bytes:
    return _model("x" * MANY, [OperatorSpec("RELU", {}, [0], [2])])


def _axis() -> None:
    operator = OperatorSpec("SPLIT", {"num_splits": 1}, [1, 0], [2])
    tflgpu.Interpreter(model_content=_model("x", [operator], MANY)).allocate_tensors()


def _inputs() -> None:
    operator = OperatorSpec("CONCATENATION", {"axis": 7}, [0] * MANY, [2])
    tflgpu.Interpreter(model_content=_model("x", [operator])).allocate_tensors()


def _custom_code() -> None:
    with tflgpu.Interpreter(
        model_content=_model("x", [OperatorSpec("Z" * MANY, {}, [0], [2])])
    ) as i:
        i.allocate_tensors()


def _tensor_name() -> None:
    with tflgpu.Interpreter(model_content=_long_name()) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.zeros((3, 3), np.float32))


def _resize() -> None:
    with tflgpu.Interpreter(model_content=_long_name()) as interpreter:
        interpreter.resize_tensor_input(0, [-1] * MANY)


def _sizes_of_no_kind() -> None:
    with tflgpu.Interpreter(model_content=_long_name()) as interpreter:
        interpreter.resize_tensor_input(0, ["one"] * MANY)


def _index() -> None:
    with tflgpu.Interpreter(model_content=_long_name()) as interpreter:
        interpreter.get_tensor([1] * MANY)  # type: ignore[arg-type]


def _threads() -> None:
    tflgpu.Interpreter(model_content=_long_name(), num_threads=[1] * MANY)  # type: ignore[arg-type]


def _huge_number() -> None:
    # Python itself refuses to write a number of so many digits.
    tflgpu.Interpreter(model_content=_long_name(), num_threads=-(10**MANY))


def _option() -> None:
    tflgpu.GpuDelegate(backend="cpu_ref", precision="F" * MANY)


def _backend() -> None:
    tflgpu.GpuDelegate(backend="b" * MANY)


def _device() -> None:
    tflgpu.GpuDelegate(backend="cpu_ref", device="d" * MANY)


@pytest.mark.parametrize(
    "call",
    [_axis, _inputs, _custom_code, _tensor_name, _resize, _sizes_of_no_kind, _index, _threads,
     _huge_number, _option, _backend, _device],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_of_calls(call: Callable[[], None]) -> None:
    with pytest.raises(TflgpuError) as caught:
        call()
    assert len(str(caught.value)) <= LONGEST, str(caught.value)[:LONGEST]


def test_what_is_shown() -> None:
    assert listed([]) == "[]" and listed((3, -1)) == "[3, -1]"
    assert listed(range(12)) == str(list(range(12)))
    assert listed(range(MANY)) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... 5,000 in all]"
    assert "\n" not in shown(np.zeros((50, 50))) and len(shown(np.zeros((50, 50)))) <= 80


@attrs.frozen
class _Unwritable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_repr_that_raises_hides_no_error() -> None:
    with pytest.raises(tflgpu.OptionError, match="_Unwritable"):
        tflgpu.GpuDelegate(precision=_Unwritable())  # type: ignore[arg-type]
