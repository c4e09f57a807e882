"""A stretch of a subgraph: steps that need no further knowledge, and what comes after them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import attrs

from tflgpu.flow.cut import Known
from tflgpu.flow.dynamic import Dynamic
from tflgpu.flow.pieces import Piece
from tflgpu.flow.store import Handle
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape

#: What a subgraph is given or gives: an array, or what a resource tensor holds.
Given = Array | Handle
Env = dict[int, Any]
Step = Callable[[Env], None]
#: Shapes of arrays, None for one that only a run tells, and handles as they are.
Told = Shape | Handle | None


@runtime_checkable
class Compiling(Protocol):
    """A step that has compiled pieces of its own."""

    def pieces(self) -> list[Piece]:
        """Them."""
        ...


@attrs.define(eq=False)
class Stretch:
    """Steps, and what comes after them.

    Attributes:
        steps: In order.
        constants: What need not be computed, by tensor.
        known: At its end.
        awaited: Tensors whose shapes say what follows; or ``dynamic``, an operator whose operands'
            contents do. Neither at the end of the subgraph.
        after: What followed, by what came, the latest last.
        misses: How often something was planned here.
        holds: Inputs of the subgraph that must not be changed by the pieces in it, because they are
            read by something else than the first of them.
    """

    known: Known
    steps: list[Step] = attrs.Factory(list)
    constants: dict[int, Any] = attrs.Factory(dict)
    awaited: tuple[int, ...] = ()
    dynamic: Dynamic | None = None
    after: OrderedDict[Any, Stretch] = attrs.Factory(OrderedDict)
    misses: int = 0
    holds: frozenset[int] = frozenset()

    @property
    def is_last(self) -> bool:
        """Whether the subgraph ends with it."""
        return not self.awaited and self.dynamic is None

    def pieces(self) -> list[Piece]:
        """Its compiled pieces, and those of all that followed it."""
        steps: list[object] = list(self.all_steps())
        return [piece for s in steps if isinstance(s, Compiling) for piece in s.pieces()]

    def all_steps(self) -> list[Step]:
        """Its steps, and those of all that followed it."""
        return self.steps + [step for s in self.after.values() for step in s.all_steps()]

    def close(self) -> None:
        """Release the pieces."""
        for piece in self.pieces():
            piece.close()


def told(known: Known, index: int, data: Array | None = None) -> Told:
    """What is known of a tensor beforehand."""
    if index in known.handles:
        return known.handles[index]
    if index in known.constants:
        return known.constants[index].shape
    return known.shapes.get(index) if data is None else data.shape
