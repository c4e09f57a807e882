"""AVERAGE_POOL_2D and MAX_POOL_2D, versions 1-3, and L2_POOL_2D, version 1.

Pixels in the padding do not take part: an average is over those inside the image.

Of tensors of 8 and of 16 bits TFLite's kernel averages the stored numbers, and a half goes away
from the stored 0, which is not where the real one is. The float view (`tflgpu.passes.float_view`)
lets the op do the same by `PoolAttrs.stored`. Source: TFLite's
`kernels/internal/reference/integer_ops/pooling.h`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.activation import fused_clamp
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Fields,
    FileForm,
    Movement,
    OnDevice,
    OpDef,
    Operands,
    Padding,
    Quantized,
    Sample,
)
from tflgpu.ops.elementwise import QUANTIZED, check_unscaled
from tflgpu.ops.facets import Work
from tflgpu.ops.fixed_point import clamp_limits
from tflgpu.ops.items import each_row
from tflgpu.ops.positions import of_items
from tflgpu.ops.products import finish, floats, needed, take
from tflgpu.ops.windows import (
    Window,
    WindowAttrs,
    pad_image,
    place,
    tap_view,
    trimmed,
)
from tflgpu.values import evolve, frozen

#: Of windows whose averages are those of stored numbers.
_MOST_TAPS = {DType.I8: (1 << 16) - 1, DType.U8: (1 << 16) - 1, DType.I16: 64}


@frozen
class StoredAverage:
    """How the operand and the result are stored, so that a real number is ``scale`` times a stored
    one less ``zero_point``; results are clamped to ``low`` and ``high``, which are stored
    numbers."""

    scale: float
    zero_point: int
    low: int
    high: int


@frozen(kw_only=True)
class PoolAttrs(WindowAttrs):
    """A pooling window; ``stored`` says that averages are those of stored numbers. No file has
    it."""

    filter_height: int
    filter_width: int
    stored: StoredAverage | None = None


def _parse(fields: Fields) -> PoolAttrs:
    return PoolAttrs(
        stride_h=fields.integer("stride_h", minimum=1),
        stride_w=fields.integer("stride_w", minimum=1),
        padding=fields.padding(),
        activation=fused_clamp(fields),
        filter_height=fields.integer("filter_height", minimum=1),
        filter_width=fields.integer("filter_width", minimum=1),
    )


def pool_window(node: Node) -> Window:
    """The window of a pooling node."""
    return _window(node.op, node.attrs, node.input(0).shape)


def _window(op: str, attributes: PoolAttrs, image: tuple[int, ...]) -> Window:
    window = place(op, attributes, image, (attributes.filter_height, attributes.filter_width))
    return trimmed(window, image[1], image[2])[0]


def _infer_for(op: str) -> Callable[[PoolAttrs, Operands], list[TensorSpec]]:
    def infer(attributes: PoolAttrs, operands: Operands) -> list[TensorSpec]:
        image = needed(op, take(op, operands, ("input",))[0], "input", 4, batch=1)
        window = _window(op, attributes, image.shape)
        batch, _, _, channels = image.shape
        return [TensorSpec((batch, window.out_h, window.out_w, channels), image.dtype)]

    return infer


def _fold(image: Array, window: Window, fill: float, combine: Callable[..., Array]) -> Array:
    """Combine what all taps see, for every output pixel."""
    padded = pad_image(image, window, fill)
    total = np.array(tap_view(padded, window, 0, 0))
    for i in range(window.kernel_h):
        for j in range(window.kernel_w):
            if i or j:
                combine(total, tap_view(padded, window, i, j), out=total)
    return total


def _counts(window: Window, height: int, width: int) -> Array:
    """Pixels of the image under the window, [out_h, out_w, 1]."""

    def along(count: int, stride: int, pad: int, taps: int, size: int) -> Array:
        start = np.arange(count) * stride - pad
        inside = np.minimum(start + taps, size) - np.maximum(start, 0)
        return np.asarray(np.maximum(inside, 1))  # a window wholly in the padding sums to zero

    rows = along(window.out_h, window.stride_h, window.pad_top, window.kernel_h, height)
    columns = along(window.out_w, window.stride_w, window.pad_left, window.kernel_w, width)
    return np.asarray((rows[:, None] * columns[None, :])[..., None], np.float32)


def _mean(image: Array, window: Window) -> Array:
    total = _fold(image, window, 0.0, np.add)
    total /= _counts(window, image.shape[1], image.shape[2])
    return total


def _stored_mean(image: Array, window: Window, stored: StoredAverage) -> Array:
    """The real numbers that the averages of stored ones stand for."""
    steps = np.floor(image * np.float32(1 / stored.scale) + np.float32(0.5)).astype(np.int64)
    taken = _counts(window, image.shape[1], image.shape[2]).astype(np.int64)
    total = _fold(steps, window, 0, np.add) + taken * stored.zero_point
    average = np.sign(total) * ((np.abs(total) + taken // 2) // taken)
    found = np.clip(average, stored.low, stored.high) - stored.zero_point
    return np.asarray(found * np.float32(stored.scale), np.float32)


def _max(image: Array, window: Window) -> Array:
    return _fold(image, window, -np.inf, np.maximum)


def _root_mean_square(image: Array, window: Window) -> Array:
    return np.asarray(np.sqrt(_mean(image * image, window)))


def _pool_plain(
    op: str, attributes: PoolAttrs, image: Array, compute: Callable[[Array, Window], Array]
) -> Array:
    """Of whole numbers of 8 and 16 bits that have no scale: TFLite's kernels need none, but for an
    activation."""
    if attributes.activation is not Activation.NONE:
        check_unscaled(op, image)
    window = _window(op, attributes, image.shape)
    if compute is _max:
        return _fold(image, window, np.iinfo(image.dtype).min, np.maximum)
    info = np.iinfo(image.dtype)
    alone = StoredAverage(1.0, 0, int(info.min), int(info.max))
    return _stored_mean(image.astype(np.float64), window, alone).astype(image.dtype)


def _reference_for(
    op: str, compute: Callable[[Array, Window], Array], *, plain: bool = False
) -> Callable[[PoolAttrs, Arrays], list[Array]]:
    def reference(attributes: PoolAttrs, arrays: Arrays) -> list[Array]:
        stored = present(arrays[0])
        if plain and DType.from_numpy(stored.dtype) in QUANTIZED:
            return [_pool_plain(op, attributes, stored, compute)]
        image = floats(op, stored)
        window = _window(op, attributes, image.shape)
        if attributes.stored is not None:
            pooled = _stored_mean(image, window, attributes.stored)
        else:
            pooled = compute(image, window)
        return [finish(pooled, None, attributes.activation, arrays[0])]

    return reference


def _case(
    id: str,
    image: tuple[int, int, int, int],
    kernel: tuple[int, int],
    *,
    stride: tuple[int, int] = (1, 1),
    padding: Padding = Padding.SAME,
    activation: Activation = Activation.NONE,
) -> Sample:
    fields = {
        "stride_h": stride[0],
        "stride_w": stride[1],
        "padding": padding.value,
        "filter_height": kernel[0],
        "filter_width": kernel[1],
        "fused_activation_function": activation.value,
    }
    return Sample(id, fields, (Arg(image, low=-8, high=8),), accumulates=kernel[0] * kernel[1])


def _samples() -> list[Sample]:
    valid = Padding.VALID
    return [
        _case("plain", (1, 7, 11, 5), (3, 3)),
        _case("halves", (1, 8, 6, 8), (2, 2), stride=(2, 2), padding=valid),
        _case("halves_odd", (2, 9, 7, 3), (2, 2), stride=(2, 2)),
        _case("valid", (1, 9, 7, 6), (3, 2), padding=valid, activation=Activation.RELU),
        _case("stride2", (1, 13, 11, 4), (3, 3), stride=(2, 2), activation=Activation.RELU6),
        _case("uneven", (1, 11, 5, 7), (5, 2), stride=(3, 1)),
        _case("global", (1, 7, 5, 13), (7, 5), padding=valid),
        _case("larger_than_image", (1, 3, 5, 2), (5, 7)),
        _case("one_pixel", (3, 1, 1, 9), (3, 3)),
        _case("pointwise_stride", (1, 5, 7, 6), (1, 1), stride=(2, 3)),
        _case("clamped", (1, 5, 3, 1), (2, 2), activation=Activation.RELU_N1_TO_1),
        _case("stride_over_size", (1, 3, 3, 5), (2, 2), stride=(5, 5)),
    ]


def _op(
    name: str,
    compute: Callable[[Array, Window], Array],
    accuracy: Accuracy,
    version: int,
    keeps_values: bool = False,
    one_scale: bool = True,
    results: Callable[[Node], Any] | None = None,
) -> OpDef:
    return OpDef(
        name,
        _parse,
        _infer_for(name),
        _reference_for(name, compute, plain=compute is not _root_mean_square),
        _samples,
        accuracy=accuracy,
        file=FileForm(max_version=version),
        arithmetic=Arithmetic(activation_field="activation"),
        movement=Movement(keeps_values=keeps_values),
        quantized=Quantized(one_scale=one_scale, results=results),
        device=OnDevice(work=_work),
        generate=draws.pool,
        batch=each_row(0),
        positions=of_items,
    )


def _work(node: Node) -> Work:
    window: PoolAttrs = node.attrs
    return Work.of(node, node.outputs[0].elements * window.filter_height * window.filter_width)


def _as_stored(node: Node) -> PoolAttrs | None:
    """The attributes that average as TFLite's kernel does."""
    (out,) = node.outputs
    taps = node.attrs.filter_height * node.attrs.filter_width
    # Sums of steps that f32 holds, and divides without reaching over a half.
    most = _MOST_TAPS.get(out.dtype, 0)
    if out.quant is None or taps > most:
        return None
    limits = clamp_limits(node.attrs.activation, out.quant, out.dtype)
    if isinstance(limits, str):
        return None
    stored = StoredAverage(out.quant.scale[0], out.quant.zero_point[0], *limits)
    window: PoolAttrs = node.attrs
    return evolve(window, activation=Activation.NONE, stored=stored)


OPS = (
    _op("AVERAGE_POOL_2D", _mean, Accuracy.ACCUMULATE, 3, results=_as_stored),
    _op("MAX_POOL_2D", _max, Accuracy.ROUNDED, 3, keeps_values=True),
    _op("L2_POOL_2D", _root_mean_square, Accuracy.ACCUMULATE, 1, one_scale=False),
)
