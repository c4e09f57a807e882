"""CONV_2D: how input pixels are found, and which kernels there are.

one product, or several    the rules of `products.py`
other groups               one invocation per few pixels and a slice    grouped.py
filter known only at run   one invocation per pixel and slice           here
"""

from __future__ import annotations

from collections.abc import Iterator

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.gemm import (
    Finish,
    Gather,
    Loads,
    Problem,
    gather_by_slice,
    mirrored,
    pack_bias,
    pack_weights,
)
from tflgpu.kernels.grouped import build_grouped
from tflgpu.kernels.products import Family, ProductSize
from tflgpu.kernels.window_places import window_corner
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import Window, conv_window


def finish_with(activation: Activation) -> Finish:
    """A function that applies the op's activation to a finished sum."""

    def finish(k: Builder, value: Expr) -> Expr:
        return activate(k, activation, value)

    return finish


def slice_of(k: Builder, base: Expr, at: Operand, slices: int, step: int) -> tuple[Expr, Expr]:
    """The input slice ``base + at`` of a pixel that has ``slices``, and whether it exists; where
    not, one that does. ``base`` is a multiple of ``step``, and ``at`` is below it."""
    if slices % step == 0:
        return k.let(k.min(base, slices - step) + at, "q"), base < slices
    q = k.let(base + at, "q")
    return k.let(k.min(q, slices - 1), "slice"), q < slices


