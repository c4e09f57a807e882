"""Where a store puts the vectors of a tensor when the next op only moves them.

    [1, tokens, 32] -> RESHAPE [1, tokens, 4, 8] -> TRANSPOSE [1, 4, tokens, 8]

Eight channels are two vectors of four, which stay together: the kernel that makes the first tensor
can store each vector where the last tensor has it. Nothing is computed; only the position changes.
"""

from __future__ import annotations

import math

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.layout import Shape
from tflgpu.ops.moves import Moves, merged, strides_of
from tflgpu.values import frozen

_LANES = 4


@frozen
class VectorPlace:
    """From a position in one tensor to that in another.

    Positions count rows where rows stay whole, else vectors of four.

    Attributes:
        sizes: Of the axes that a position is taken apart into, row-major.
        steps: How far apart neighbours along each are in the other tensor.
        slices: Vectors in a row of the one and of the other tensor; None where rows stay whole.
    """

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    slices: tuple[int, int] | None

    @property
    def cost(self) -> int:
        """The cost of the index arithmetic, in additions: two operations and a sum for each
        axis."""
        return 4 * (len(self.sizes) + 2)

    def of(self, k: Builder, outer: Expr, slice_: Expr) -> tuple[Expr, Expr]:
        """Where the vector at ``outer``, ``slice_`` goes."""
        rest = outer if self.slices is None else k.let(outer * self.slices[0] + slice_, "vector")
        position: Expr = k.i32(0)
        for at in reversed(range(len(self.sizes))):
            index = rest if at == 0 else k.let(rest % self.sizes[at], "d")
            rest = rest if at == 0 else k.let(rest // self.sizes[at], "q")
            position = position + index * self.steps[at]
        position = k.let(position, "place")
        if self.slices is None:
            return position, slice_
        row = self.slices[1]
        return k.let(position // row, "outer"), k.let(position % row, "slice")


def place_of(moves: Moves, source: Shape, result: Shape) -> VectorPlace | None:
    """Where vectors of ``source`` go in ``result``; None where some are taken apart, repeated or
    left out. ``source`` may be another shape of the operand's elements in the same order."""
    count = math.prod(source)
    if not source or not result or count == 0 or moves.offset or math.prod(result) != count:
        return None
    whole_rows = source[-1] == result[-1]
    unit = source[-1] if whole_rows else _LANES
    if source[-1] % unit or result[-1] % unit:
        return None
    found = merged(moves)
    # By the operand's order, each axis with its step in the result.
    axes = sorted(zip(found.strides, found.sizes, strides_of(found.sizes), strict=True))[::-1]
    *lead, (stride, size, step) = axes or [(1, 1, 1)]
    if (stride, step) != (1, 1) or size % unit:
        return None
    expected = size
    for apart, length, _ in reversed(lead):
        if apart != expected:
            return None
        expected *= length
    if expected != count:
        return None
    axes = [*lead] if size == unit else [*lead, (unit, size // unit, unit)]
    if any(far % unit for _, _, far in axes):
        return None
    slices = None if whole_rows else (source[-1] // _LANES, result[-1] // _LANES)
    return VectorPlace(
        tuple(length for _, length, _ in axes) or (1,),
        tuple(far // unit for _, _, far in axes) or (1,),
        slices,
    )
