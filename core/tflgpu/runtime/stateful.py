"""The state of a session: host arrays, and the recordings that keep some of it on a device."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from tflgpu.ir.dtypes import Array
from tflgpu.runtime.loaded_part import Traffic
from tflgpu.runtime.state import StateBuffers


class Stateful:
    """The part of a `tflgpu.runtime.session.Session` that is about state.

    Attributes:
        traffic: As the session's.
        kept: Which values are state tensors.
        not_kept: Inputs that it was asked to keep between runs and does not, by id, with reasons.
    """

    traffic: Traffic
    not_kept: Mapping[int, str] = MappingProxyType({})
    _variables: dict[int, Array]
    _at_rest: dict[int, int]
    _state_buffers: list[StateBuffers]
    _seen: list[int]
    kept: AbstractSet[int]

    @property
    def variables(self) -> Mapping[int, Array]:
        """State tensors by value id. What is on a device is read back, and what these arrays hold
        counts: ask for them before each use.

        Raises:
            StateError, DeviceError: as `tflgpu.runtime.state.StateBuffers.bring_home`.
        """
        for buffers in self._state_buffers:
            try:
                buffers.bring_home()
            finally:
                self._count(buffers)
        return self._variables

    def at_rest(self, value_id: int) -> int:
        """The value of a state tensor before the first run (`Value.at_rest`)."""
        return self._at_rest[value_id]

    @property
    def at_hand(self) -> Mapping[int, Array]:
        """Those state tensors that are in host memory, without asking for the others, which a run
        that fails leaves as they were."""
        away = {i for buffers in self._state_buffers if buffers.is_away for i in buffers.values}
        return {i: a for i, a in self._variables.items() if i not in away}

    def step_back(self) -> None:
        """Let the state that is not `at_hand` be what it was before the last run."""
        for buffers in self._state_buffers:
            buffers.step_back()

    @property
    def commits(self) -> tuple[int, ...]:
        """For `step_back_to`."""
        return tuple([buffers.commits for buffers in self._state_buffers])

    def step_back_to(self, commits: tuple[int, ...]) -> None:
        """`step_back`, of the parts that ran since ``commits`` was read; one run at most."""
        for buffers, before in zip(self._state_buffers, commits, strict=True):
            if buffers.commits != before:
                buffers.step_back()

    def peek(self, value_id: int) -> Array:
        """A copy of a state tensor, which stays where it is.

        Raises:
            StateError, DeviceError: as `variables`.
        """
        for buffers in self._state_buffers:
            if value_id in buffers.values:
                try:
                    return buffers.peek(value_id)
                finally:
                    self._count(buffers)
        plain: Array = self._variables[value_id].copy()
        return plain

    @property
    def why_home(self) -> str:
        """Why some of the state never goes to the device; "" where all does."""
        return next((k.why_home for k in self._state_buffers if k.why_home), "")

    def keep_at_hand(self) -> None:
        """Keep all state in host memory from now on: its arrays are read and written without a call
        here.

        Raises:
            StateError, DeviceError: as `variables`.
        """
        for buffers in self._state_buffers:
            buffers.stay()

    def _count(self, buffers: StateBuffers) -> None:
        """What moving state has copied."""
        self.traffic.to_device += buffers.copied[0]
        self.traffic.to_host += buffers.copied[1]
        buffers.copied[:] = 0, 0

    def reset_variables(self) -> None:
        """Set every state tensor to its rest value (`Value.at_rest`)."""
        for buffers in self._state_buffers:
            buffers.begin_anew()
        for index, array in self._variables.items():
            array[...] = self._at_rest[index]

    def forget_states(self) -> None:
        """That the next session in its place, for other shapes, is to begin anew: it does, where
        each has state of its own."""

    def _count_copies(self) -> None:
        raise NotImplementedError

    def _commit(self) -> None:
        for at, buffers in enumerate(self._state_buffers):
            buffers.commit()
            if any(buffers.copied):
                self._count(buffers)
            if buffers.edition != self._seen[at]:
                self._seen[at] = buffers.edition
                self._count_copies()
