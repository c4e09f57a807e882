"""Arithmetic of two operands with NumPy broadcasting, and ADD_N.

TFLite versions: ADD 1-6, SUB 1-5, MUL 1-8, DIV 1-2, MAXIMUM and MINIMUM 1-4, FLOOR_DIV 1-3,
FLOOR_MOD 1-2, SQUARED_DIFFERENCE 1-2, POW, ATAN2 and ADD_N 1. The four basic ones may have a
fused activation. Whole numbers wrap around; DIV truncates and FLOOR_DIV floors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.activation import apply_activation, fused_clamp
from tflgpu.ops.affine import ScaleAndShift, affine_with, copies_where_neutral
from tflgpu.ops.axes import take_operands
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Draw,
    Fields,
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
from tflgpu.ops.elementwise import (
    FLOATS,
    QUANTIZED,
    WHOLE,
    check_dtype,
    infer_broadcast,
    reference_of,
)
from tflgpu.ops.facets import copies_only
from tflgpu.ops.stored_pair import of_sum, product, squared_difference
from tflgpu.ops.stored_quotient import StoredQuotient, divide

T = TypeVar("T")

_ALL = FLOATS | WHOLE | QUANTIZED
# Small whole numbers without a scale: what TFLite's kernels take. Sums and products wrap around.
_SHORT = frozenset({DType.I16})
_PAIRS = draws.ranged(-4, 4, -4, 4)


@attrs.frozen
class BinaryAttrs:
    """The activation applied to the result; ``stored`` says of DIV that it makes the numbers that
    TFLite stores. No file has it."""

    activation: Activation = Activation.NONE
    stored: StoredQuotient | None = None


def _parse_fused(fields: Fields) -> BinaryAttrs:
    return BinaryAttrs(fused_clamp(fields))


def _with_activation(
    fn: Callable[[Array, Array], Array],
) -> Callable[[BinaryAttrs, Array, Array], Array]:
    def compute(attributes: BinaryAttrs, a: Array, b: Array) -> Array:
        with np.errstate(over="ignore"):
            return apply_activation(attributes.activation, np.asarray(fn(a, b)))

    return compute


def _is_whole(array: Array) -> bool:
    return array.dtype.kind in "iu"


def _no_zero(op: str, divisor: Array) -> None:
    if _is_whole(divisor) and not divisor.all():
        raise InputError(f"{op}: a whole number is divided by zero")


def _divide(a: Array, b: Array) -> Array:
    if not _is_whole(a):
        return np.asarray(a / b)
    _no_zero("DIV", b)
    wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
    quotient = np.abs(wide_a) // np.abs(wide_b)
    return np.asarray(np.where((wide_a < 0) == (wide_b < 0), quotient, -quotient)).astype(a.dtype)


def _div(attributes: BinaryAttrs, a: Array, b: Array) -> Array:
    if attributes.stored is None:
        return _with_activation(_divide)(attributes, a, b)
    return apply_activation(attributes.activation, divide(attributes.stored, a, b))


def _div_stored(node: Node) -> BinaryAttrs | None:
    stored = StoredQuotient.of(node, node.attrs.activation)
    return None if stored is None else BinaryAttrs(stored=stored)


def _unless_stored(facet: Callable[[Node], T | None]) -> Callable[[Node], T | None]:
    return lambda node: None if node.attrs.stored is not None else facet(node)


def _floor_div(attributes: NoAttrs, a: Array, b: Array) -> Array:
    _no_zero("FLOOR_DIV", b)
    if _is_whole(a):
        return np.asarray(a // b)
    # TFLite divides in double precision, which decides on which side of a whole number the
    # quotient falls.
    return np.asarray(np.floor(a.astype(np.float64) / b.astype(np.float64)))


def _floor_mod(attributes: NoAttrs, a: Array, b: Array) -> Array:
    _no_zero("FLOOR_MOD", b)
    return np.asarray(np.mod(a, b))


def _power(attributes: NoAttrs, a: Array, b: Array) -> Array:
    if _is_whole(b) and (b < 0).any():
        raise InputError("POW: a whole number is raised to a negative power")
    if a.dtype != np.int32:
        made = np.asarray(np.power(a, b))
        # Where 0.5 is the one exponent NumPy takes the root, which is NaN of -inf.
        roots = (a == -np.inf) & (b == 0.5)
        return np.where(roots, np.inf, made).astype(made.dtype) if roots.any() else made
    # TFLite computes in double precision. What is beyond 32 bits becomes the smallest number, as
    # its conversion gives it on x86.
    with np.errstate(over="ignore"):
        wide = np.power(a.astype(np.float64), b.astype(np.float64))
    info = np.iinfo(np.int32)
    return np.where((wide >= info.min) & (wide <= info.max), wide, info.min).astype(np.int32)


def _difference(attributes: NoAttrs, a: Array, b: Array) -> Array:
    gap = a - b
    return np.asarray(gap * gap)


def _infer_atan2(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    y, x = take_operands("ATAN2", operands, 2)
    check_dtype("ATAN2", y.dtype, FLOATS)
    if y.spec != x.spec:
        raise ModelError(f"ATAN2 does not broadcast: operands are {y.spec} and {x.spec}")
    return [y.spec]


def _infer_add_n(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    if not operands:
        raise ModelError("ADD_N takes at least one operand")
    first, *rest = take_operands("ADD_N", operands, len(operands))
    check_dtype("ADD_N", first.dtype, _ALL)
    for i, other in enumerate(rest, 1):
        if other.spec != first.spec:
            raise ModelError(f"ADD_N: operand {i} is {other.spec}, operand 0 {first.spec}")
    return [first.spec]


def _add_n(attributes: NoAttrs, *operands: Array) -> Array:
    total = operands[0]
    for operand in operands[1:]:
        total = total + operand
    return total


# Samples


@attrs.frozen
class _Domain:
    """Where a sample's operands are drawn from."""

    a: tuple[float, float] = (-4.0, 4.0)
    b: tuple[float, float] = (-4.0, 4.0)

    def left(self, *shape: int, dtype: DType = DType.F32, const: bool = False) -> Arg:
        return Arg(shape, dtype, *self.a, const=const)

    def right(self, *shape: int, dtype: DType = DType.F32, const: bool = False) -> Arg:
        return Arg(shape, dtype, *self.b, const=const)


