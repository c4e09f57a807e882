"""STABLEHLO_SCATTER: an invocation makes four elements of the result and looks through the updates
of each, row by row, so that every device gives the same result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_

from tflgpu.ir.graph import Node
from tflgpu.kernels.collect import MOST_LOOKS
from tflgpu.kernels.moves import channel_of, movable, position
from tflgpu.kernels.stablehlo_gather import fits_32_bits, start_of
from tflgpu.kernels.stablehlo_window import MERGES, wide
from tflgpu.language.tree import Expr
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import decompose
from tflgpu.ops.stablehlo_scatter import StablehloScatter


def _rows(node: Node) -> tuple[int, ...]:
    """The updates' dimensions that tell rows apart."""
    a: StablehloScatter = node.attrs
    return tuple(d for axis, d in enumerate(node.input(2).shape) if axis not in a.window)


def _scatter(low: Lowering) -> None:
    node = low.node
    a: StablehloScatter = node.attrs
    dims, updated = node.outputs[0].shape, node.input(2).shape
    box, rows = a.box(len(dims), updated), _rows(node)
    kept = [axis for axis in range(len(dims)) if axis not in a.inserted]
    last = len(dims) - 1
    # Four channels come from four, where each row has all of them.
    vector = (
        last in kept
        and last not in a.places
        and box[last] == dims[last]
        and a.window[-1] == len(updated) - 1
    )
    k = low.kernel("stablehlo_scatter")
    x, indices, updates = (low.read(k, i) for i in range(3))
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        lead = decompose(k, outer, dims[:-1])

        def update(
            own: Sequence[Expr], first: dict[int, Expr], row: Sequence[Expr]
        ) -> tuple[Expr, list[Expr]]:
            """The update of a row for an element, and under which conditions there is one."""
            inner: dict[int, Expr] = {}
            conditions: list[Expr] = []
            for axis, at in enumerate(own):
                there = k.let(at - first[axis], "there") if axis in first else at
                if axis in first or box[axis] < dims[axis]:
                    conditions += [there >= 0] * (axis in first) + [there < box[axis]]
                    there = k.clamp(there, 0, box[axis] - 1)
                inner[axis] = there
            if vector:
                inner[last] = k.i32(0)
            left, boxed = iter(row), iter([inner[axis] for axis in kept])
            place = [
                next(boxed) if axis in a.window else next(left) for axis in range(len(updated))
            ]
            if vector:
                return updates.load(position(place[:-1], updated[:-1]), slice_), conditions
            if not place:
                return updates.load_lane(0, 0), conditions
            return updates.load_lane(position(place[:-1], updated[:-1]), place[-1]), conditions

        def merged(
            value: Expr, own: Sequence[Expr], first: dict[int, Expr], row: Sequence[Expr]
        ) -> Expr:
            new, conditions = update(own, first, row)
            new = wide(k, new)
            if a.merge != "update":
                new = MERGES[a.merge](k, value, k.let(new, "new"))
            return k.select(reduce(and_, conditions), new, value) if conditions else new

        total = k.var(wide(k, x.load(outer, slice_)), "total")
        with k.loop(0, math.prod(rows), name="row") as number:
            row = decompose(k, number, rows) if rows else []
            first = {
                axis: k.let(start_of(indices, row, a.vector, column), "first")
                for column, axis in enumerate(a.places)
            }
            if vector:
                k.set(total, merged(total, [*lead, k.i32(0)], first, row))
            else:
                found = []
                for lane in range(4):
                    channel = channel_of(k, slice_, lane, dims[-1])
                    found.append(
                        k.let(merged(total.lane(lane), [*lead, channel], first, row), "lane")
                    )
                k.set(total, k.vec(found))
        out.store(outer, slice_, total)


def _accepts(node: Node, site: Site) -> str | None:
    a: StablehloScatter = node.attrs
    (out,) = node.outputs
    if not out.shape:
        return f"{node.op} makes a scalar"
    if not fits_32_bits(node.input(1)):
        return f"indices of {node.op} are {node.input(1).dtype.value}; i32 runs on the GPU"
    if a.merge == "update" and not a.rows_first(len(node.input(2).shape)):
        return (
            f"boxes of {node.op} come before the rows that they belong to: which is the last "
            "is not told"
        )
    looks = math.prod(_rows(node)) * (out.elements // out.shape[-1]) * -(-out.shape[-1] // 4)
    if looks > MOST_LOOKS:
        return (
            f"{node.op} has {math.prod(_rows(node))} rows for {out.elements} elements: the "
            "CPU is faster"
        )
    return movable(node, node.input(0), node.input(2), out)


RULES = (KernelRule("STABLEHLO_SCATTER", "collect", _scatter, _accepts),)
