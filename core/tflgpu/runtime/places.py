"""Bindings that replace a session's host arrays: buffers of the device, arrays of the caller.

    x (a buffer) -> recording 1 -> y (a buffer) -> recording 2 -> z (host memory)

A tensor that is bound to a buffer of the device is neither uploaded nor downloaded: every recording
that reads or makes it is bound there. That needs all of these to be recordings on the device, which
take the tensor as it is. An array of the caller's is copied to or from the tensor's own memory in
host memory, before or after a run, which works with every kind of part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np

from tflgpu.backend_kit.base_buffer import overlap
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import Recording
from tflgpu.errors import DeviceError, InputError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.values import define, frozen

if TYPE_CHECKING:
    from tflgpu.runtime.session import Step

Place = Union[Buffer, Array]


@define
class Traffic:
    """Bytes that were copied between host and device, and how many runs there were."""

    to_device: int = 0
    to_host: int = 0
    runs: int = 0

    def add(self, to_device: int, to_host: int) -> None:
        """Count a run."""
        self.runs += 1
        self.to_device += to_device
        self.to_host += to_host


@frozen(eq=False)
class _End:
    """Where a tensor goes into a recording or comes out of it."""

    step: Step
    index: int
    is_input: bool

    @property
    def array(self) -> Array:
        recording = self.step.recording
        return (recording.inputs if self.is_input else recording.outputs)[self.index]

    def bind(self, buffer: Buffer | None) -> Unsupported | None:
        change = {self.index: buffer}
        if self.is_input:
            return self.step.recording.bind(inputs=change)
        return self.step.recording.bind(outputs=change)


class Places:
    """The places of one session's inputs and outputs.

    Attributes:
        buffers: Bound to the device, by value id.
        arrays: Of the caller's, by value id.
    """

    def __init__(self, graph: Graph, steps: Sequence[Step]) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.arrays: dict[int, Array] = {}
        self._values = {v.id: v for v in (*graph.inputs, *graph.outputs)}
        self._inputs = {v.id for v in graph.inputs}
        self._outputs = {v.id for v in graph.outputs}
        self._steps = tuple(steps)

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

    def is_elsewhere(self, step: Step, index: int) -> bool:
        """Whether an input of a recording is in a buffer, so that nothing is copied for it."""
        return step.inputs[index].id in self.buffers

    def before(self, own: Any) -> list[tuple[Array, Array]]:
        """Copies that a run begins with: to where, from where. ``own`` are the session's arrays."""
        return [(own[i], a) for i, a in self.arrays.items() if i in self._inputs]

    @property
    def after(self) -> list[tuple[Array, int]]:
        """Copies that a run ends with: to where, and which of the session's arrays."""
        return [(a, i) for i, a in self.arrays.items() if i not in self._inputs]

    def check_writable(self) -> None:
        """Check that outputs can be copied to their bindings, before anything is computed.

        Raises:
            InputError: an array is read-only by now.
        """
        for array, index in self.after:
            if not array.flags.writeable:
                raise InputError(
                    f"tensor {index} is bound to an array that has become read-only since; make it "
                    "writable again, or unbind the tensor"
                )

    def copies(self) -> tuple[int, int]:
        """Bytes that a run copies to the device and to the host."""
        sent = fetched = 0
        for step in self._steps:
            if not step.on_cpu:
                more = _copies(step.recording) or self._all(step)
                sent, fetched = sent + more[0] * step.times, fetched + more[1] * step.times
        return sent, fetched

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
            _End(step, i, is_input)
            for step in self._steps
            for is_input, values in ((True, step.inputs), (False, step.outputs))
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
            if end.step.on_cpu:
                return Unsupported(
                    f"a part of the model that runs on the CPU ({end.step.label}) {does} it"
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

    def _all(self, step: Step) -> tuple[int, int]:
        """Of a recording that does not say what it copies: all that is not bound."""
        recording = step.recording
        sides = ((step.inputs, recording.inputs), (step.outputs, recording.outputs))
        sent, fetched = (
            sum(
                array.nbytes
                for value, array in zip(values, arrays, strict=True)
                if value.id not in self.buffers
            )
            for values, arrays in sides
        )
        return sent, fetched


def _copies(recording: Recording) -> tuple[int, int] | None:
    said: tuple[int, int] | None = getattr(recording, "copies", None)
    return said


def _undo(ends: Sequence[_End], before: Buffer | None) -> None:
    """Bind them as they were."""
    for end in ends:
        end.bind(before)
