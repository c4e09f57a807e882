"""What outlives a run: resource variables, and which subgraphs have had their one run.

An interpreter has one store. All its subgraphs share it, as LiteRT's do, and neither a resize nor an
allocation touches it.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.errors import StateError
from tflgpu.ir.brief import quoted
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape


@attrs.frozen
class Handle:
    """What a resource tensor holds: the name of a variable, the same in every subgraph."""

    container: str
    name: str

    def __str__(self) -> str:
        inside = f" of container {quoted(self.container)}" if self.container else ""
        return f"variable {quoted(self.name)}{inside}"


#: By state tensor of a subgraph: the array of the session that ran last with it.
States = dict[int, Array]
Snapshot = tuple[dict[Handle, Array], frozenset[int], list[tuple[Array, Array]]]


class Store:
    """Variables by name. Arrays in it are replaced, never written to, so that whoever read one before
    an assignment keeps what was there."""

    def __init__(self) -> None:
        self._states: dict[int, States] = {}
        self._arrays: dict[Handle, Array] = {}
        self._called: set[int] = set()

    def shape(self, handle: Handle) -> Shape | None:
        """The shape that a variable was last given; None before the first assignment."""
        array = self._arrays.get(handle)
        return None if array is None else array.shape

    def read(self, handle: Handle, dtype: DType) -> Array:
        """What was assigned last.

        Raises:
            StateError: nothing was, or it is of another type.
        """
        array = self._arrays.get(handle)
        if array is None:
            raise StateError(
                f"{handle} is read before anything was assigned to it; a model that keeps state sets "
                "it in a subgraph that CALL_ONCE runs, or in a signature that has to be run first"
            )
        if array.dtype != dtype.numpy:
            raise StateError(f"{handle} holds {array.dtype}, and is read as {dtype.value}")
        return array

    def assign(self, handle: Handle, array: Array) -> None:
        """Keep a copy, of whatever shape."""
        kept = np.array(array)
        kept.setflags(write=False)
        self._arrays[handle] = kept

    def states(self, subgraph: int) -> States:
        """State tensors of a subgraph's operators, which sessions of it hand to each other."""
        return self._states.setdefault(subgraph, {})

    def forget_states(self) -> None:
        """Let state tensors begin with zeros, as after `allocate_tensors` in TFLite."""
        for states in self._states.values():
            states.clear()

    def first_call(self, subgraph: int) -> bool:
        """Whether a subgraph has not had its one run. It has, from now on."""
        if subgraph in self._called:
            return False
        self._called.add(subgraph)
        return True

    def reset(self) -> None:
        """As after loading: nothing assigned, nothing called."""
        self._arrays.clear()
        self._called.clear()
        for states in self._states.values():
            for array in states.values():
                array[...] = 0

    def snapshot(self) -> Snapshot:
        """What `restore` brings back."""
        states = [a for found in self._states.values() for a in found.values()]
        return dict(self._arrays), frozenset(self._called), [(a, a.copy()) for a in states]

    def restore(self, before: Snapshot) -> None:
        """Forget what happened since a snapshot."""
        self._arrays, self._called = dict(before[0]), set(before[1])
        known = {id(array) for array, _ in before[2]}
        for states in self._states.values():
            for array in states.values():
                if id(array) not in known:  # first run in the run that failed
                    array[...] = 0
        for array, contents in before[2]:
            np.copyto(array, contents)
