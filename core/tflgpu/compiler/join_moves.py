"""A node that only moves whole vectors of a tensor joins the group that makes it: the store puts
each vector where it goes.

    FULLY_CONNECTED -> RESHAPE -> TRANSPOSE -> ...      one kernel, and no tensor in between

The node that moves has to be the only reader of the buffer. Joined nodes keep their order, those
that joined the moving node's own store come behind it, and the group runs where that node stood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.compiler.fuse import Group, Neighbours, buffers_of
from tflgpu.ir.graph import Node
from tflgpu.language.budget import MAX_CHAIN
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.place import place_of
from tflgpu.ops.moves import Moves
from tflgpu.values import frozen


@frozen
class JoinMoves:
    """The rule (`tflgpu.compiler.fuse`).

    Attributes:
        neighbours: All groups.
        moves_of: What a node does, where it only moves elements.
    """

    neighbours: Neighbours
    moves_of: Callable[[Node], Moves | None]

    def __call__(self, maker: Group, readers: Sequence[Group]) -> bool:
        """Let the reader of a group's result be one with it."""
        moving, made = readers[0], maker.result
        moves = None if moving.before else self.moves_of(moving.head)
        if moves is None or not maker.rule.fuses or len(maker.head.outputs) > 1:
            return False
        source, result = moving.head.input(moves.operand), moving.head.outputs[0]
        root = self.neighbours.root_of(source)
        alone = len(readers) == 1 and self.neighbours.reads(moving.nodes)[root.id] == 1
        place = place_of(moves, made.shape, result.shape)
        if not alone or root is not self.neighbours.root_of(made) or place is None:
            return False
        site, cost = self.neighbours.site_of(moving.head), maker.cost + place.cost + moving.cost
        buffers = buffers_of(maker, [f.node for f in moving.fused])
        same = result.dtype is made.dtype is root.dtype
        if not same or cost > MAX_CHAIN or buffers > site.caps.max_bindings:
            return False
        moving.begin_with(maker, FusedNode(moving.head, None, place=place), cost)
        return True