_PLAIN = _Domain()
_QUOTIENT = _Domain(b=(0.5, 4.0))
_WHOLE_QUOTIENT = _Domain((-90, 90), (1, 9))
_POWER = _Domain((0.2, 3.0), (-2.0, 2.0))


def _broadcasts(domain: _Domain = _PLAIN) -> list[Sample]:
    a, b = domain.left, domain.right
    return [
        Sample("same", {}, (a(1, 5, 7, 3), b(1, 5, 7, 3))),
        Sample("same_batch", {}, (a(2, 3, 5, 8), b(2, 3, 5, 8))),
        Sample("scalar_const", {}, (a(1, 5, 7, 3), b(const=True))),
        Sample("one_const_left", {}, (a(1, const=True), b(2, 3, 5, 6))),
        Sample("channels_const", {}, (a(1, 5, 7, 6), b(6, const=True))),
        Sample("channels_const_left", {}, (a(7, const=True), b(1, 3, 5, 7))),
        Sample("per_pixel", {}, (a(1, 5, 7, 6), b(1, 5, 7, 1))),
        Sample("per_pixel_left", {}, (a(2, 5, 3, 1), b(2, 5, 3, 5))),
        Sample("per_image", {}, (a(2, 5, 3, 6), b(2, 1, 1, 6))),
        Sample("both_sides", {}, (a(1, 5, 1, 6), b(1, 1, 7, 6))),
        Sample("outer_product", {}, (a(5, 1), b(1, 7))),
        Sample("lower_rank", {}, (a(2, 3, 5, 4), b(5, 4))),
        Sample("rank1", {}, (a(7), b(7))),
        Sample("rank0", {}, (a(), b())),
    ]


