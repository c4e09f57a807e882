"""QUANTIZE_ON_THE_FLY: the rounding of a hybrid operator's float input before it multiplies.

No file has this op. Operators with float activations and 8-bit weights (models of "dynamic range")
are computed by TFLite in whole numbers: it finds the range of the input, of each row or image by
itself, rounds the input to 8 bits over that range, and multiplies. The float view of such a model
(`tflgpu.passes.float_view`) puts this op before the operator, which then multiplies real numbers
that are the rounded ones.

Over axes of a row a range of real numbers becomes steps:

    symmetric    scale = max(|low|, |high|) / 127, and 0 is step 0 of -127 to 127
    asymmetric   scale = (max(high, 0) - min(low, 0)) / 255, and 0 is the nearest of -128 to 127
    even         the same, with halves to the even number: 0 of a range from -x to x is step 0

The first two are TFLite's own kernels' (of recurrent and depthwise operators), the last XNNPACK's,
which takes the others in LiteRT's interpreter by default. A range with an end as far below 0 as
above is no accident: images that were scaled to -1 to 1 have one.

A row of zeros stays as it is. One that has NaN or an infinity becomes NaN: no step is as large.

Sources: TFLite's `kernels/internal/reference/portable_tensor_utils.cc`
(PortableSymmetricQuantizeFloats, PortableAsymmetricQuantizeFloats); XNNPACK's conversion to qdint8,
measured.
"""

from __future__ import annotations

import math

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Arg,
    Arrays,
    Draw,
    Fields,
    OpDef,
    Operands,
    Sample,
    graph_attributes,
)
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import rows_of
from tflgpu.ops.quantize_and_dequantize import REALS
from tflgpu.ops.quantized import Rounding
from tflgpu.values import frozen

OP = "QUANTIZE_ON_THE_FLY"
#: Steps to either side of 0, symmetric.
SIDE = 127
#: The lowest and the highest step, asymmetric.
LOW, HIGH = -128, 127


@frozen
class QuantizeOnTheFly:
    """``axes``, counted from the front, are those of a row: what has one range."""

    axes: tuple[int, ...]
    rounding: Rounding


def _infer(attributes: QuantizeOnTheFly, operands: Operands) -> list[TensorSpec]:
    (x,) = take_operands(OP, operands, 1)
    check_dtype(OP, x.dtype, REALS)
    if not attributes.axes or not all(0 <= axis < x.rank for axis in attributes.axes):
        raise ModelError(f"{OP}: axes {listed(attributes.axes)} of shape {listed(x.shape)}")
    if 0 in x.shape:
        raise ModelError(f"{OP}: an operand of shape {list(x.shape)} has no range")
    return [x.spec]


def _reference(attributes: QuantizeOnTheFly, arrays: Arrays) -> list[Array]:
    return [rounded(present(arrays[0]), attributes.axes, attributes.rounding)]


def rounding_of(fields: Fields) -> Rounding:
    """What the options of a hybrid operator say of its rounding."""
    asymmetric = fields.flag("asymmetric_quantize_inputs")
    return Rounding.ASYMMETRIC if asymmetric else Rounding.SYMMETRIC


def rounded(given: Array, axes: tuple[int, ...], rounding: Rounding) -> Array:
    """Floats as they are rounded on the fly, in their own type."""
    x = given.astype(np.float32)
    low, high = (of(x, axis=axes, keepdims=True) for of in (np.min, np.max))
    one = np.float32(1)
    if rounding is Rounding.SYMMETRIC:
        reach = np.maximum(np.abs(low), np.abs(high))
        empty = reach == 0
        scale = np.where(empty, one, reach / np.float32(SIDE))
        inverse = np.where(empty, one, np.float32(SIDE) / np.where(empty, one, reach))
        steps = np.clip(_whole(x * inverse), -SIDE, SIDE)
        return np.asarray(steps * scale, np.float32).astype(given.dtype)
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    empty, reach = high == low, np.float32(HIGH - LOW)
    if rounding is Rounding.EVEN:
        inverse = np.where(empty, one, reach / np.where(empty, one, high - low))
        scale = one / inverse
        zero = np.clip(np.rint(_zero(low * inverse, high * inverse)), LOW, HIGH)
        steps = np.clip(np.rint(x * inverse) + zero, LOW, HIGH)
    else:
        scale = np.where(empty, one, (high - low) / reach)
        inverse = one / scale
        zero = np.clip(_whole(_zero(low * inverse, high * inverse)), LOW, HIGH)
        steps = np.clip(_whole(zero + x * inverse), LOW, HIGH)
    return np.asarray((steps - zero) * scale, np.float32).astype(given.dtype)


