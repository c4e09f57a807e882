"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR. TFLite versions 1-4 of both; images are NHWC.

Which source pixels an output pixel is made of is computed here in f32 exactly as TFLite's
reference kernels do, since one rounding decides which pixel is nearest.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.axes import const_integers, integers, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    FileForm,
    Infer,
    Movement,
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.elementwise import FLOATS, QUANTIZED, check_dtype
from tflgpu.ops.items import each_row
from tflgpu.ops.positions import of_items
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize, steps_of

_F32 = np.float32
#: Of the weights by which XNNPACK mixes pixels of 8 bits.
BITS = 11


@attrs.frozen
class ResizeAttrs:
    """Where pixels lie: ``align_corners`` lays the centres of the corner pixels of both images
    on each other, ``half_pixel_centers`` their outer edges; neither, their first pixels.

    RESIZE_NEAREST_NEIGHBOR takes both: centres are looked at, at the scale of the corners.

    ``fixed``: places are rounded to 1/1024 of a pixel, as RESIZE_BILINEAR does for 16-bit tensors.

    ``stored``: of RESIZE_BILINEAR, that pixels are mixed as the numbers that it says are stored:
    those of 16 bits as TFLite's kernel does, others as XNNPACK's, whose weights have `BITS`. No
    file has it."""

    align_corners: bool = False
    half_pixel_centers: bool = False
    fixed: bool = False
    stored: QuantizeAndDequantize | None = None

    @property
    def bits(self) -> int:
        """Of the weights of stored pixels."""
        return 10 if self.fixed else BITS


def _parse(fields: Fields) -> ResizeAttrs:
    return ResizeAttrs(fields.flag("align_corners"), fields.flag("half_pixel_centers"))


def _parse_bilinear(fields: Fields) -> ResizeAttrs:
    found = _parse(fields)
    if found.align_corners and found.half_pixel_centers:
        raise ModelError(f"{fields.op}: align_corners and half_pixel_centers exclude each other")
    made = fields.get("output_dtypes", ())
    # In 8 bits the rounding does not show.
    return attrs.evolve(found, fixed=len(made) == 1 and made[0] is DType.I16)


def scale_of(attributes: ResizeAttrs, size: int, wanted: int) -> np.float32:
    """Source pixels to one output pixel, along a side of ``size`` source pixels."""
    shrunk = 1 if attributes.align_corners and wanted > 1 else 0
    scale: np.float32 = np.divide(_F32(size - shrunk), _F32(wanted - shrunk), dtype=_F32)
    return scale


def positions(attributes: ResizeAttrs, size: int, wanted: int) -> Array:
    """Where each of the ``wanted`` output pixels falls among ``size`` source pixels (f32)."""
    scale = scale_of(attributes, size, wanted)
    at = np.arange(wanted, dtype=_F32)
    # A shift of 0 changes no bit, so one formula serves both.
    shift = _F32(0.5 if attributes.half_pixel_centers else 0.0)
    return np.asarray((at + shift) * scale - shift, _F32)


def nearest(attributes: ResizeAttrs, size: int, wanted: int) -> Array:
    """The source pixel nearest to each output pixel (int32)."""
    scale = scale_of(attributes, size, wanted)
    offset = _F32(0.5 if attributes.half_pixel_centers else 0.0)
    at = ((np.arange(wanted, dtype=_F32) + offset) * scale).astype(_F32)
    # Halves round away from zero, not to even.
    whole = np.floor(at + _F32(0.5)) if attributes.align_corners else np.floor(at)
    return np.asarray(np.clip(whole, 0, size - 1), np.int32)


def neighbours(attributes: ResizeAttrs, size: int, wanted: int) -> tuple[Array, Array, Array]:
    """Lower and upper source pixel of each output pixel (int32), and the upper one's weight."""
    if attributes.fixed:
        lower, upper, steps = _fixed_neighbours(attributes, size, wanted)
        return lower.astype(np.int32), upper.astype(np.int32), (steps / 1024).astype(_F32)
    at = positions(attributes, size, wanted)
    if attributes.stored is not None:
        at = np.maximum(at, _F32(0))
    lower = np.maximum(np.floor(at), 0).astype(np.int32)
    upper = np.minimum(np.ceil(at), size - 1).astype(np.int32)
    return lower, upper, (at - lower.astype(_F32)).astype(_F32)


