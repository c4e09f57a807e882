"""The steps of a planned subgraph, and the values that one step hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from tflgpu.flow.cut import Known
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


class HostStep(Protocol):
    """An operator that the host runs, planned."""

    @property
    def results(self) -> tuple[Told, ...]:
        """Facts about the results that are known before a run."""

    def __call__(self, env: Env) -> None:
        """Run it."""


@runtime_checkable
class Compiling(Protocol):
    """A step that has compiled pieces of its own."""

    def pieces(self) -> list[Piece]:
        """Them."""


def key_of(given: Sequence[Given]) -> tuple[Told, ...]:
    """The shapes and handles of inputs, by which a subgraph's plans are kept."""
    return tuple([g if isinstance(g, Handle) else g.shape for g in given])


def told(known: Known, index: int, data: Array | None = None) -> Told:
    """Facts about a tensor that are known before a run."""
    if index in known.handles:
        return known.handles[index]
    if index in known.constants:
        return known.constants[index].shape
    return known.shapes.get(index) if data is None else data.shape
