"""The state of a session: host arrays, and the recordings that keep some of it on a device."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from tflgpu.ir.dtypes import Array
from tflgpu.runtime.places import Places, Traffic
from tflgpu.runtime.state import StateBuffers


class Stateful:
    """The part of a `tflgpu.runtime.session.Session` that is about state.

    Attributes:
        traffic: As the session's.
        not_kept: Inputs that it was asked to keep between runs and does not, by id, with reasons.
    """

    traffic: Traffic
    not_kept: Mapping[int, str] = MappingProxyType({})
    _variables: dict[int, Array]
    _at_rest: dict[int, int]
    _keepers: list[StateBuffers]
    _seen: list[int]
    _places: Places
    _copies: tuple[int, int]

    @property
    def variables(self) -> Mapping[int, Array]:
        """State tensors by value id. What is on a device is read back, and what these arrays hold
        counts: ask for them before each use.

        Raises:
            StateError, DeviceError: as `tflgpu.runtime.state.StateBuffers.bring_home`.
        """
        for keeper in self._keepers:
            try:
                keeper.bring_home()
            finally:
                self._count(keeper)
        return self._variables

    @property
    def kept(self) -> AbstractSet[int]:
        """Which values are state tensors."""
        return self._variables.keys()

    def at_rest(self, value_id: int) -> int:
        """The value of a state tensor before the first run (`Value.at_rest`)."""
        return self._at_rest[value_id]

    @property
    def at_hand(self) -> Mapping[int, Array]:
        """Those state tensors that are in host memory, without asking for the others, which a run
        that fails leaves as they were."""
        away = {i for keeper in self._keepers if keeper.is_away for i in keeper.values}
        return {i: a for i, a in self._variables.items() if i not in away}

    def step_back(self) -> None:
        """Let the state that is not `at_hand` be what it was before the last run."""
        for keeper in self._keepers:
            keeper.step_back()

    @property
    def commits(self) -> tuple[int, ...]:
        """For `step_back_to`."""
        return tuple([keeper.commits for keeper in self._keepers])

    def step_back_to(self, commits: tuple[int, ...]) -> None:
        """`step_back`, of the parts that ran since ``commits`` was read; one run at most."""
        for keeper, before in zip(self._keepers, commits, strict=True):
            if keeper.commits != before:
                keeper.step_back()

    def peek(self, value_id: int) -> Array:
        """A copy of a state tensor, which stays where it is.

        Raises:
            StateError, DeviceError: as `variables`.
        """
        for keeper in self._keepers:
            if value_id in keeper.values:
                try:
                    return keeper.peek(value_id)
                finally:
                    self._count(keeper)
        plain: Array = self._variables[value_id].copy()
        return plain

    @property
    def why_home(self) -> str:
        """Why some of the state never goes to the device; "" where all does."""
        return next((k.why_home for k in self._keepers if k.why_home), "")

    def keep_at_hand(self) -> None:
        """Keep all state in host memory from now on: its arrays are read and written without a call
        here.

        Raises:
            StateError, DeviceError: as `variables`.
        """
        for keeper in self._keepers:
            keeper.stay()

    def _count(self, keeper: StateBuffers) -> None:
        """What moving state has copied."""
        self.traffic.to_device += keeper.copied[0]
        self.traffic.to_host += keeper.copied[1]
        keeper.copied[:] = 0, 0

    def reset_variables(self) -> None:
        """Set every state tensor to its rest value (`Value.at_rest`)."""
        for keeper in self._keepers:
            keeper.begin_anew()
        for index, array in self._variables.items():
            array[...] = self._at_rest[index]

    def forget_states(self) -> None:
        """That the next session in its place, for other shapes, is to begin anew: it does, where
        each has state of its own."""

    def _commit(self) -> None:
        for at, keeper in enumerate(self._keepers):
            keeper.commit()
            if any(keeper.copied):
                self._count(keeper)
            if keeper.edition != self._seen[at]:
                self._seen[at] = keeper.edition
                self._copies = self._places.copies()