def _infer(op: str) -> Infer:
    def infer(attributes: ResizeAttrs, operands: Operands) -> list[TensorSpec]:
        x, size = take_operands(op, operands, 2)
        if op == "RESIZE_BILINEAR":  # what lies between two pixels is a real number
            check_dtype(op, x.dtype, FLOATS | QUANTIZED)
        need_rank(op, x, "operand 0", 4)
        height, width = const_integers(op, size, "size (operand 1)", 2)
        if height < 1 or width < 1:
            raise ModelError(f"{op}: size (operand 1) is [{height}, {width}]")
        if 0 in x.shape[1:3]:
            raise ModelError(f"{op}: operand 0 of shape {list(x.shape)} has no pixels")
        return [TensorSpec((x.shape[0], height, width, x.shape[3]), x.dtype)]

    return infer


def _reference_nearest(attributes: ResizeAttrs, arrays: Arrays) -> list[Array]:
    x, (height, width) = present(arrays[0]), integers(present(arrays[1]))
    rows = nearest(attributes, x.shape[1], height)
    columns = nearest(attributes, x.shape[2], width)
    return [x[:, rows][:, :, columns]]


def _reference_bilinear(attributes: ResizeAttrs, arrays: Arrays) -> list[Array]:
    x, (height, width) = present(arrays[0]), integers(present(arrays[1]))
    if x.dtype in (np.int8, np.int16):
        return [_fixed_point(attributes, x, height, width)]
    if attributes.stored is not None:
        return [_mix_stored(attributes, attributes.stored, x, height, width)]
    top, bottom, v = neighbours(attributes, x.shape[1], height)
    left, right, u = neighbours(attributes, x.shape[2], width)
    wide = x if x.dtype == np.float64 else x.astype(_F32)
    # Where both neighbours are one pixel its two weights add up to 1.
    v = np.where(top == bottom, _F32(0), v)[:, None, None]
    u = np.where(left == right, _F32(0), u)[:, None]
    rows = _mix(wide[:, top], wide[:, bottom], v)
    mixed = _mix(rows[:, :, left], rows[:, :, right], u)
    if x.dtype.kind in "iu":
        mixed = np.floor(mixed + _F32(0.5))
    return [mixed.astype(x.dtype)]


def stored_weights(attributes: ResizeAttrs, table: tuple[Array, Array, Array]) -> Array:
    """The weights of `neighbours` as whole numbers, 0 where both neighbours are one pixel."""
    lower, upper, weight = table
    whole = np.rint(weight * _F32(1 << attributes.bits)).astype(np.int32)
    return np.asarray(np.where(lower == upper, np.int32(0), whole))


