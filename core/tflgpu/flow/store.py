"""State that outlives a run: resource variables, tables, and which subgraphs have been run once.

An interpreter has one store. All its subgraphs share it, as LiteRT's do, and neither a resize nor
an allocation touches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import attrs
import numpy as np

from tflgpu.errors import StateError
from tflgpu.errors.blame import Failed, attempt, in_a_line, quoted
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape
from tflgpu.values import frozen


@frozen
class Handle:
    """The contents of a resource tensor: the name of a variable or of a table, the same in every
    subgraph.

    Attributes:
        kind: "variable" or "table".
    """

    container: str
    name: str
    kind: str = "variable"

    def __str__(self) -> str:
        inside = f" of container {quoted(self.container)}" if self.container else ""
        return f"{self.kind} {quoted(self.name)}{inside}"


@frozen
class Entries:
    """A table of keys and values.

    Attributes:
        key, value: Their types: i64 and texts, or the other way round.
        found: What is in it, by key; None before it was filled, which happens once.
    """

    key: DType
    value: DType
    found: Mapping[object, object] | None = None


@frozen(eq=False)
class DeviceVariable:
    """A variable whose contents are on a device.

    Attributes:
        handle: The variable.
        shape: Its shape.
        dtype: Its type.
        array: Gives a copy. Raises StateError or DeviceError: the device does not give it.
    """

    handle: Handle
    shape: Shape
    dtype: np.dtype[Any]
    array: Callable[[], Array]


class Owner(Protocol):
    """A piece that keeps the contents of some variables on a device."""

    def held(self, handle: Handle) -> DeviceVariable:
        """The variable, as it is on the device now."""

    def begin(self) -> None:
        """A run begins, from whose end `step_back` may be asked for."""

    def step_back(self) -> None:
        """Let variables be what they were at `begin`."""


@frozen(eq=False)
class State:
    """A state tensor.

    Attributes:
        array: Of the session that ran last with it.
        at_rest: What it holds before the first run.
    """

    array: Array
    at_rest: int

    def begin_anew(self) -> None:
        """Reset the tensor to the value that it has before the first run."""
        self.array[...] = self.at_rest


#: By state tensor of a subgraph.
States = dict[int, State]


@frozen(eq=False)
class Snapshot:
    """A state of the store that `VariableStore.restore` brings back."""

    arrays: dict[Handle, Array]
    called: frozenset[int]
    states: dict[int, dict[int, tuple[State, Array]]]
    tables: dict[Handle, Entries]
    owners: dict[Handle, Owner]
    lost: dict[Handle, str]


_ANEW = "reset_all_variables() lets it begin anew"


class VariableStore:
    """Variables by name. An assignment replaces an array and never writes into it, so that an array
    that was read before keeps its contents. A piece may keep a variable on a device (`Owner`)."""

    def __init__(self) -> None:
        self._states: dict[int, States] = {}
        self._arrays: dict[Handle, Array] = {}
        self._called: set[int] = set()
        self._tables: dict[Handle, Entries] = {}
        self._owners: dict[Handle, Owner] = {}
        self._lost: dict[Handle, str] = {}

    def read(self, handle: Handle, dtype: DType) -> Array:
        """The contents that were assigned last.

        Raises:
            StateError: nothing was, or it is of another type; or a device has it no more.
            DeviceError: the device failed.
        """
        owner = self._owners.get(handle)
        array = self._arrays.get(handle) if owner is None else owner.held(handle).array()
        if handle in self._lost:
            raise StateError(
                f"{handle} was on the device, which did not give it back ({self._lost[handle]}); "
                f"{_ANEW}"
            )
        if array is None:
            raise StateError(
                f"{handle} is read before anything was assigned to it; a model that keeps state "
                "sets it in a subgraph that CALL_ONCE runs, or in a signature that has to be run "
                "first"
            )
        if array.dtype != dtype.numpy:
            raise StateError(f"{handle} holds {array.dtype}, and is read as {dtype.value}")
        return array

    def assign(self, handle: Handle, array: Array) -> None:
        """VariableStore a copy of ``array``, which may have any shape."""
        kept = np.array(array)
        kept.setflags(write=False)
        self._arrays[handle] = kept
        self._owners.pop(handle, None)
        self._lost.pop(handle, None)

    def peek(self, handle: Handle, dtype: DType) -> Array | DeviceVariable:
        """The contents of a variable in host memory; of one on a device, where it is."""
        owner = self._owners.get(handle)
        held = None if owner is None else owner.held(handle)
        return self.read(handle, dtype) if held is None or held.dtype != dtype.numpy else held

    def owned(self, handle: Handle, owner: Owner) -> None:
        """Record that ``owner`` holds a variable from now on."""
        self._owners[handle] = owner
        self._arrays.pop(handle, None)
        self._lost.pop(handle, None)

    def is_owner(self, handle: Handle, owner: Owner) -> bool:
        """Whether ``owner`` holds this variable."""
        return self._owners.get(handle) is owner

    def give_back(self, owner: Owner) -> None:
        """Copy an owner's variables to the host before it closes; those that fail are lost."""
        for handle in [h for h, o in self._owners.items() if o is owner]:
            array = attempt(owner.held(handle).array)
            if isinstance(array, Failed):
                del self._owners[handle]
                self._lost[handle] = in_a_line(array.error)
            else:
                self.assign(handle, array)

    def make_table(self, handle: Handle, key: DType, value: DType) -> None:
        """Make a table, with the types of its first use."""
        self._tables.setdefault(handle, Entries(key, value))

    def table(self, handle: Handle, key: DType, value: DType) -> Entries:
        """The table of this name.

        Raises:
            StateError: it has other types.
        """
        found = self._tables[handle]  # a handle comes from what makes the table
        if (found.key, found.value) != (key, value):
            raise StateError(
                f"{handle} has keys of {found.key.value} and values of {found.value.value}, and is "
                f"used as one of {key.value} and {value.value}"
            )
        return found

    def table_size(self, handle: Handle) -> int:
        """How many keys are in a table; 0 before it was filled."""
        return len(self._tables[handle].found or ())

    def fill(self, handle: Handle, keys: Array, values: Array, types: tuple[DType, DType]) -> None:
        """Fill a table, unless it was: what is in it stays. Of a key that comes twice the first
        counts.

        Raises:
            StateError: it has other types.
        """
        table = self.table(handle, *types)
        if table.found is None:
            pairs = zip(keys.reshape(-1).tolist(), values.reshape(-1).tolist(), strict=True)
            found: dict[object, object] = {}
            for key, value in pairs:
                found.setdefault(key, value)
            self._tables[handle] = attrs.evolve(table, found=found)

    def states(self, subgraph: int) -> States:
        """State tensors of a subgraph's operators, which sessions of it hand to each other."""
        return self._states.setdefault(subgraph, {})

    def forget_states(self, subgraphs: Iterable[int]) -> None:
        """Let state tensors of some subgraphs begin anew, as after `allocate_tensors` in TFLite."""
        for number in subgraphs:
            self.states(number).clear()

    def first_call(self, subgraph: int) -> bool:
        """Whether a subgraph has not had its one run. It has, from now on."""
        if subgraph in self._called:
            return False
        self._called.add(subgraph)
        return True

    def reset(self) -> None:
        """Reset to the state after loading: nothing assigned, nothing called. Tables keep what they
        have, as LiteRT's."""
        self._arrays.clear()
        self._owners.clear()
        self._lost.clear()
        self._called.clear()
        for states in self._states.values():
            for state in states.values():
                state.begin_anew()

    def snapshot(self) -> Snapshot:
        """The state that `restore` brings back."""
        copies = {
            number: {i: (state, state.array.copy()) for i, state in found.items()}
            for number, found in self._states.items()
        }
        for owner in set(self._owners.values()):
            owner.begin()
        return Snapshot(
            dict(self._arrays),
            frozenset(self._called),
            copies,
            dict(self._tables),
            dict(self._owners),
            dict(self._lost),
        )

    def restore(self, before: Snapshot) -> None:
        """Forget what happened since a snapshot."""
        self._arrays, self._called = dict(before.arrays), set(before.called)
        self._tables = dict(before.tables)
        self._owners, self._lost = dict(before.owners), dict(before.lost)
        for owner in set(self._owners.values()):
            owner.step_back()
        for number, states in self._states.items():
            kept = before.states.get(number, {})
            # A session that ran with it for the first time, perhaps for other shapes, has what the
            # run that failed left. The next one takes it from who had it before.
            for index, state in states.items():
                if index not in kept or kept[index][0] is not state:
                    state.begin_anew()
            states.clear()
            for index, (state, contents) in kept.items():
                np.copyto(state.array, contents)
                states[index] = state
