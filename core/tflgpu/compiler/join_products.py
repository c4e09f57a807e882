"""Products of one input whose results meet in the store of one of them become one kernel.

    FULLY_CONNECTED(x) -> g, LOGISTIC(g), MUL -> s;  FULLY_CONNECTED(x) -> u, MUL(u, s)      one

The second product's store reads what the first one makes, so that it has to wait for it. A kernel
that reads the weights of both for the same outputs has both results at hand, and reads x once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.language.budget import MAX_CHAIN

_MOST = 3


def join_products(neighbours: Neighbours, maker: Group, readers: Sequence[Group]) -> bool:
    """The rule (`tflgpu.compiler.fuse`): let the only reader of a product's result, a product
    whose chain reads it, make it."""
    group, (key, *_) = readers[0], neighbours.results(maker)
    by_chain = neighbours.reads(f.node for f in group.fused)[key]
    site = neighbours.site_of(group.head)
    fits = (
        len(readers) == 1 and by_chain == neighbours.reads(group.nodes)[key] and _fit(group, maker)
    )
    if not fits or not group.rule.beside(group.head, maker.head, site):
        return False
    group.inlined.append(maker)
    group.cost += maker.cost
    return True


def _fit(group: Group, maker: Group) -> bool:
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
