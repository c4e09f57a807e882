"""StableHLO's arithmetic, element by element (TFLite version 1).

LiteRT has CPU kernels of ADD, MULTIPLY, MAXIMUM, MINIMUM, AND and SHIFT_LEFT
(kernels/stablehlo_*.cc); CLAMP, REMAINDER and CBRT are taken by its GPU accelerator only and are as
the StableHLO specification has them. Nothing broadcasts but the limits of CLAMP, which may be
scalars. Whole numbers wrap around. None looks at a scale: of quantized tensors the stored numbers
are taken, as LiteRT's kernels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    FileForm,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import FLOATS, check_dtype, infer_unary, widen

_WHOLE = frozenset(
    {DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32, DType.I64, DType.U64}
)
_BOOL = frozenset({DType.BOOL})
_SHIFTED = frozenset({DType.I8, DType.I16, DType.I32})


def _infer_same(op: str, allowed: frozenset[DType]) -> Callable[..., list[TensorSpec]]:
    """Two operands of one type and one shape."""

    def infer(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
        a, b = take_operands(op, operands, 2)
        check_dtype(op, a.dtype, allowed)
        if a.spec != b.spec:
            raise ModelError(f"{op} does not broadcast: operands are {a.spec} and {b.spec}")
        return [a.spec]

    return infer


def _infer_clamp(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "STABLEHLO_CLAMP"
    low, x, high = take_operands(op, operands, 3)
    check_dtype(op, x.dtype, FLOATS | _WHOLE)
    for limit, what in ((low, "lower limit (operand 0)"), (high, "upper limit (operand 2)")):
        if limit.dtype is not x.dtype or limit.shape not in ((), x.shape):
            raise ModelError(f"{op}: the {what} is {limit.spec} for an operand of {x.spec}")
    return [x.spec]


def _reference(fn: Callable[..., Any]) -> Callable[..., list[Array]]:
    """Of ``fn`` of the operands, f16 computed in f32; the result has the first one's type."""

    def reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
        operands = [present(a) for a in arrays]
        found = np.asarray(fn(*(widen(a) for a in operands)))
        return [found.astype(operands[-1].dtype, copy=False)]

    return reference


def _shift(a: Array, b: Array) -> Array:
    # C leaves counts open that are negative or not below 32, and LiteRT's kernel does one thing or
    # another by the number of elements; here nothing is left of a number then, as in XLA.
    counts = b.astype(np.int64)
    shifted = np.left_shift(a.astype(np.int64), np.clip(counts, 0, 31))
    return np.asarray(np.where((counts < 0) | (counts > 31), 0, shifted))


def _remainder(a: Array, b: Array) -> Array:
    if a.dtype.kind in "iu" and not b.all():
        raise InputError("STABLEHLO_REMAINDER: a whole number is divided by zero")
    return np.asarray(np.fmod(a, b))


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return np.asarray(np.minimum(np.maximum(x, low), high))


def _pairs(dtypes: Sequence[DType], low: float = -9, high: float = 9) -> Sequence[Sample]:
    """A sample of odd size a type, and one of a vector; second operands lie in [low, high)."""

    def sample(id: str, shape: tuple[int, ...], dtype: DType) -> Sample:
        is_signed = dtype.is_float or dtype.value[0] == "i"
        return Sample(
            id, {}, (Arg(shape, dtype, -9 if is_signed else 0, 9), Arg(shape, dtype, low, high))
        )

    first, *rest = dtypes
    return [
        sample("image", (2, 3, 5, 6), first),
        sample("vector", (7,), first),
        *(sample(dtype.value, (3, 5), dtype) for dtype in rest),
    ]


_NUMBERS = (DType.F32, DType.I32)


def _clamp_samples() -> list[Sample]:
    def args(limits: tuple[int, ...], dtype: DType, const: bool = False) -> tuple[Arg, ...]:
        x = Arg((2, 3, 5), dtype, -9, 9)
        return Arg(limits, dtype, -6, -1, const), x, Arg(limits, dtype, 1, 6, const)

    return [
        Sample("scalars", {}, args((), DType.F32)),
        Sample("constants", {}, args((), DType.F32, const=True)),
        Sample("tensors", {}, args((2, 3, 5), DType.F32)),
        Sample("i32", {}, args((), DType.I32)),
        Sample("crossed", {}, (Arg.of(3.0), Arg((7,), low=-9, high=9), Arg.of(-3.0))),
    ]


def _op(
    name: str,
    fn: Callable[..., Any],
    allowed: frozenset[DType],
    samples: Callable[[], Sequence[Sample]],
    accuracy: Accuracy = Accuracy.EXACT,
    keeps_values: bool = False,
    checked: tuple[int, ...] = (),
    result_type: int | None = None,
) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        _infer_same(name, allowed),
        _reference(fn),
        samples,
        accuracy=accuracy,
        elementwise=True,
        file=FileForm(result_type=result_type),
        movement=Movement(keeps_values=keeps_values),
        quantized=Quantized(stored=True),
        device=OnDevice(checked=checked),
        batch=None,  # a constant operand may not be broadcast
    )


OPS = (
    _op("STABLEHLO_ADD", lambda a, b: a + b, FLOATS | _WHOLE | _BOOL, lambda: _pairs(_NUMBERS),
        Accuracy.ROUNDED),
    _op("STABLEHLO_MULTIPLY", lambda a, b: a * b, FLOATS | _WHOLE | _BOOL, lambda: _pairs(_NUMBERS),
        Accuracy.ROUNDED),
    _op("STABLEHLO_MAXIMUM", np.maximum, FLOATS | _WHOLE | _BOOL, lambda: _pairs(_NUMBERS),
        keeps_values=True),
    _op("STABLEHLO_MINIMUM", np.minimum, FLOATS | _WHOLE | _BOOL, lambda: _pairs(_NUMBERS),
        keeps_values=True),
    _op("STABLEHLO_AND", np.bitwise_and, _WHOLE | _BOOL, lambda: _pairs((DType.I32, DType.BOOL))),
    _op("STABLEHLO_SHIFT_LEFT", _shift, _SHIFTED, lambda: _pairs((DType.I32, DType.I8), 0, 8),
        result_type=0),
    _op("STABLEHLO_REMAINDER", _remainder, FLOATS | _WHOLE, lambda: _pairs(_NUMBERS, 1, 6),
        checked=(1,)),
    OpDef(
        "STABLEHLO_CLAMP", no_attrs, _infer_clamp, _reference(_clamp), _clamp_samples,
        accuracy=Accuracy.EXACT, elementwise=True, movement=Movement(keeps_values=True),
        quantized=Quantized(stored=True), batch=None
    ),
    OpDef(
        "STABLEHLO_CBRT", no_attrs, infer_unary("STABLEHLO_CBRT", FLOATS), _reference(np.cbrt),
        lambda: [Sample("matrix", {}, (Arg((3, 7), low=-9, high=9),)),
                 Sample("vector", {}, (Arg((5,), low=-9e4, high=9e4),))],
        accuracy=Accuracy.TRANSCENDENTAL, elementwise=True,
    ),
)  # fmt: skip
