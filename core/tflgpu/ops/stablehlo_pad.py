"""STABLEHLO_PAD and DILATE (TFLite version 1): elements put between those of a tensor, and around
it.

TFLite's kernels: stablehlo_pad.cc, dilate.cc. A negative border of STABLEHLO_PAD cuts off, after
what is put between. Neither looks at a scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import listed
from tflgpu.ir.budget import MAX_BYTES, bytes_of
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import const_integers, elements, integers, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    Movement,
    NoAttrs,
    OpDef,
    Operand,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.values import frozen

_PAD, _DILATE = "STABLEHLO_PAD", "DILATE"


@frozen
class StablehloPad:
    """Elements before, after and between those of each dimension; the first two may be negative."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    between: tuple[int, ...]


def _parse_pad(fields: Fields) -> StablehloPad:
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    found = StablehloPad(*(fields.integers(name) for name in names))
    if not len(found.low) == len(found.high) == len(found.between):
        raise ModelError(
            f"{_PAD}: {len(found.low)} lower, {len(found.high)} upper and {len(found.between)} "
            "inner paddings; one of each is needed for every dimension"
        )
    if any(n < 0 for n in found.between):
        raise ModelError(f"{_PAD}: inner paddings {listed(found.between)} must not be negative")
    return found


def _size(dim: int, between: int) -> int:
    return dim + (dim - 1) * between if dim else 0


def _check_value(op: str, x: Operand, value: Operand, place: int) -> None:
    if elements(value.shape) != 1 or value.dtype is not x.dtype:
        raise ModelError(
            f"{op}: the padding value (operand {place}) is {value.spec}; one {x.dtype.value} needed"
        )


def _infer_pad(attributes: StablehloPad, operands: Operands) -> list[TensorSpec]:
    x, value = take_operands(_PAD, operands, 2)
    _check_value(_PAD, x, value, 1)
    if not x.rank or x.rank != len(attributes.low):
        raise ModelError(f"{_PAD}: paddings of {len(attributes.low)} dimensions for {x.spec}")
    if 0 in x.shape:
        raise UnsupportedError(f"{_PAD} of a tensor without elements, of shape {list(x.shape)}")
    spread = [_size(d, b) for d, b in zip(x.shape, attributes.between, strict=True)]
    both = list(zip(attributes.low, attributes.high, strict=True))
    whole = [d + max(low, 0) + max(high, 0) for d, (low, high) in zip(spread, both, strict=True)]
    if bytes_of(whole, x.dtype) > MAX_BYTES:
        raise UnsupportedError(f"{_PAD}: {x.spec} is too large before what is cut off")
    shape = tuple(d + low + high for d, (low, high) in zip(spread, both, strict=True))
    if any(d <= 0 for d in shape):
        raise UnsupportedError(f"{_PAD} cuts {list(x.shape)} to {listed(shape)}, of no elements")
    return [TensorSpec(shape, x.dtype)]


def _spread(x: Array, between: Sequence[int], value: Array) -> Array:
    """With ``value`` between the elements."""
    shape = tuple(_size(d, b) for d, b in zip(x.shape, between, strict=True))
    found = np.full(shape, value.reshape(-1)[0], x.dtype)
    found[tuple(slice(None, None, b + 1) for b in between)] = x
    return found


def _reference_pad(attributes: StablehloPad, arrays: Arrays) -> list[Array]:
    x, value = (present(a) for a in arrays)
    wide = _spread(x, attributes.between, value)
    both = list(zip(attributes.low, attributes.high, strict=True))
    border = [(max(a, 0), max(b, 0)) for a, b in both]
    padded = np.pad(wide, border, constant_values=value.reshape(-1)[0])
    cut = [slice(max(-a, 0), d - max(-b, 0)) for (a, b), d in zip(both, padded.shape, strict=True)]
    return [np.ascontiguousarray(padded[tuple(cut)])]


def _infer_dilate(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, steps, value = take_operands(_DILATE, operands, 3)
    _check_value(_DILATE, x, value, 2)
    if steps.dtype is not DType.I32 or steps.rank != 1:
        raise ModelError(f"{_DILATE}: dilations (operand 1) are {steps.spec}; an i32 vector needed")
    if not x.rank or 0 in x.shape:
        raise UnsupportedError(f"{_DILATE} of {x.spec}; at least one dimension and element needed")
    found = const_integers(_DILATE, steps, "dilations (operand 1)", x.rank)
    if any(n < 1 for n in found):
        raise ModelError(f"{_DILATE}: dilations {listed(found)} must be at least 1")
    shape = tuple(_size(d, n - 1) for d, n in zip(x.shape, found, strict=True))
    return [TensorSpec(shape, x.dtype)]


def _reference_dilate(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, steps, value = (present(a) for a in arrays)
    return [_spread(x, [n - 1 for n in integers(steps)], value)]


@frozen
class Spread:
    """What a node of either op does to each dimension.

    Attributes:
        low: Elements before the first; negative: elements that are cut off.
        steps: How far apart neighbours come to lie.
        value: Operand with what lies elsewhere.
    """

    low: tuple[int, ...]
    steps: tuple[int, ...]
    value: int


def spread_of(node: Node) -> Spread:
    """What a node of one of these ops does."""
    if isinstance(node.attrs, StablehloPad):
        return Spread(node.attrs.low, tuple(b + 1 for b in node.attrs.between), 1)
    steps = integers(node.const(1))
    return Spread((0,) * len(steps), steps, 2)


def _pad_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        low: Sequence[int],
        high: Sequence[int],
        between: Sequence[int],
        dtype: DType = DType.F32,
        const: bool = True,
    ) -> Sample:
        fields = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": between}
        value = Arg.of(2, dtype) if const else Arg((), dtype, -9, 9)
        return Sample(id, fields, (Arg(shape, dtype, -9, 9), value))

    return [
        sample("image", (1, 3, 5, 6), (0, 1, 2, 0), (0, 2, 0, 0), (0, 1, 0, 0)),
        sample("aligned", (2, 3, 8), (0, 0, 4), (0, 0, 4), (0, 0, 0), const=False),
        sample("cut", (5, 7), (-1, 2), (2, -3), (0, 1)),
        sample("cut_between", (5, 6), (-2, -1), (-3, -4), (2, 3)),
        sample("i32", (3, 5), (1, 0), (0, 2), (1, 2), DType.I32),
    ]


def _dilate_samples() -> list[Sample]:
    def sample(id: str, shape: Shape, steps: Sequence[int], dtype: DType = DType.F32) -> Sample:
        args = (Arg(shape, dtype, -9, 9), Arg.of(steps, DType.I32), Arg((), dtype, -9, 9))
        return Sample(id, {}, args)

    return [
        sample("image", (2, 3, 5, 4), (1, 2, 3, 1)),
        sample("all", (3, 5), (2, 3)),
        sample("vector", (7,), (2,)),
        sample("i32", (3, 4), (3, 1), DType.I32),
    ]


OPS = (
    OpDef(
        _PAD, _parse_pad, _infer_pad, _reference_pad, _pad_samples, accuracy=Accuracy.EXACT,
        quantized=Quantized(stored=True), movement=Movement(keeps_values=True)
    ),
    OpDef(
        _DILATE, no_attrs, _infer_dilate, _reference_dilate, _dilate_samples,
        accuracy=Accuracy.EXACT, quantized=Quantized(stored=True),
        movement=Movement(keeps_values=True)
    ),
)  # fmt: skip