def _rank5(domain: _Domain = _PLAIN, version: int = 1) -> list[Sample]:
    args = (domain.left(2, 3, 1, 5, 6), domain.right(1, 3, 2, 1, 6))
    return [Sample("rank5", {}, args, version=version)]


def _ints(domain: _Domain) -> list[Sample]:
    def args(a: tuple[int, ...], b: tuple[int, ...], const: bool = False) -> tuple[Arg, Arg]:
        left = domain.left(*a, dtype=DType.I32)
        return left, domain.right(*b, dtype=DType.I32, const=const)

    return [
        Sample("i32", {}, args((1, 5, 3, 7), (1, 5, 3, 7))),
        Sample("i32_channels", {}, args((2, 3, 5), (5,), const=True)),
    ]


def _fused(domain: _Domain = _PLAIN) -> list[Sample]:
    args = (domain.left(1, 3, 5, 6), domain.right(1, 3, 5, 6))
    activations = (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1)
    return [
        Sample(act.name.lower(), {"fused_activation_function": act.value}, args)
        for act in activations
    ]


def _basic(
    domain: _Domain = _PLAIN, whole: _Domain = _Domain((-99, 99), (-99, 99))
) -> list[Sample]:
    return [*_broadcasts(domain), *_rank5(domain, 2), *_ints(whole), *_fused(domain)]


def _atan2_samples() -> list[Sample]:
    shapes = [(), (7,), (3, 13), (5, 3, 6), (1, 5, 7, 3), (2, 3, 5, 8), (2, 3, 1, 5, 6)]
    return [
        Sample(f"rank{len(s)}_{i}", {}, (_PLAIN.left(*s), _PLAIN.right(*s)))
        for i, s in enumerate(shapes)
    ]


def _add_n_samples() -> list[Sample]:
    def args(count: int, *shape: int) -> tuple[Arg, ...]:
        return tuple(_PLAIN.left(*shape) for _ in range(count))

    return [
        Sample("two", {}, args(2, 1, 5, 7, 3)),
        Sample("three", {}, args(3, 2, 3, 5, 8)),
        Sample("five", {}, args(5, 3, 13)),
        Sample("ten", {}, args(10, 1, 3, 5, 6)),
        Sample("rank1", {}, args(4, 7)),
        Sample("i32", {}, tuple(Arg((3, 7), DType.I32, -99, 99) for _ in range(3))),
    ]


def _op(
    name: str,
    compute: Callable[..., Any],
    samples: Callable[[], Sequence[Sample]],
    *,
    allowed: frozenset[DType] = _ALL,
    accuracy: Accuracy = Accuracy.ROUNDED,
    version: int = 1,
    parse: Callable[[Fields], Any] = no_attrs,
    keeps_values: bool = False,
    generate: Callable[[Draw], Sample] | None = None,
    checked: tuple[int, ...] = (),
    plain: frozenset[DType] = frozenset(),
    stored: bool = False,
    results: Callable[[Node], Any] | None = None,
    result_type: int | None = 0,
) -> OpDef:
    return OpDef(
        name, parse, infer_broadcast(name, allowed), reference_of(name, compute, plain), samples,
        accuracy=accuracy, file=FileForm(max_version=version, result_type=result_type),
        elementwise=True, movement=Movement(keeps_values=keeps_values), generate=generate,
        device=OnDevice(checked=checked), quantized=Quantized(stored=stored, results=results),
    )  # fmt: skip


def _fused_op(
    name: str,
    fn: Callable[[Array, Array], Array],
    samples: Callable[[], Sequence[Sample]],
    version: int,
    arithmetic: ScaleAndShift,
    copies: Callable[[Node], int | None],
    generate: Callable[[Draw], Sample] = _PAIRS,
    *,
    allowed: frozenset[DType] = _ALL,
    plain: frozenset[DType] = frozenset(),
    checked: tuple[int, ...] = (),
    results: Callable[[Node], Any] | None = None,
    result_type: int | None = 0,
) -> OpDef:
    op = _op(
        name,
        _with_activation(fn),
        samples,
        version=version,
        parse=_parse_fused,
        generate=generate,
        allowed=allowed,
        plain=plain,
        checked=checked,
        results=results,
        result_type=result_type,
    )
    return attrs.evolve(
        op,
        arithmetic=Arithmetic(
            affine=_unless_stored(affine_with(arithmetic)), activation_field="activation"
        ),
        movement=Movement(copies=_unless_stored(copies)),
    )


