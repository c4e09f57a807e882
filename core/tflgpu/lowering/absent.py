"""What kernels know of positions that do not count (`tflgpu.ir.absent`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.ir.absent import AbsentPositions
from tflgpu.ir.graph import Value
from tflgpu.values import frozen


@frozen
class AbsentInPart:
    """The positions that may not count, in a part.

    Attributes:
        positions: They.
        count: The part's input, i32 [1], that says how many do not.
        members: All tensors in the memory of one.
    """

    positions: AbsentPositions
    count: Value
    members: Callable[[Value], Sequence[Value]]

    @classmethod
    def of(
        cls,
        positions: AbsentPositions | None,
        inputs: Sequence[Value],
        members: Callable[[Value], Sequence[Value]],
    ) -> AbsentInPart | None:
        """Those in a part with these inputs; None where all positions count."""
        if positions is None:
            return None
        return cls(positions, next(v for v in inputs if v.id == positions.count), members)

    def axis_of(self, value: Value) -> int | None:
        """The axis of a tensor of the part at whose end they are; None where none is known of."""
        known = [(each.id, each.shape) for each in (value, *self.members(value))]
        return self.positions.axis_of(value.shape, known)


@frozen
class AbsentCount:
    """How many positions do not count, as a kernel reads it.

    Attributes:
        ends: The ids of tensors, once for each buffer, whose positions that do not count make no
            difference to the kernel, whatever they hold.
    """

    ends: tuple[int, ...]
