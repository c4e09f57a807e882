"""CONV_2D of 1x1 and the DEPTHWISE_CONV_2D that reads it, as one kernel.

A workgroup makes four channels of a square of output pixels. It computes the 1x1 convolution of
all pixels that the square's windows see into shared memory, and takes the windows from there: the
tensor in between, in inverted residual blocks the largest one, is never written. In return, pixels
that two squares see are computed twice, and the input is read once for every four channels.

Whether that pays is a matter of measuring (`Tuning.joins_pointwise`), for all problems of a device
or for each by itself (`tflgpu.runtime.tuning`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.conv import constant_weights
from tflgpu.kernels.gemm import pack_bias, pack_weights
from tflgpu.kernels.sharing import items, maybe
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32x4, Scalar
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import GroupRule, Maker, Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.weights import Weights
from tflgpu.ops.windows import Window, conv_window

_SIDE = 8  # pixels of a square, along each axis
_THREADS = _SIDE * _SIDE
#: Larger windows see so many pixels of their neighbours that most of them would be computed twice.
_MOST_TAPS = 25


def joinable(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    """The two nodes, where one kernel can make them."""
    first = maker(node.input(0))
    if first is None or first.op != "CONV_2D":
        return None
    if constant_weights(first, site) or constant_weights(node, site):
        return None
    outs, height, width, inner = first.input(1).shape
    window, before = conv_window(node), conv_window(first)
    pointwise = (height, width, before.stride_h, before.stride_w) == (1, 1, 1, 1)
    whole = (
        first.input(0).shape[3] == inner
        and first.outputs[0].shape[1:3] == (first.input(0).shape[1:3])
    )
    if not (pointwise and whole and node.input(1).shape[3] == outs):
        return None
    if window.kernel_h * window.kernel_w > _MOST_TAPS:
        return None
    # Outside the image there are zeros, which are multiplied like all else.
    if not all(Weights(each.contents(1)).is_finite for each in (node, first)):
        return None
    seen_h, seen_w = _seen(window)
    fits = (
        16 * seen_h * seen_w <= site.caps.shared_bytes
        and min(site.caps.max_workgroup, site.caps.max_workgroup_size[0]) >= _THREADS
        and _squares(node, window) <= site.caps.max_groups[1]
    )
    return (first, node) if fits else None


def _match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    found = joinable(node, maker, site)
    pays = tuning_of(site.caps).joins_pointwise
    return found if found and site.joins("pointwise_depthwise", found, predicted=pays) else None


def _seen(window: Window) -> tuple[int, int]:
    """Rows and columns of what the windows of a square see."""
    return (
        (_SIDE - 1) * window.stride_h + (window.kernel_h - 1) * window.dilation_h + 1,
        (_SIDE - 1) * window.stride_w + (window.kernel_w - 1) * window.dilation_w + 1,
    )


def _squares(node: Node, window: Window) -> int:
    return int(node.input(0).shape[0]) * -(-window.out_h // _SIDE) * -(-window.out_w // _SIDE)


def build_joined(low: Lowering) -> None:
    """Write the kernel and dispatch it."""
    first, node = low.nodes
    window = conv_window(node)
    _, height, width, channels = first.outputs[0].shape
    seen_h, seen_w = _seen(window)
    down, across = -(-window.out_h // _SIDE), -(-window.out_w // _SIDE)
    slices = -(-channels // 4)

    k = low.kernel("pointwise_depthwise", (_THREADS, 1, 1))
    src = attrs.evolve(low.read_value(k, first.input(0), "src"), compute=Scalar.F32)
    weights = low.weights(k, pack_weights(first.contents(1)))
    taps = attrs.evolve(low.read_value(k, node.input(1), "taps"), compute=Scalar.F32)
    biases = []
    for each, name in ((first, "bias"), (node, "bias_after")):
        value = each.optional_input(2)
        given = None if value is None or value.data is None else value.data.reshape(-1)
        biases.append(low.weights(k, pack_bias(given, channels), name, scalar=Scalar.F32))
    out = low.write(k)

    lane, slice_ = k.let(k.local_id(0), "lane"), k.let(k.group_id(0), "slice")
    square = k.let(k.group_id(1), "square")
    place = k.let(square % (down * across), "place")
    batch = k.let(square // (down * across), "batch")
    first_y = k.let(place // across * _SIDE, "first_y")
    first_x = k.let(place % across * _SIDE, "first_x")
    top = k.let(first_y * window.stride_h - window.pad_top, "top")
    left = k.let(first_x * window.stride_w - window.pad_left, "left")
    between = k.shared("between", F32x4, seen_h * seen_w)
    offset = k.let(k.load(biases[0], slice_), "b")

    for item, there in items(k, lane, seen_h * seen_w, _THREADS):
        y, x = k.let(top + item // seen_w, "y"), k.let(left + item % seen_w, "x")
        inside = k.let((y >= 0) & (y < height) & (x >= 0) & (x < width), "inside")
        row = (batch * height + k.clamp(y, 0, height - 1)) * width + k.clamp(x, 0, width - 1)
        at = k.let(row, "at")
        total = k.var(offset, "acc")
        with k.loop(0, src.slices, name="s") as s:
            four = k.let(src.load(at, s), "v")
            base = k.let(s * (4 * slices) + slice_, "w0")
            for i in range(4):
                weight = k.let(k.load(weights, base + i * slices, Scalar.F32), "w")
                k.fma_to(total, four.lane(i), weight)
        made = k.let(activate(k, first.attrs.activation, total), "made")
        kept: Expr = k.let(k.select(inside, made, k.f32(0.0, 4)), "kept")
        maybe(
            k,
            there,
            lambda item=item, kept=kept: k.store_shared(between, item, kept),  # type: ignore[misc]
        )
    k.barrier()

    y, x = k.let(lane // _SIDE, "dy"), k.let(lane % _SIDE, "dx")
    result = k.var(k.load(biases[1], slice_), "sum")
    corner = k.let(y * window.stride_h * seen_w + x * window.stride_w, "corner")
    for tap_y in range(window.kernel_h):
        for tap_x in range(window.kernel_w):
            reach = tap_y * window.dilation_h * seen_w + tap_x * window.dilation_w
            weight = taps.load(tap_y * window.kernel_w + tap_x, slice_)
            k.fma_to(result, k.load_shared(between, corner + reach), k.let(weight, "t"))
    to_y, to_x = k.let(first_y + y, "to_y"), k.let(first_x + x, "to_x")
    with k.if_((to_y < window.out_h) & (to_x < window.out_w)):
        at = k.let((batch * window.out_h + to_y) * window.out_w + to_x, "to")
        out.store(at, slice_, activate(k, low.attrs.activation, result))
    low.dispatch_groups(k, (slices, _squares(node, window), 1))


RULES = (GroupRule("DEPTHWISE_CONV_2D", "after_pointwise", _match, build_joined),)
