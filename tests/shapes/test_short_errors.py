"""However much a file or a caller gives, an error shows a few values of it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import Interpreter
from tflgpu.errors import ModelError, TflgpuError
from tflgpu.errors.blame import listed, shown
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ops.base import Arg, Fields, Operand, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, first_results, results
from tests.small_models import small_model, tensor_of

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
    with allocated(tflgpu.Interpreter(model_content=_long_name())) as interpreter:
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


# Scales and zero points that no tensor can have, or that f32 cannot count with.


I8, U8, I16, I32 = DType.I8, DType.U8, DType.I16, DType.I32
PLAIN = Quantization((0.1,), (0,))


def model(op: str, dtype: DType, given: Quantization | None, made: Quantization | None) -> bytes:
    """``op`` of a (2, 3) tensor, given and made with these quantizations."""
    x = TensorSpec("x", (2, 3), dtype if given else DType.F32, quantization=given)
    y = TensorSpec("y", (2, 3), dtype if made else DType.F32, quantization=made)
    operands = (0, 0) if op == "ADD" else (0,)
    return write_model(ModelSpec([x, y], [OperatorSpec(op, {}, operands, (1,), 2)], (0,), (1,)))


def run(content: bytes) -> Array:
    with allocated(Interpreter(model_content=content)) as interpreter:
        details = interpreter.get_input_details()[0]
        ramp = np.arange(6).reshape(2, 3) * 7 + 1
        return np.asarray(
            results(interpreter, {details["index"]: ramp.astype(details["dtype"])})[0]
        )


RANGES = {I8: (-128, 127), U8: (0, 255), I16: (-(2**15), 2**15 - 1), DType.I4: (-8, 7)}


@pytest.mark.parametrize("dtype", RANGES, ids=lambda d: d.value)
def test_a_zero_point_is_a_number_that_the_type_stores(dtype: DType) -> None:
    low, high = RANGES[dtype]
    for point in (low - 1, high + 1, -(2**31), 2**31 - 1):
        content = model("RELU", dtype, Quantization((0.1,), (point,)), PLAIN)
        with pytest.raises(ModelError, match=rf"zero point {point} is outside \[{low}, {high}\]"):
            read_model(content)
    for point in (low, 0, high):
        read_model(model("RELU", dtype, Quantization((0.1,), (point,)), PLAIN))


def test_every_zero_point_along_an_axis_is_looked_at() -> None:
    quant = Quantization((0.1, 0.2, 0.3), (0, 5, 300), 1)
    with pytest.raises(ModelError, match="zero point 300 is outside"):
        read_model(model("RELU", I8, quant, PLAIN))


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -0.1])
def test_a_scale_is_a_finite_number(scale: float) -> None:
    content = model("RELU", I8, Quantization((0.375,), (0,)), PLAIN)
    content = content.replace(struct.pack("<f", 0.375), struct.pack("<f", scale))
    with pytest.raises(ModelError, match="not a finite number >= 0"):
        read_model(content)


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 3e38])
def test_what_only_moves_asks_for_no_scale(scale: float) -> None:
    """As LiteRT: the stored numbers stay what they are."""
    odd = Quantization((scale,), (0,))
    content = small_model(
        {
            "x": tensor_of((2, 3), I8, quantization=odd),
            "n": tensor_of((2,), I32, [3, 2]),
            "y": tensor_of((3, 2), I8, quantization=odd),
        },
        "y = RESHAPE(x, n)",
    )
    np.testing.assert_array_equal(run(content), [[1, 8], [15, 22], [29, 36]])


@pytest.mark.parametrize("scale", [0.0, 1e-45, 1e-40, 3e38])
@pytest.mark.parametrize("op", ["RELU", "ADD", "QUANTIZE"])
def test_a_scale_that_f32_cannot_count_with_is_refused(op: str, scale: float) -> None:
    odd = Quantization((scale,), (0,))
    if op == "QUANTIZE":
        if scale > 1:
            np.testing.assert_array_equal(run(model(op, I8, None, odd)), np.zeros((2, 3)))
            return  # every number is less than half a step: that f32 can tell
        content = model(op, I8, None, odd)
    else:
        content = model(op, I8, PLAIN if op == "ADD" else odd, odd)
    with pytest.raises(TflgpuError, match=r"quantized|scale"):
        run(content)


@pytest.mark.parametrize("op", ["CONV_2D", "FULLY_CONNECTED"])
@pytest.mark.parametrize(
    "bias",
    [
        Quantization((0.005, 0.005), (0, 0)),
        Quantization((0.05, 0.05), (0, 0)),
        Quantization((0.005, 0.005), (7, -9)),
        Quantization((0.0, 0.005), (0, 0)),
        None,
    ],
    ids=["right", "scale", "zero point", "scale 0", "none"],
)
def test_a_bias_counts_as_it_is_stored(op: str, bias: Quantization | None, litert: Any) -> None:
    """LiteRT's kernels add it to sums of products, whatever the file says of its scale."""
    conv = op == "CONV_2D"
    weights = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    scales = Quantization((0.05, 0.05), (0, 0))
    tensors = [
        TensorSpec("x", (1, 2, 2, 3) if conv else (4, 3), I8, quantization=PLAIN),
        TensorSpec(
            "w", (2, 1, 1, 3) if conv else (2, 3), I8,
            weights.reshape(2, 1, 1, 3) if conv else weights, scales,
        ),
        TensorSpec("b", (2,), I32, [100, -200], bias),
        TensorSpec("y", (1, 2, 2, 2) if conv else (4, 2), I8, quantization=PLAIN),
    ]  # fmt: skip
    fields = {"stride_h": 1, "stride_w": 1} if conv else {}
    operator = OperatorSpec(op, fields, (0, 1, 2), (3,), version=3 if conv else 5)
    content = write_model(ModelSpec(tensors, [operator], (0,), (3,)))
    x = (np.arange(12) * 7 + 1).astype(np.int8).reshape(tensors[0].shape)
    kernels = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    theirs = litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    ours, want = (
        first_results(interpreter, [x])[0].astype(int)
        for interpreter in (Interpreter(model_content=content), theirs)
    )
    assert np.abs(ours - want).max() <= 1
