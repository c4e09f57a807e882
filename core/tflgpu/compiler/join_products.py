"""Products of one input become one kernel: where they meet, and where they do not.

    FULLY_CONNECTED(x) -> g, LOGISTIC(g), MUL -> s;  FULLY_CONNECTED(x) -> u, MUL(u, s)      one

The second product's store reads what the first one makes, so that it has to wait for it. A kernel
that reads the weights of both for the same outputs has both results at hand, and reads x once.

    FULLY_CONNECTED(x) -> q;  FULLY_CONNECTED(x) -> k;  FULLY_CONNECTED(x) -> v      one kernel

It reads x once, and a device has more to do at once. Each result keeps a buffer and a chain of its
own: a store goes to the result that has the output. The kernel runs where the first of them stood,
so whatever the others' chains read has to exist by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.fuse import Group, Neighbours, buffers_of
from tflgpu.language.budget import MAX_CHAIN

_MOST = 3


def join_products(neighbours: Neighbours, maker: Group, readers: Sequence[Group]) -> bool:
    """The rule (`tflgpu.compiler.fuse`): let the only reader of a product's result, a product
    whose chain reads it, make it."""
    group, (key, *_) = readers[0], neighbours.results(maker)
    by_chain = neighbours.reads(f.node for f in group.fused)[key]
    site = neighbours.site_of(group.head)
    fits = (
        len(readers) == 1 and by_chain == neighbours.reads(group.nodes)[key] and _meet(group, maker)
    )
    if not fits or not group.rule.beside(group.head, maker.head, site):
        return False
    group.inlined.append(maker)
    group.cost += maker.cost
    return True


def _meet(group: Group, maker: Group) -> bool:
    """Whether two groups read the same, and have results of the same shape, vector by vector."""
    both = (*group.fused, *maker.fused)
    rows = [each for each in group.inlined if each.rule != group.rule]
    return (
        maker.rule == group.rule
        and not group.owners | maker.owners
        and not (group.before or maker.before)
        and all(f.place is None for f in both)
        and rows == maker.inlined
        and len(group.inlined) - len(rows) < _MOST - 1
        and group.head.input(0) is maker.head.input(0)
        and group.head.outputs[0].shape == maker.result.shape
        and group.cost + maker.cost <= MAX_CHAIN
    )


def stack_products(neighbours: Neighbours) -> None:
    """Let the first product of each input make the others'."""
    groups = neighbours.groups
    made = {root: at for at, group in enumerate(groups) for root in neighbours.results(group)}
    for at, group in enumerate(groups):
        if made[neighbours.results(group)[0]] < at:
            continue
        for other in [g for r in neighbours.reads([group.head]) for g in neighbours.reading(r)]:
            results, read = neighbours.results(other), neighbours.reads(other.nodes)
            exists = all(made.get(each, -1) < at for each in read)
            if exists and made[results[0]] > at and _may_stack(neighbours, group, other):
                made.update(dict.fromkeys(results, at))
                group.stacked.append(other)
                group.cost += other.cost
                neighbours.replace(other, [group])


def _may_stack(neighbours: Neighbours, group: Group, other: Group) -> bool:
    """Whether one kernel can make two products, with what joined them."""
    site = neighbours.site_of(group.head)
    chains = [f.node for g in (*group.stacked, other) for f in g.fused]
    buffers = buffers_of(group, chains) + len(group.stacked) + 1
    makes_rows = any(not each.rule.pointwise for each in group.inlined)
    return (
        group.rule == other.rule
        and group.head.input(0) is other.head.input(0)
        and not group.owners | other.owners
        and not any(each.rule == group.rule for g in (group, other) for each in g.inlined)
        and neighbours.site_of(other.head).precision is site.precision
        and group.cost + other.cost <= MAX_CHAIN
        and buffers <= site.caps.max_bindings
        and group.rule.stacks(group.head, other.head, site, makes_rows)
    )
