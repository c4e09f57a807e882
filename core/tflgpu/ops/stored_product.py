"""STORED_PRODUCT: products of stored numbers along axes, rounded after every factor.

No file has this op. The float view of a quantized model (`tflgpu.passes.float_view`) puts it in the
place of REDUCE_PROD, whose kernel in TFLite brings the product back to 32 bits each time it
multiplies:

    product = first;  product = rescale(product * next), ...
    result = scale * clamp(rescale(product))

With the n-th root of the whole factor in every step the roundings add up to many steps of the
result, and what does not fit 32 bits in between is cut, as there.

Source: TFLite's `kernels/reduce.cc` (GetQuantProdScaling), `kernels/internal/reference/reduce.h`
(QuantizedReduceProd) and `kernels/internal/common.cc` (MultiplyByQuantizedMultiplier of int64_t).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import const_integers, integers, normal_axis, present, take_operands
from tflgpu.ops.base import Arg, Arrays, OpDef, Operands, Sample, graph_attributes
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.fixed_point import Multiplier
from tflgpu.ops.quantize_and_dequantize import REALS, QuantizeAndDequantize, steps_of
from tflgpu.ops.quantized import PostOp, Replacement
from tflgpu.ops.stored_sums import upper_half
from tflgpu.ops.stored_total import OP as TOTAL
from tflgpu.ops.stored_total import StoredTotal
from tflgpu.values import frozen

OP = "STORED_PRODUCT"
#: Shifts of the multiplier: TFLite takes no others.
SHIFTS = range(-31, 8)
_STORED = frozenset({DType.I8, DType.I16})


@frozen
class StoredProduct:
    """How the operand's and the result's numbers are stored, what products are multiplied by, and
    whether reduced dimensions stay as 1."""

    operand: QuantizeAndDequantize
    result: QuantizeAndDequantize
    by: Multiplier
    keep_dims: bool

    @property
    def right(self) -> int:
        """Bits by which a product times `factor` is shifted to the right; at least 8."""
        return 15 - self.by.shift

    @property
    def factor(self) -> int:
        """Of 15 bits."""
        return upper_half(self.by.value)


def of_product(node: Node) -> Replacement | PostOp | None:
    """`Quantized.results` of REDUCE_PROD."""
    x, y = node.input(0), node.outputs[0]
    if x.dtype not in _STORED or x.dtype is not y.dtype or x.quant is None or y.quant is None:
        return None
    if not x.elements or not y.elements:
        return None
    if x.dtype is DType.I16 and (x.quant.zero_point[0] or y.quant.zero_point[0]):
        return None
    a, b = (float(np.float32(q.scale[0])) for q in (x.quant, y.quant))
    if x.elements == y.elements and x.quant.zero_point == y.quant.zero_point:
        # LiteRT copies the stored numbers, also between different scales.
        return PostOp(TOTAL, StoredTotal(a, QuantizeAndDequantize.of_value(y), factor=1.0))
    by = Multiplier.of(a / b ** (1.0 / (x.elements // y.elements)))
    if by.value == 0 or by.shift not in SHIFTS:
        return None
    operand, result = (QuantizeAndDequantize.of(q, x.dtype) for q in (x.quant, y.quant))
    return Replacement(OP, StoredProduct(operand, result, by, node.attrs.keep_dims))


def reduced(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, each once, in order; a scalar has none."""
    return tuple(sorted({normal_axis(OP, axis, rank) for axis in axes})) if rank else ()


def _left(shape: Shape, axes: Sequence[int], keep_dims: bool) -> Shape:
    if keep_dims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _infer(attributes: StoredProduct, operands: Operands) -> list[TensorSpec]:
    x, axes = take_operands(OP, operands, 2)
    check_dtype(OP, x.dtype, REALS)
    found = reduced(const_integers(OP, axes, "the axes"), x.rank)
    if not all(x.shape[axis] for axis in found):
        raise ModelError(f"{OP}: nothing to multiply along axes {list(found)} of {list(x.shape)}")
    return [TensorSpec(_left(x.shape, found, attributes.keep_dims), x.dtype)]


def _reference(attributes: StoredProduct, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    axes = reduced(integers(present(arrays[1])), x.ndim)
    kept = [i for i in range(x.ndim) if i not in axes]
    steps = steps_of(attributes.operand, x).astype(np.int64).transpose(*kept, *axes)
    rows = steps.reshape(*steps.shape[: len(kept)], -1)
    product = rows[..., 0]
    for index in range(1, rows.shape[-1]):
        product = _rescaled(attributes, product * rows[..., index])
    result = attributes.result
    found = np.clip(_rescaled(attributes, product), result.low, result.high)
    real = np.asarray(found * np.float32(result.scale)).astype(x.dtype)
    return [real.reshape(_left(x.shape, axes, attributes.keep_dims))]


def _rescaled(attributes: StoredProduct, x: Array) -> Array:
    """Rounded to the nearest, halves up, and what is left in 32 bits."""
    right = attributes.right
    found = (x * attributes.factor + (1 << (right - 1))) >> right
    return np.asarray(found.astype(np.int32).astype(np.int64))


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        axes: tuple[int, ...],
        factor: float,
        wide: bool = False,
        keep: bool = False,
    ) -> Sample:
        ends = (-(1 << 15), (1 << 15) - 1) if wide else (-121, 134)
        operand, result = (QuantizeAndDequantize(scale, *ends) for scale in (1 / 32, 1 / 16))
        attributes = StoredProduct(operand, result, Multiplier.of(factor), keep)
        # Steps that f16 holds.
        reach = 2000 if wide else 130
        whole = np.random.default_rng(7).integers(-reach, reach, shape).astype(np.float32) / 32
        return Sample.of(id, attributes, Arg.of(whole), Arg.of(axes, DType.I32))

    return [
        sample("channels", (3, 2, 5), (-1,), 0.02),
        sample("inside", (2, 3, 7), (1,), 0.03, keep=True),
        sample("around", (3, 2, 5), (0, 2), 0.04),
        sample("wide", (2, 3, 5), (2,), 0.0007, wide=True),
        sample("beyond", (3, 6), (1,), 3.3, wide=True),
        sample("all", (2, 3), (0, 1), 0.021),
        sample("one", (5, 1), (1,), 0.5),
    ]


OPS = (OpDef(OP, graph_attributes, _infer, _reference, _samples),)
