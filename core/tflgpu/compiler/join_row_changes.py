"""What normalizes or rounds rows becomes the beginning of the kernels that read them.

    RMS_NORMALIZATION(x) -> y, QUANTIZE_ON_THE_FLY(y) -> z, FULLY_CONNECTED(z) -> q, ... -> k

Each product's workgroups read x and make z of it (`tflgpu.lowering.row_change`): four kernels
become two, and the waits between them go. The walk goes backwards, so that what rounds rows has
joined the products when it comes to what normalizes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.lowering.row_change import RowChange


def join_row_changes(neighbours: Neighbours, group: Group, readers: Sequence[Group]) -> bool:
    """The rule (`tflgpu.compiler.fuse`): let products make the rows that they read."""
    change, (result, *_) = change_of(group), neighbours.results(group)
    if change is None or not all(_takes(neighbours, each, result, change) for each in readers):
        return False
    if change.centred and group.inlined:  # by many workgroups, each of which would compute it all
        return False
    for reader in readers:
        reader.inlined.insert(0, group)
    return True


def _takes(neighbours: Neighbours, reader: Group, result: int, change: RowChange) -> bool:
    """Whether a reader makes the rows of the tensor that lies in a buffer."""
    first = next((each for each in reader.inlined if change_of(each)), None)
    head, reads = (first or reader).head, neighbours.reads(reader.nodes)[result]
    source = head.input(0)  # a shape, of a transposed convolution
    if reader.owners or reads != 1 or source.is_const or neighbours.root_of(source).id != result:
        return False
    later = change_of(first) if first else None
    if later is None:
        return reader.rule.takes_rows(head, change, neighbours.site_of(head))
    # Rows are normalized before they are rounded.
    follows = change.rounding is None and later.rounding is not None and not change.centred
    return follows and later.length == change.length


def change_of(group: Group) -> RowChange | None:
    """What a group makes of rows, where that is all that it does."""
    more = group.fused or group.before or group.rule.owner or group.rule.pointwise
    return None if more else group.rule.row_change(group.head)