def gather_window(
    shape: tuple[int, ...], window: Window, first: int = 0, turn: int | None = None
) -> Gather:
    """Loads of input slices under a window sliding over an NHWC tensor of ``shape``, of whose
    channels those from slice ``first`` on are read, so many as the shape says. Outside are zeros,
    or the image mirrored (`mirrored`)."""
    _, height, width, channels = shape
    slices = -(-channels // 4)
    taps = window.kernel_h * window.kernel_w
    pointwise = (
        taps == 1
        and (window.stride_h, window.stride_w) == (1, 1)
        and (window.out_h, window.out_w) == (height, width)
        and (window.pad_top, window.pad_left) == (0, 0)
    )

    def at_pixel(k: Builder, src: ReadView, row: Expr, step: int) -> Loads:
        def load_same(base: Expr, at: Operand) -> tuple[Expr, Expr]:
            slice_, inside = slice_of(k, base, at, slices, step)
            return src.load(row, k.let(first + slice_, "slice")), inside

        if pointwise:
            return load_same
        y0, x0, image = window_corner(k, window, shape, row)

        def load(base: Expr, at: Operand) -> tuple[Expr, Expr]:
            if slices % step == 0:  # a stage is of one tap
                tap, slice_ = k.let(base // slices, "tap"), k.let(base % slices + at, "at")
            else:
                q = k.let(base + at, "q")
                tap, slice_ = k.let(q // slices, "tap"), k.let(q % slices, "at")
            iy = k.let(y0 + tap // window.kernel_w * window.dilation_h, "iy")
            ix = k.let(x0 + tap % window.kernel_w * window.dilation_w, "ix")
            inside = tap < taps
            if turn is None:
                inside = (iy >= 0) & (iy < height) & (ix >= 0) & (ix < width) & inside
            else:
                iy, ix = mirrored(k, iy, height, turn), mirrored(k, ix, width, turn)
            position = k.clamp(iy, 0, height - 1) * width + k.clamp(ix, 0, width - 1)
            outer = k.let(image + position, "outer")
            return src.load(outer, k.let(first + slice_, "slice")), inside

        return load

    return at_pixel


def _groups(node: Node) -> int:
    return int(node.input(0).shape[3] // node.input(1).shape[3])


def conv_problem(low: Lowering, group: int = 0, turn: int | None = None) -> Problem:
    """One group of a convolution with a constant filter as a product. Where there are more, the
    channels of each fill whole slices. ``turn`` is that of `gather_window`."""
    node = low.node
    bias_value = node.optional_input(2)
    bias = None if bias_value is None else bias_value.data
    window = conv_window(node)
    shape = (*node.input(0).shape[:3], node.input(1).shape[3])
    channels = node.input(1).shape[0] // _groups(node)
    mine = slice(group * channels, (group + 1) * channels)
    weights = node.contents(1) if _groups(node) == 1 else node.const(1)[mine]
    pixels = shape[0] * window.out_h * window.out_w
    in_pairs = shape[3] % 8 == 0
    is_local = _groups(node) == 1 and window.kernel_h * window.kernel_w > 1
    return Problem(
        pixels,
        channels,
        window.kernel_h * window.kernel_w * -(-shape[3] // 4),
        pack_weights(weights),
        pack_bias(None if bias is None else bias.reshape(-1)[mine], channels),  # of any rank
        gather_window(shape, window, group * shape[3] // 4, turn),
        finish_with(low.attrs.activation),
        group * channels // 4,
        in_pairs,
        window if is_local else None,
        turn,
    )


def product_size(node: Node, site: Site) -> ProductSize:
    """The sizes of a convolution's products."""
    groups, (outs, height, width, inner) = _groups(node), node.input(1).shape
    per_group, tuning = outs // groups, tuning_of(site.caps)
    separable = (
        groups <= tuning.most_groups
        and min(inner, per_group) >= tuning.wide
        and inner % 4 == per_group % 4 == 0
    )
    window = conv_window(node)
    rows = node.input(0).shape[0] * window.out_h * window.out_w
    return ProductSize(rows, height * width * -(-inner // 4), groups, separable)


def _problems(low: Lowering) -> Iterator[Problem]:
    for group in range(_groups(low.node)):
        yield conv_problem(low, group)


def constant_weights(node: Node, site: Site) -> str | None:
    """The reason for no where the weights or the bias are not known before the model runs."""
    for index, what in ((1, "filter"), (2, "bias")):
        value = node.optional_input(index)
        if value is not None and not value.is_const:
            return f"the {what} is not a constant"
    return floats_only(node, site)


def floats_only(node: Node, site: Site, first: int = 0) -> str | None:
    """The reason for no where an operand, from the ``first`` on, or a result is not a float."""
    for value in (*node.inputs[first:], *node.outputs):
        if value is not None and not value.dtype.is_float:
            return f"tensor {value.name} is {value.dtype.value}; floats run on the GPU"
    return None


def build_at_run_time(low: Lowering, name: str, pixels: Gather, taps: int = 1) -> None:
    """A product whose weights are computed by the model: no packing, so products are taken along
    the input channels, which is how an OHWI tensor lies."""
    k = low.kernel(name, (8, 8, 1))
    src, weights = low.read(k, 0), low.read(k, 1)
    bias = low.read(k, 2) if low.node.optional_input(2) is not None else None
    out = low.write(k)
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < out.slices, row < out.layout.outer)
    gather = gather_by_slice(pixels, k, src, row)
    sums = [k.var(k.f32(0.0), "acc") for _ in range(4)]
    channels = [k.let(k.min(column * 4 + lane, out.channels - 1), "channel") for lane in range(4)]
    slices = weights.slices
    with k.loop(0, taps, name="tap") as tap, k.loop(0, slices, name="s") as s:
        value = k.let(gather(k.let(tap * slices + s, "q")), "v")
        for acc, channel in zip(sums, channels, strict=True):
            weight = k.cast(weights.load(channel * taps + tap, s), Scalar.F32)
            k.add_to(acc, k.dot(value, weight))
    total: Expr = k.vec(sums)
    if bias is not None:
        total = total + k.cast(bias.load(0, column), Scalar.F32)
    out.store(row, column, activate(k, low.attrs.activation, k.let(total, "total")))
    low.dispatch(k, (out.slices, out.layout.outer, 1))


def build_runtime_filter(low: Lowering) -> None:
    """A convolution whose filter is computed by the model."""
    node, window = low.node, conv_window(low.node)
    pixels, taps = gather_window(node.input(0).shape, window), window.kernel_h * window.kernel_w
    build_at_run_time(low, f"{node.op.lower()}_runtime", pixels, taps)


def _accepts_runtime(node: Node, site: Site) -> str | None:
    if _groups(node) != 1:
        return "a grouped convolution needs a constant filter"
    return floats_only(node, site)


FAMILY = Family("CONV_2D", constant_weights, product_size, _problems)
RULES = (
    *FAMILY.rules(),
    KernelRule("CONV_2D", "grouped", build_grouped, constant_weights, rank=-4),
    KernelRule("CONV_2D", "runtime_filter", build_runtime_filter, _accepts_runtime, rank=-10),
)
