"""TRANSPOSE_CONV and Convolution2DTransposeBias: every output pixel gathers its products.

Along an axis of stride s, output position p (counted from before the padding) is reached by the
taps i with i = p (mod s), from input position (p - i) / s: ceil(kernel / s) taps at most, and no
others are looked at. An invocation makes four channels of a few pixels that are s apart: these
have the same taps, so that weights are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tflgpu.ir.graph import Node
from tflgpu.ir.stored_reals import ConstantData
from tflgpu.kernels.activation import activate
from tflgpu.kernels.gemm import pack_weights
from tflgpu.kernels.operands import pixels_per_invocation, read_bias
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import launch, spread
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, Site
from tflgpu.ops.transpose_conv import ROLES, scatter_of

# More taps than these are walked by loops in the kernel.
_MAX_UNROLLED = 9

#: (tap, input slice, values of four input channels per pixel, sums per pixel): adds products.
_Multiply = Callable[[Expr, Expr, list[Expr], list[Variable]], None]


def _multiply_const(low: Lowering, k: Builder, weights: ConstantData, slice_: Expr) -> _Multiply:
    packed = pack_weights(weights)  # [tap, input slice, lane of it, output slice, lane of it]
    _, in_slices, _, out_slices, _ = packed.shape
    buffer = low.weights(k, packed)

    def multiply(tap: Expr, s: Expr, values: list[Expr], sums: list[Variable]) -> None:
        base = k.let((tap * in_slices + s) * (4 * out_slices) + slice_, "w0")
        for lane in range(4):
            weight = k.let(k.load(buffer, base + lane * out_slices, Scalar.F32), "w")
            for total, value in zip(sums, values, strict=True):
                k.fma_to(total, value.lane(lane), weight)

    return multiply


def _multiply_runtime(
    low: Lowering, k: Builder, index: int, shape: tuple[int, ...], slice_: Expr
) -> _Multiply:
    weights = low.read(k, index)
    outs, height, width, _ = shape
    rows = [
        k.let(k.min(slice_ * 4 + lane, outs - 1) * (height * width), "out") for lane in range(4)
    ]

    def multiply(tap: Expr, s: Expr, values: list[Expr], sums: list[Variable]) -> None:
        loaded = [k.let(k.cast(weights.load(row + tap, s), Scalar.F32), "w") for row in rows]
        for total, value in zip(sums, values, strict=True):
            k.add_to(total, k.vec([k.dot(value, weight) for weight in loaded]))

    return multiply


def _hits(
    k: Builder, start: Expr, turn: Operand, stride: int, taps: int, size: int
) -> tuple[Expr, Expr, Expr]:
    """The ``turn``-th tap that reaches output position ``start``: the tap, the input position
    it comes from (kept inside), and whether there is such a tap and such a position."""
    tap = k.let(start % stride + turn * stride, "tap")
    at = k.let(start // stride - turn, "from")
    return tap, k.clamp(at, 0, size - 1), (tap < taps) & (at >= 0) & (at < size)


def _turns(k: Builder, count: int, unrolled: bool) -> Iterator[Operand]:
    """0 to ``count``, as numbers, or as the index of a loop in the kernel."""
    if unrolled:
        yield from range(count)
        return
    with k.loop(0, count, name="turn") as turn:
        yield turn


def build_transpose_conv(low: Lowering) -> None:
    """The kernel, for a filter that is constant or not."""
    node, attributes = low.node, low.attrs
    roles, place = ROLES[node.op], scatter_of(node)
    _, height, width, _ = node.input(roles.source).shape
    filters = node.input(roles.weights)
    batch, out_h, out_w, outs = node.outputs[0].shape
    stride_h, stride_w = attributes.stride_h, attributes.stride_w
    slices, rows = -(-outs // 4), batch * out_h
    pixels = pixels_per_invocation(low.caps, rows * out_w * slices, -(-out_w // stride_w))
    span = pixels * stride_w  # columns of one block: stride_w invocations of `pixels` each
    lines = -(-out_w // span) * stride_w

    k = low.kernel("transpose_conv")
    src = low.read(k, roles.source)
    i = spread(low, k, lines * slices * rows)
    slice_ = k.let(i % slices, "slice")
    place_of = k.let(i // slices, "place")
    line, row = k.let(place_of % lines, "line"), k.let(place_of // lines, "row")
    multiply = (
        _multiply_runtime(low, k, roles.weights, filters.shape, slice_)
        if filters.contents is None
        else _multiply_const(low, k, filters.contents, slice_)
    )
    bias = read_bias(low, k, roles.bias, outs)
    out = low.write(k)
    x0 = k.let(line // stride_w * span + line % stride_w, "x")
    start_y = k.let(row % out_h + place.pad_top, "py")
    image = k.let(row // out_h * height, "image")
    start_x = [k.let(x0 + (p * stride_w + place.pad_left), "px") for p in range(pixels)]
    offset = k.let(bias(slice_), "b")
    sums = [k.var(offset, "acc") for _ in range(pixels)]
    turns_y, turns_x = -(-place.kernel_h // stride_h), -(-place.kernel_w // stride_w)
    unrolled = turns_y * turns_x <= _MAX_UNROLLED
    for turn_y in _turns(k, turns_y, unrolled):
        tap_y, y, hit_y = _hits(k, start_y, turn_y, stride_h, place.kernel_h, height)
        with k.if_(hit_y):
            base = k.let((image + y) * width, "base")
            for turn_x in _turns(k, turns_x, unrolled):
                found = [
                    _hits(k, start, turn_x, stride_w, place.kernel_w, width) for start in start_x
                ]
                # All pixels of an invocation have the same tap, if it exists at all.
                tap_x = found[0][0]
                with k.if_(tap_x < place.kernel_w):
                    tap = k.let(tap_y * place.kernel_w + tap_x, "tap")
                    ats = [k.let(base + x, "at") for _, x, _ in found]
                    hits = [k.let(hit, "hit") for _, _, hit in found]
                    # A pixel that the tap does not reach reads some other input. Its products are
                    # dropped as a whole: a zero in place of that input would meet an infinite
                    # weight.
                    products = [k.var(k.f32(0.0, 4), "products") for _ in sums]
                    with k.loop(0, src.slices, name="s") as s:
                        values = [k.let(k.cast(src.load(at, s), Scalar.F32), "v") for at in ats]
                        multiply(tap, s, values, products)
                    for total, product, hit in zip(sums, products, hits, strict=True):
                        k.set(total, k.select(hit, total + product, total))
    for p, total in enumerate(sums):
        x = k.let(x0 + p * stride_w, "to")
        with k.if_(x < out_w):
            out.store(
                k.let(row * out_w + x, "pixel"), slice_, activate(k, attributes.activation, total)
            )
    launch(low, k, lines * slices * rows)


def _accepts(node: Node, site: Site) -> str | None:
    roles = ROLES[node.op]
    for index, what in ((roles.source, "input"), (roles.weights, "filter"), (roles.bias, "bias")):
        value = node.optional_input(index)
        if value is not None and value.dtype not in FLOATS:
            return f"{node.op}: the {what} is {value.dtype.value}; its kernel takes floats"
    return None


RULES = tuple(KernelRule(op, "gather", build_transpose_conv, _accepts) for op in ROLES)
