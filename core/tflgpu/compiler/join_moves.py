"""A node that only moves whole vectors of a tensor joins the group that makes it: the store puts
each vector where it goes.

    FULLY_CONNECTED -> RESHAPE -> TRANSPOSE -> ...      one kernel, and no tensor in between

A RESHAPE that moves nothing shares its operand's buffer by then, so readers are counted by buffers:
the node that moves has to be the only reader of the buffer, not only of the value. Joined nodes
keep their order, those that joined the moving node's own store come behind it, and the group runs
where that node stood.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tflgpu.compiler.fuse import Group, buffers_of
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_CHAIN
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.place import VectorPlace, place_of
from tflgpu.lowering.rule import Site
from tflgpu.ops.moves import Moves


def join_moves(
    groups: Sequence[Group],
    moves_of: Mapping[int, Moves],
    root_of: Callable[[Value], Value],
    kept: Collection[Value],
    site_of: Callable[[Node], Site],
) -> list[Group]:
    """The groups that are left, in an order in which they can run.

    Args:
        groups: In such an order; those that are joined are changed.
        moves_of: By ``id(group)``: what its head does, where that only moves elements.
        root_of: The value whose buffer a value lies in.
        kept: Values that must exist afterwards.
        site_of: Where each node runs; nodes of several precisions are not joined.
    """
    readers = Counter(
        root_of(value).id
        for group in groups
        for node in group.nodes
        for value in node.inputs
        if value is not None and not value.is_const
    )
    readers.update(root_of(value).id for value in kept)
    makers: dict[int, Group] = {}
    found: dict[int, Group] = {}
    for group in groups:
        joined = group
        moves = moves_of.get(id(group))
        if moves is not None:
            source = root_of(group.head.input(moves.operand))
            maker = makers.get(source.id)
            if maker is not None and readers[source.id] == 1:
                place = place_of(moves, maker.result.shape, group.head.outputs[0].shape)
                if place is not None and _fits(maker, group, place, source, site_of):
                    _join(maker, group, place)
                    del found[id(maker)]
                    joined = maker
        found[id(joined)] = joined
        if joined.rule.fuses and len(joined.head.outputs) == 1:
            makers[root_of(joined.result).id] = joined
    return list(found.values())


def _fits(
    maker: Group, moving: Group, place: VectorPlace, source: Value, site_of: Callable[[Node], Site]
) -> bool:
    site, result = site_of(moving.head), moving.head.outputs[0]
    after = [f.node for f in moving.fused]
    return (
        result.dtype is maker.result.dtype is source.dtype
        and site.precision is site_of(maker.head).precision
        and maker.cost + place.cost + moving.cost <= MAX_CHAIN
        and buffers_of(maker, after) <= site.caps.max_bindings
    )


def _join(maker: Group, moving: Group, place: VectorPlace) -> None:
    maker.fused += [FusedNode(moving.head, None, place=place), *moving.fused]
    maker.cost += place.cost + moving.cost
