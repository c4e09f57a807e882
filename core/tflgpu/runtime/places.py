"""Bindings that replace a session's host arrays: buffers of the device, arrays of the caller.

    x (a buffer) -> recording 1 -> y (a buffer) -> recording 2 -> z (host memory)

A tensor that is bound to a buffer of the device is neither uploaded nor downloaded: every recording
that reads or makes it is bound there. That needs all of these to be recordings on the device, which
take the tensor as it is. An array of the caller's is copied to or from the tensor's own memory in
host memory, before or after a run, which works with every kind of part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import numpy as np

from tflgpu.backend_kit.base_buffer import overlap
from tflgpu.contract.buffers import Buffer
from tflgpu.errors import DeviceError, InputError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.loaded_part import LoadedPart
from tflgpu.values import frozen

Place = Union[Buffer, Array]


@frozen(eq=False)
class _End:
    """Where a tensor goes into a recording or comes out of it."""

    part: LoadedPart
    index: int
    is_input: bool

    @property
    def array(self) -> Array:
        recording = self.part.recording
        return (recording.inputs if self.is_input else recording.outputs)[self.index]

    def bind(self, buffer: Buffer | None) -> Unsupported | None:
        change = {self.index: buffer}
        if self.is_input:
            return self.part.recording.bind(inputs=change)
        return self.part.recording.bind(outputs=change)


class Places:
    """The places of one session's inputs and outputs.

    Attributes:
        buffers: Bound to the device, by value id.
        arrays: Of the caller's, by value id.
    """

    def __init__(
        self, inputs: Sequence[Value], outputs: Sequence[Value], parts: Sequence[LoadedPart]
    ) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.arrays: dict[int, Array] = {}
        self._values = {v.id: v for v in (*inputs, *outputs)}
        self._inputs = {v.id for v in inputs}
        self._outputs = {v.id for v in outputs}
        self._parts = parts

    def put(self, value_id: int, place: Place | None) -> Unsupported | None:
        """Let an input or output be somewhere else from the next run on; None in a place's stead is
        its own memory. Gives the reason where that cannot be; nothing is changed then.

        Raises:
            StateError: a buffer or the device is closed.
            DeviceError: the buffer is too small or of another device, or a run would write what
                another tensor is bound to.
        """
        buffer = None if isinstance(place, np.ndarray) else place
        answer = self._move(value_id, buffer)
        if answer is None:
            self.arrays.pop(value_id, None)
            if isinstance(place, np.ndarray):
                self.arrays[value_id] = place
        return answer

    def refusal(self, value_id: int) -> Unsupported | None:
        """Why a tensor cannot lie in a buffer of the device; None where it can."""
        return self._refusal(self._values[value_id], self._ends(value_id))

    def put_buffers(self, buffers: Mapping[int, Buffer | None]) -> Unsupported | None:
        """As `put`, of several tensors, none of which has a `refusal`. Each recording is bound
        once, since it records its commands anew.

        Raises:
            StateError, DeviceError: as `put`; of several parts, those that were bound stay so.
        """
        for part in self._parts:
            sides = (
                {i: buffers[v.id] for i, v in enumerate(values) if v.id in buffers}
                for values in (part.inputs, part.outputs)
            )
            inputs, outputs = sides
            answer = part.recording.bind(inputs, outputs) if inputs or outputs else None
            if answer is not None:
                return answer
        for value_id, buffer in buffers.items():
            self.arrays.pop(value_id, None)
            self.buffers.pop(value_id, None)
            if buffer is not None:
                self.buffers[value_id] = buffer
        return None

    def before(self, own: Any) -> list[tuple[Array, Array]]:
        """Copies that a run begins with: to where, from where. ``own`` are the session's arrays."""
        return [(own[i], a) for i, a in self.arrays.items() if i in self._inputs]

    @property
    def after(self) -> list[tuple[Array, int]]:
        """Copies that a run ends with: to where, and which of the session's arrays."""
        return [(a, i) for i, a in self.arrays.items() if i not in self._inputs]

    # Inside

    def _move(self, value_id: int, buffer: Buffer | None) -> Unsupported | None:
        before = self.buffers.get(value_id)
        if buffer is before:
            return None
        ends = self._ends(value_id)
        if buffer is not None:
            refused = self._refusal(self._values[value_id], ends)
            if refused is not None:
                return refused
            self._check_apart(value_id, buffer)
        done: list[_End] = []
        answer: Unsupported | None = None
        try:
            for end in ends:
                answer = end.bind(buffer)
                if answer is not None:
                    break
                done.append(end)
        except BaseException:
            _undo(done, before)
            raise
        if answer is not None:
            _undo(done, before)
            return answer
        if buffer is None:
            self.buffers.pop(value_id, None)
        else:
            self.buffers[value_id] = buffer
        return None

    def _ends(self, value_id: int) -> list[_End]:
        return [
            _End(part, i, is_input)
            for part in self._parts
            for is_input, values in ((True, part.inputs), (False, part.outputs))
            for i, value in enumerate(values)
            if value.id == value_id
        ]

    def _refusal(self, value: Value, ends: Sequence[_End]) -> Unsupported | None:
        """Why a tensor cannot lie in a buffer of the device."""
        if value.id in self._inputs & self._outputs:
            return Unsupported(
                "it is an input and an output of the model at once, which is not run"
            )
        if value.id in self._inputs and not ends:
            return Unsupported("no operator reads it")
        if value.id in self._outputs and all(end.is_input for end in ends):
            return Unsupported("no operator makes it when the model runs: it is known beforehand")
        for end in ends:
            does = "reads" if end.is_input else "makes"
            if end.part.on_cpu:
                return Unsupported(
                    f"a part of the model that runs on the CPU ({end.part.label}) {does} it"
                )
            found = end.array
            if found.dtype != value.dtype.numpy or found.shape != value.shape:
                return Unsupported(
                    f"the device takes it as {found.dtype}, and the host converts it from or to "
                    f"{value.dtype.numpy}"
                )
        return None

    def _check_apart(self, value_id: int, buffer: Buffer) -> None:
        """No run writes what another tensor is bound to. Recordings see to it that none of their
        own does."""
        for other, its in self.buffers.items():
            writes = not {value_id, other} <= self._inputs
            if other != value_id and writes and overlap(buffer, its):
                raise DeviceError(
                    f"tensors {value_id} and {other} are bound to the same memory, and a run "
                    "writes it; give each a buffer of its own"
                )


def check_writable(after: Sequence[tuple[Array, int]]) -> None:
    """Check that outputs can be copied to their bindings, before anything is computed.

    Args:
        after: As `Places.after`.

    Raises:
        InputError: an array is read-only by now.
    """
    for array, index in after:
        if not array.flags.writeable:
            raise InputError(
                f"tensor {index} is bound to an array that has become read-only since; make it "
                "writable again, or unbind the tensor"
            )


def _undo(ends: Sequence[_End], before: Buffer | None) -> None:
    """Bind them as they were."""
    for end in ends:
        end.bind(before)
