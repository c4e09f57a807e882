"""Products of one input whose results meet in the store of one of them become one kernel.

    FULLY_CONNECTED(x) -> g, LOGISTIC(g), MUL -> s;  FULLY_CONNECTED(x) -> u, MUL(u, s)      one

The second product's store reads what the first one makes, so that it has to wait for it. A kernel
that reads the weights of both for the same outputs has both results at hand, and reads x once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from tflgpu.compiler.fuse import Group
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_CHAIN
from tflgpu.lowering.rule import Site

_MOST = 3


def join_products(
    groups: Sequence[Group],
    root_of: Callable[[Value], Value],
    kept: Collection[Value],
    site_of: Callable[[Node], Site],
) -> list[Group]:
    """The groups that are left, in an order in which they can run; those that make others' products
    change. Arguments as those of `join_row_changes`."""
    reads = Counter(
        root_of(v).id
        for group in groups
        for node in group.own_nodes
        for v in node.inputs
        if v is not None and not v.is_const
    )
    reads.update(root_of(value).id for value in kept)
    makers = {root_of(group.result).id: group for group in groups}
    gone: set[int] = set()
    for group in groups:
        given = [v for f in group.fused for v in f.node.inputs if v is not None]
        operands = [root_of(v).id for v in given if not v.is_const]
        for key, count in Counter(operands).items():
            maker = makers.get(key)
            if maker is None or maker is group or count != reads[key]:
                continue
            site = site_of(group.head)
            same = site_of(maker.head).precision is site.precision and maker.rule == group.rule
            if same and _fit(group, maker) and group.rule.beside(group.head, maker.head, site):
                group.inlined.append(maker)
                group.cost += maker.cost
                gone.add(id(maker))
    return [group for group in groups if id(group) not in gone]


def _fit(group: Group, maker: Group) -> bool:
    """Whether two groups read the same, and have results of the same shape, vector by vector."""
    both = (*group.fused, *maker.fused)
    rows = [each for each in group.inlined if each.rule != group.rule]
    return (
        not group.owners | maker.owners
        and not (group.before or maker.before)
        and all(f.place is None for f in both)
        and rows == maker.inlined
        and len(group.inlined) - len(rows) < _MOST - 1
        and group.head.input(0) is maker.head.input(0)
        and group.head.outputs[0].shape == maker.result.shape
        and group.cost + maker.cost <= MAX_CHAIN
    )