def _zero(low: Array, high: Array) -> Array:
    """Where 0 lies, from the ends of the range in steps: by the one that is nearer to 0, whose
    rounding errors are smaller."""
    by_low, by_high = LOW - low, HIGH - high
    return np.asarray(np.where(-LOW + np.abs(low) < HIGH + np.abs(high), by_low, by_high))


def _whole(x: Array) -> Array:
    """To whole numbers, halves away from zero; NaN stays."""
    return np.asarray(np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x))


def _batch(node: Node, items: Items) -> Batched | str:
    refused = "it rounds over axis 0, on which the items lie" if 0 in node.attrs.axes else None
    refused = refused or rows_of(node, items, (0,))
    return Batched(node.attrs) if refused is None else refused


def _clear(shape: tuple[int, ...], rows: int, rounding: Rounding, below: int) -> Array:
    """Numbers a quarter of a step beyond a step, in f16 too. Half way between two steps either is
    right, as devices may divide with an error of 2.5 ulp, and random numbers come to lie there.

    Args:
        shape: Of the result.
        rows: How many ranges it has; so long is what each of the others shares.
        rounding: Symmetric rows reach from -127 to 127 steps.
        below: How many of the 255 steps of an asymmetric row lie below 0.
    """
    symmetric = rounding is Rounding.SYMMETRIC
    low, high = (-SIDE, SIDE) if symmetric else (-below, HIGH - LOW - below)
    length = math.prod(shape) // rows
    steps = low + np.arange(rows * length).reshape(rows, length) * 89 % (high - low - 1) + 0.25
    steps[:, length // 3], steps[:, -1] = low, high
    size = np.exp2(-5.0 - np.arange(rows) % 3)[:, None]
    return np.asarray(steps * size, np.float32).reshape(shape)


def _generate(draw: Draw) -> Sample:
    rounding = draw.choice(tuple(Rounding))
    shape = tuple(draw.size(9) for _ in range(draw.integer(2, 4)))
    first = draw.integer(1, len(shape) - 1)
    attributes = QuantizeOnTheFly(tuple(range(first, len(shape))), rounding)
    below = draw.choice((0, 64, 200, HIGH - LOW))
    numbers = _clear(shape, math.prod(shape[:first]), rounding, below)
    return Sample.of("clear", attributes, Arg.of(numbers))


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        axes: tuple[int, ...],
        low: float,
        high: float,
        *,
        symmetric: bool = False,
    ) -> Sample:
        rounding = Rounding.SYMMETRIC if symmetric else Rounding.ASYMMETRIC
        return Sample.of(id, QuantizeOnTheFly(axes, rounding), Arg(shape, low=low, high=high))

    image, zeros = _clear((1, 8209, 1), 1, Rounding.ASYMMETRIC, 170), Arg.of(np.zeros((3, 5)))
    # Ranges that put no number half way between two steps, in f16 neither.
    return [
        sample("rows", (5, 13), (1,), -3.3, 5.0),
        sample("rows_symmetric", (5, 13), (1,), -3.0, 5.0, symmetric=True),
        sample("positive", (2, 3, 5, 7), (1, 2, 3), 1.0, 4.9),
        sample("negative_symmetric", (2, 3, 5, 6), (1, 2, 3), -9.2, -1.0, symmetric=True),
        sample("columns", (2, 11, 7), (1,), -1.3, 1.0),
        sample("columns_symmetric", (2, 11, 8), (1,), -1.1, 1.0, symmetric=True),
        # So large that several workgroups look for the range.
        Sample.of("image", QuantizeOnTheFly((1, 2), Rounding.ASYMMETRIC), Arg.of(image)),
        Sample.of("zeros", QuantizeOnTheFly((1,), Rounding.ASYMMETRIC), zeros),
        Sample.of("zeros_even", QuantizeOnTheFly((1,), Rounding.EVEN), zeros),
    ]


OPS = (
    OpDef(
        OP,
        graph_attributes,
        _infer,
        _reference,
        _samples,
        batch=_batch,
        generate=_generate,
    ),
)
