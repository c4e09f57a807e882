"""What normalizes or rounds rows becomes the beginning of the kernels that read them.

    RMS_NORMALIZATION(x) -> y, QUANTIZE_ON_THE_FLY(y) -> z, FULLY_CONNECTED(z) -> q, ... -> k

Each product's workgroups read x and make z of it (`tflgpu.lowering.row_change`): four kernels
become two, and the waits between them go. A tensor is made by all that read it, or by none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from tflgpu.compiler.fuse import Group
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.rule import Site


def join_row_changes(
    groups: Sequence[Group],
    root_of: Callable[[Value], Value],
    kept: Collection[Value],
    site_of: Callable[[Node], Site],
) -> list[Group]:
    """The groups that are left, in an order in which they can run; those that make rows change.

    Args:
        groups: In such an order.
        root_of: The value whose buffer a value lies in.
        kept: Values that must exist afterwards.
        site_of: Where each node runs; nodes of several precisions are not joined.
    """
    changes = [_change_of(group) for group in groups]
    if not any(changes):
        return list(groups)
    reads = [
        Counter(
            root_of(v).id for n in group.nodes for v in n.inputs if v is not None and not v.is_const
        )
        for group in groups
    ]
    kept_ids = {root_of(value).id for value in kept}
    # By the position of a group that is no more: those whose kernels make its rows.
    makers: dict[int, list[Group]] = {}

    def takes(at: int, result: int, change: RowChange, site: Site) -> bool:
        group, later = groups[at], changes[at]
        if site_of(group.head).precision is not site.precision or group.owners:
            return False
        if reads[at][result] != 1 or root_of(group.head.input(0)).id != result:
            return False
        if at in makers:  # rows are normalized before they are rounded
            assert later is not None
            follows = change.rounding is None and later.rounding is not None and not change.centred
            return follows and later.length == change.length
        return group.rule.takes_rows(group.head, change, site)

    for at in reversed(range(len(groups))):
        group, change = groups[at], changes[at]
        result = root_of(group.result).id
        readers = [i for i, read in enumerate(reads) if read[result]]
        if change is None or result in kept_ids or not readers:
            continue
        if change.centred and group.inlined:  # too much for each of many workgroups
            continue
        if all(takes(i, result, change, site_of(group.head)) for i in readers):
            makers[at] = [m for i in readers for m in makers.get(i, [groups[i]])]
            for maker in makers[at]:
                maker.inlined.insert(0, group)
    return [group for at, group in enumerate(groups) if at not in makers]


def _change_of(group: Group) -> RowChange | None:
    """What a group makes of rows, where that is all that it does."""
    more = group.fused or group.before or group.rule.owner or group.rule.pointwise
    return None if more else group.rule.row_change(group.head)
