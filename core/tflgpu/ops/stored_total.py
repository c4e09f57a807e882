"""STORED_TOTAL: a sum of stored numbers, brought to the steps of the result.

No file has this op. The float view of a quantized model (`tflgpu.passes.float_view`) puts it behind
a MEAN, a SUM or a BATCH_MATMUL of real numbers, in the place of what rounds others:

    total = x / unit, a whole number
    result = scale * (clamp(round(total * factor + zero point)) - zero point), halves to the even
    number result = scale * clamp((total + offset) * multiplier + bias), rounded twice
    result = scale * clamp(round((total + offset) * factor + bias)), halves away from 0

The first is XNNPACK's arithmetic, where in sums the zero point decides which of two numbers is
even, and in products there is none; the others are those of TFLite's kernels
(`tflgpu.ops.fixed_point`), which also run MEAN and SUM of 8 bits where the axes are no constant of
the file. Some leave the operand's zero point in the sum (offset) and take it off the result (bias).

Sources: XNNPACK's `rsum` and its conversion, measured; TFLite's
`kernels/internal/reference/integer_ops/ mean.h` and `optimized/integer_ops/mean.h` with
`kernels/reduce.cc` (the count of elements is part of the multiplier); its `QuantizedMeanOrSum`,
measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops.axes import present
from tflgpu.ops.base import Arg, Arrays, OpDef, Sample, graph_attributes
from tflgpu.ops.elementwise import BYTES, infer_unary
from tflgpu.ops.fixed_point import Multiplier, times
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize
from tflgpu.ops.quantized import PostOp

OP = "STORED_TOTAL"
#: No total is larger.
LARGEST = 1 << 30
#: What XNNPACK multiplies sums of products by is below it.
_XNNPACK_MOST = 256.0


@attrs.frozen
class StoredTotal:
    """``multiplier`` takes the place of ``factor`` where it is not None; ``away`` rounds halves of
    what ``factor`` gives away from 0, and not to the even number."""

    unit: float
    result: QuantizeAndDequantize
    zero_point: int = 0
    factor: float = 0.0
    multiplier: Multiplier | None = None
    offset: int = 0
    bias: float = 0.0
    away: bool = False

    @property
    def inverse(self) -> float:
        """What real numbers are multiplied by."""
        return float(np.float32(1 / self.unit))


def of_nothing(node: Node, first: Callable[[QuantizeAndDequantize], int]) -> PostOp | None:
    """Of a reduction of no elements: what TFLite's kernel begins with, in steps from the zero
    point."""
    x, y = node.input(0), node.outputs[0]
    if x.elements or not y.elements or y.quant is None or x.dtype is not y.dtype:
        return None
    result = QuantizeAndDequantize.of_value(y)
    stored = first(result)
    return PostOp(OP, StoredTotal(1.0, attrs.evolve(result, low=stored, high=stored)))


def of_mean(node: Node) -> PostOp | None:
    """`Quantized.results` of MEAN; of no elements a stored 0, with any zero point."""
    x, y = node.input(0), node.outputs[0]
    if not x.elements and y.quant is not None:
        zero = y.quant.zero_point[0]
        return of_nothing(node, lambda _: -zero)
    if x.quant is None or y.quant is None or x.dtype is not y.dtype or not y.elements:
        return None
    count = x.elements // y.elements
    if count < 1 or count << (8 * x.dtype.itemsize) > LARGEST:
        return None
    a, b = np.float32(x.quant.scale[0]), np.float32(y.quant.scale[0])
    result, unit = QuantizeAndDequantize.of_value(y), float(a) / count
    if x.dtype in BYTES and not node.input(1).computed:
        factor = float(np.float32(a / b) / np.float32(count))
        return PostOp(OP, StoredTotal(unit, result, y.quant.zero_point[0], factor))
    if x.dtype in BYTES and _keeps_plane(node):
        zero = x.quant.zero_point[0]
        steps = float(np.float32(zero) * a / b)
        by = Multiplier.of(float(a) / (count * float(b)))
        bias = -int(steps + math.copysign(0.5, steps))
        return _multiplied(unit, result, by, count << 8, offset=count * zero, bias=bias)
    by = Multiplier.of(float(a) / float(b))
    bits = min(count.bit_length() - 1, 31 + by.shift)
    if x.dtype not in {*BYTES, DType.I16} or bits < 0:
        return None
    by = Multiplier((by.value << bits) // count, by.shift - bits)
    return _multiplied(unit, result, by, count << (15 if x.dtype is DType.I16 else 8))


def _keeps_plane(node: Node) -> bool:
    """Whether it reduces height and width of an image to 1, for which LiteRT has a kernel of its
    own."""
    axes = {int(axis) % 4 for axis in node.const(1).reshape(-1)}
    return len(node.input(0).shape) == 4 and axes == {1, 2} and bool(node.attrs.keep_dims)


def of_sum(node: Node) -> PostOp | None:
    """`Quantized.results` of SUM; of 16 bits TFLite rounds the true one."""
    x, y = node.input(0), node.outputs[0]
    if x.dtype not in BYTES or x.dtype is not y.dtype or not (x.quant and y.quant and y.elements):
        return None
    a, b = np.float32(x.quant.scale[0]), np.float32(y.quant.scale[0])
    count = x.elements // y.elements
    if not 0 < count << 8 <= LARGEST:
        return None
    result = QuantizeAndDequantize.of_value(y)
    if not node.input(1).computed:
        return PostOp(OP, StoredTotal(float(a), result, y.quant.zero_point[0], float(a / b)))
    zero = x.quant.zero_point[0]
    bias = float(np.float32(-zero) * (a / b) * np.float32(count))
    made = StoredTotal(
        float(a), result, factor=float(a / b), offset=count * zero, bias=bias, away=True
    )
    return PostOp(OP, made)


def of_product(node: Node, depth: int) -> PostOp | None:
    """`Quantized.results` of products of two 8-bit operands, whose sums have ``depth`` of them.
    XNNPACK takes such where the second one has no zero point; of a sum half way between two steps
    it makes the even one."""
    x, w, y = node.input(0), node.input(1), node.outputs[0]
    if any(v.dtype is not DType.I8 or v.quant is None for v in (x, w, y)):
        return None
    quants = [v.quant for v in (x, w, y) if v.quant is not None]
    a, b, c = (float(np.float32(q.scale[0])) for q in quants)
    result = QuantizeAndDequantize.of_value(y)
    factor = float(np.float32(a * b) / np.float32(c))
    exact = depth << 16 <= LARGEST and np.float32(a * b) >= np.finfo(np.float32).tiny
    if exact and factor < _XNNPACK_MOST and not any(quants[1].zero_point):
        return PostOp(OP, StoredTotal(a * b, result, factor=factor))
    return _multiplied(a * b, result, Multiplier.of(a * b / c), depth << 16)


def _multiplied(
    unit: float,
    result: QuantizeAndDequantize,
    by: Multiplier,
    most: int,
    offset: int = 0,
    bias: float = 0.0,
) -> PostOp | None:
    """None where totals of up to ``most`` need more than 32 bits."""
    if most > LARGEST or most << by.left >= 2**31 or not math.isfinite(1 / unit):
        return None
    return PostOp(OP, StoredTotal(unit, result, multiplier=by, offset=offset, bias=bias))


def _reference(attributes: StoredTotal, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    total = np.rint(np.nan_to_num(x.astype(np.float32) * np.float32(attributes.inverse)))
    total = np.clip(total, -LARGEST, LARGEST)
    by, result, zero = attributes.multiplier, attributes.result, np.float32(attributes.zero_point)
    total, bias = total + np.float32(attributes.offset), np.float32(attributes.bias)
    if by is not None:
        steps = times(total.astype(np.int64), by) + int(bias)
    elif attributes.away:
        steps = total * np.float32(attributes.factor) + bias
        steps = np.trunc(steps + np.copysign(np.float32(0.5), steps))
    else:
        steps = np.rint(total * np.float32(attributes.factor) + zero) - zero
    found = np.clip(steps, result.low, result.high) * np.float32(result.scale)
    return [np.asarray(found).astype(x.dtype)]


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        factor: float,
        twice: bool = False,
        drawn: bool = False,
        **more: Any,
    ) -> Sample:
        by = Multiplier.of(factor) if twice else None
        result = QuantizeAndDequantize(1 / 8, -121, 134)
        # Totals that f16 has too.
        whole = np.random.default_rng(3).integers(-2000, 2000, shape) / 64
        given = Arg(shape, low=-9, high=9) if drawn else Arg.of(whole.astype(np.float32))
        return Sample.of(id, StoredTotal(1 / 64, result, -7, factor, by, **more), given)

    return [
        sample("halves", (2, 3, 5, 6), 1 / 16),
        sample("odd", (67,), 0.0371),
        sample("twice", (3, 5, 7), 0.0371, twice=True),
        sample("drawn", (2, 3, 7), 0.0371, drawn=True),
        sample("twice_beside", (3, 5, 7), 0.0371, twice=True, offset=-819, bias=30.0),
        sample("away", (2, 3, 5, 6), 1 / 16, offset=-819, bias=51.1875, away=True),
    ]


OPS = (OpDef(OP, graph_attributes, infer_unary(OP, REALS), _reference, _samples, elementwise=True),)