def _mix_stored(
    attributes: ResizeAttrs, stored: QuantizeAndDequantize, x: Array, height: int, width: int
) -> Array:
    rows = neighbours(attributes, x.shape[1], height)
    columns = neighbours(attributes, x.shape[2], width)
    v, u = (stored_weights(attributes, t).astype(np.int64) for t in (rows, columns))
    steps, one = steps_of(stored, x).astype(np.int64), 1 << attributes.bits
    lines = steps[:, rows[0]] * (one - v)[:, None, None] + steps[:, rows[1]] * v[:, None, None]
    mixed = lines[:, :, columns[0]] * (one - u)[:, None] + lines[:, :, columns[1]] * u[:, None]
    half = one * one // 2
    if attributes.fixed:  # halves away from zero
        found = np.sign(mixed) * ((np.abs(mixed) + half) // (one * one))
    else:
        found = (mixed + half) // (one * one)
    return np.asarray(found * _F32(stored.scale)).astype(x.dtype)


def _mix(a: Array, b: Array, weight: Array) -> Array:
    """Between ``a`` and ``b``. Where the weight is 0 ``b`` takes no part, infinite or not."""
    return np.asarray(np.where(weight == 0, a, a * (_F32(1) - weight) + b * weight))


def _fixed_neighbours(
    attributes: ResizeAttrs, size: int, wanted: int
) -> tuple[Array, Array, Array]:
    """As `neighbours`, in fixed point with 10 fractional bits, for signed integers."""
    if attributes.align_corners and wanted > 1:
        scale = ((size - 1 << 10) + (wanted - 1) // 2) // (wanted - 1)
    else:
        scale = ((size << 10) + wanted // 2) // wanted
    at = np.arange(wanted, dtype=np.int64) * scale
    if attributes.half_pixel_centers:
        at += scale // 2 - (1 << 9)
    lower = np.maximum(np.trunc(at / 1024), 0).astype(np.int64)
    upper = np.minimum(np.trunc((at + 1023) / 1024), size - 1).astype(np.int64)
    return lower, upper, at - (lower << 10)


def _fixed_point(attributes: ResizeAttrs, x: Array, height: int, width: int) -> Array:
    top, bottom, v = _fixed_neighbours(attributes, x.shape[1], height)
    left, right, u = _fixed_neighbours(attributes, x.shape[2], width)
    wide = x.astype(np.int64)
    v, u = v[:, None, None], u[:, None]
    above, below = wide[:, top], wide[:, bottom]
    mixed = (
        above[:, :, left] * (1024 - v) * (1024 - u)
        + below[:, :, left] * v * (1024 - u)
        + above[:, :, right] * (1024 - v) * u
        + below[:, :, right] * v * u
    )
    # Half of 2**20 away from zero, then division that truncates.
    half = np.where(mixed > 0, 1 << 19, -(1 << 19))
    return np.asarray(np.sign(mixed + half) * (np.abs(mixed + half) >> 20), x.dtype)


def _sample(
    id: str,
    shape: tuple[int, ...],
    size: tuple[int, int],
    corners: bool = False,
    centers: bool = False,
    dtype: DType = DType.F32,
) -> Sample:
    fields = {"align_corners": corners, "half_pixel_centers": centers}
    args = (Arg(shape, dtype, -100 if dtype is not DType.U8 else 0, 100), Arg.of(size, DType.I32))
    return Sample(id, fields, args, 3 if centers else 1, accumulates=4)


def _nearest_samples() -> list[Sample]:
    return [
        *_samples(),
        _sample("up_both", (1, 3, 5, 3), (7, 11), corners=True, centers=True),
        _sample("same_both", (1, 5, 7, 3), (5, 7), corners=True, centers=True),
        _sample("down_both", (1, 11, 13, 4), (3, 7), corners=True, centers=True),
    ]


def _samples() -> list[Sample]:
    sample = _sample
    return [
        sample("up", (1, 3, 5, 3), (7, 11)),
        sample("up_corners", (1, 3, 5, 3), (7, 11), corners=True),
        sample("up_centers", (1, 3, 5, 3), (7, 11), centers=True),
        sample("double", (2, 5, 7, 8), (10, 14)),
        sample("double_corners", (1, 5, 7, 5), (10, 14), corners=True),
        sample("double_centers", (1, 5, 7, 6), (10, 14), centers=True),
        sample("down", (1, 11, 13, 5), (3, 7)),
        sample("down_corners", (1, 11, 13, 4), (3, 7), corners=True),
        sample("down_centers", (2, 11, 13, 2), (3, 7), centers=True),
        sample("half_centers", (1, 10, 14, 3), (5, 7), centers=True),
        sample("same", (1, 5, 7, 3), (5, 7), centers=True),
        sample("one_pixel", (2, 1, 1, 5), (3, 7)),
        sample("one_pixel_centers", (1, 1, 1, 8), (5, 3), centers=True),
        sample("to_one", (1, 5, 7, 3), (1, 1), corners=True),
        sample("one_row", (1, 1, 7, 3), (5, 3), corners=True),
    ]


def _copies(node: Node) -> int | None:
    """An image of the same size: each pixel falls on itself, but with both flags, where halves are
    rounded up."""
    moved = node.attrs.align_corners and node.attrs.half_pixel_centers
    return 0 if node.input(0).shape == node.outputs[0].shape and not moved else None


def _as_stored(node: Node) -> ResizeAttrs | None:
    """The attributes that mix stored numbers."""
    (out,) = node.outputs
    if out.dtype not in QUANTIZED or node.input(0).dtype is not out.dtype or out.quant is None:
        return None
    stored = QuantizeAndDequantize.of_value(out)
    attributes: ResizeAttrs = node.attrs
    return attrs.evolve(attributes, stored=stored, fixed=out.dtype is DType.I16)


OPS = (
    OpDef(
        "RESIZE_BILINEAR", _parse_bilinear, _infer("RESIZE_BILINEAR"), _reference_bilinear,
        _samples, generate=draws.resize, accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=4, result_type=0), movement=Movement(copies=_copies),
        quantized=Quantized(one_scale=True, results=_as_stored), batch=each_row(0),
        positions=of_items
    ),
    OpDef(
        "RESIZE_NEAREST_NEIGHBOR", _parse, _infer("RESIZE_NEAREST_NEIGHBOR"), _reference_nearest,
        _nearest_samples, accuracy=Accuracy.EXACT, file=FileForm(max_version=4, result_type=0),
        movement=Movement(keeps_values=True, copies=_copies), batch=each_row(0), positions=of_items
    ),
)  # fmt: skip
