"""STABLEHLO_REDUCE_WINDOW and REDUCE_WINDOW: an invocation goes over the windows of four
elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_

from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import channel_of, movable, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import decompose
from tflgpu.ops.stablehlo_window import windows_of_node

_LARGEST = 2**31 - 1

Merge = Callable[[Builder, Expr, Expr], Expr]

#: By the names of `ops.stablehlo_window.MERGES`; booleans are 0 or 1.
MERGES: Mapping[str, Merge] = {
    "add": lambda k, a, b: a + b,
    "multiply": lambda k, a, b: a * b,
    "minimum": lambda k, a, b: k.min(a, b),
    "maximum": lambda k, a, b: k.max(a, b),
    "all": lambda k, a, b: a & b,
    "any": lambda k, a, b: a | b,
}


def wide(k: Builder, value: Expr) -> Expr:
    """Floats in f32, so that sums keep their digits."""
    return k.cast(value, Scalar.F32) if value.type.is_float else value


def _windows(low: Lowering) -> None:
    node, merge = low.node, MERGES[low.attrs.merge]
    windows = windows_of_node(node)
    dims, shape = node.input(0).shape, node.outputs[0].shape
    last = len(dims) - 1
    # Four channels of one place, where windows do not reach from channel to channel.
    vector = (
        windows.size[last] == windows.strides[last] == windows.base[last] == 1
        and windows.low[last] == windows.high[last] == 0
    )
    k = low.kernel(node.op.lower())
    x = low.read(k, 0)
    start = k.let(wide(k, low.read(k, 1).load_lane(0, 0)), "start")
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        lead = decompose(k, outer, shape[:-1])

        def source(axis: int, at: Expr, tap: Expr) -> tuple[Expr, list[Expr]]:
            """The operand's index for a tap, inside it, and under which conditions there is one."""
            place = at * windows.strides[axis] + tap * windows.dilations[axis] - windows.low[axis]
            place = k.let(place, "place")
            base, end = windows.base[axis], (dims[axis] - 1) * windows.base[axis]
            highest = (shape[axis] - 1) * windows.strides[axis] - windows.low[axis]
            highest += (windows.size[axis] - 1) * windows.dilations[axis]
            conditions = [place >= 0] * (windows.low[axis] > 0) + [place <= end] * (highest > end)
            conditions += [(place % base).eq(0)] * (base > 1)
            return k.clamp(place, 0, end) // base if conditions else place, conditions

        def lanes(index: Sequence[Expr], taps: Sequence[Expr]) -> Expr:
            found = [source(axis, at, taps[axis]) for axis, at in enumerate(index)]
            own = [place for place, _ in found]
            conditions = [c for _, some in found for c in some]
            at = position(own[:last], dims[:last])
            value = wide(k, x.load(at, slice_) if vector else x.load_lane(at, own[-1]))
            first = k.splat(start, 4) if vector else start
            return k.select(reduce(and_, conditions), value, first) if conditions else value

        total = k.var(k.splat(start, 4), "total")
        with k.loop(0, math.prod(windows.size), name="tap") as tap:
            taps = decompose(k, tap, windows.size)
            if vector:
                value = lanes(lead, taps)
            else:
                channels = [channel_of(k, slice_, lane, shape[-1]) for lane in range(4)]
                value = k.vec([k.let(lanes([*lead, c], taps), "lane") for c in channels])
            k.set(total, merge(k, total, k.let(value, "value")))
        out.store(outer, slice_, total)


def _accepts(node: Node, site: Site) -> str | None:
    windows = windows_of_node(node)
    if max(*windows.strides, *windows.dilations) > _LARGEST:
        return f"strides or dilations of {node.op} are not numbers of 32 bits"
    return movable(node, node.input(0), node.input(1), *node.outputs)


RULES = tuple(
    KernelRule(op, "windows", _windows, _accepts)
    for op in ("STABLEHLO_REDUCE_WINDOW", "REDUCE_WINDOW")
)