# What each does with a constant c, of which the other operand is number ``at``: scale and shift.


def _scaled(c: Array, at: int) -> tuple[Array, Array]:
    return c, np.zeros(1)


def _shifted(c: Array, at: int) -> tuple[Array, Array]:
    return np.ones(1), c


def _subtracted(c: Array, at: int) -> tuple[Array, Array]:
    return (np.ones(1), -c) if at == 0 else (-np.ones(1), c)


def _divided(c: Array, at: int) -> tuple[Array, Array] | None:
    with np.errstate(divide="ignore"):
        return (np.ones(1) / c, np.zeros(1)) if at == 0 else None


OPS = (
    _fused_op("ADD", lambda a, b: a + b, _basic, 6, _shifted, copies_where_neutral(0.0, 0, 1),
              plain=_SHORT, results=of_sum(1)),
    _fused_op("SUB", lambda a, b: a - b, _basic, 5, _subtracted, copies_where_neutral(0.0, 1),
              results=of_sum(-1)),
    _fused_op("MUL", lambda a, b: a * b, _basic, 8, _scaled, copies_where_neutral(1.0, 0, 1),
              allowed=_ALL | {DType.C64}, plain=_SHORT, results=product, result_type=None),
    attrs.evolve(
        _fused_op("DIV", _divide, lambda: _basic(_QUOTIENT, _WHOLE_QUOTIENT), 2, _divided,
                  copies_where_neutral(1.0, 1), draws.ranged(-4, 4, 0.5, 4), checked=(1,),
                  results=_div_stored),
        reference=reference_of("DIV", _div),
    ),
    _op("MAXIMUM", lambda a, x, y: np.maximum(x, y),
        lambda: _broadcasts() + _rank5(version=3) + _ints(_WHOLE_QUOTIENT),
        accuracy=Accuracy.EXACT, version=4, keeps_values=True, generate=_PAIRS, plain=QUANTIZED),
    _op("MINIMUM", lambda a, x, y: np.minimum(x, y),
        lambda: _broadcasts() + _rank5(version=3) + _ints(_WHOLE_QUOTIENT),
        accuracy=Accuracy.EXACT, version=4, keeps_values=True, generate=_PAIRS, plain=QUANTIZED),
    _op("SQUARED_DIFFERENCE", _difference, lambda: _broadcasts() + _ints(_WHOLE_QUOTIENT),
        version=2, generate=_PAIRS, results=squared_difference),
    _op("POW", _power, lambda: _broadcasts(_POWER) + _ints(_Domain((-5, 5), (0, 5))),
        accuracy=Accuracy.TRANSCENDENTAL),
    # TFLite's kernels look at no scale and no zero point.
    _op("FLOOR_DIV", _floor_div, lambda: _broadcasts(_Domain((-9, 9), (0.3, 2))) + _ints(
        _WHOLE_QUOTIENT), accuracy=Accuracy.EXACT, version=3, plain=QUANTIZED, checked=(1,),
        stored=True),
    _op("FLOOR_MOD", _floor_mod, lambda: _broadcasts(_Domain((-9, 9), (0.5, 4))) + _ints(
        _WHOLE_QUOTIENT), version=2, plain=QUANTIZED, checked=(1,), stored=True),
    OpDef("ATAN2", no_attrs, _infer_atan2,
          reference_of("ATAN2", lambda a, y, x: np.arctan2(y, x)), _atan2_samples,
          accuracy=Accuracy.TRANSCENDENTAL, elementwise=True),
    OpDef(
        "ADD_N", no_attrs, _infer_add_n, reference_of("ADD_N", _add_n), _add_n_samples,
        elementwise=True, movement=Movement(copies=copies_only), file=FileForm(result_type=0)
    ),
)  # fmt: skip
