"""`Session`: recordings in order, and the host arrays between them.

Every recording (a device's, or the references') owns host arrays for its edges. A session ties
them together so that a tensor has one home: graph inputs are written where the first recording
reads them, and outputs are read where the last one left them; only what crosses from one
recording to another is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from tflgpu.backend_kit.forks import Holder, immortal
from tflgpu.backend_kit.output_sets import NoRoomError
from tflgpu.checks.device import close_all
from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.device import Device, Recording
from tflgpu.contract.lending import Lender
from tflgpu.contract.offers import offers
from tflgpu.contract.pending import Pending
from tflgpu.errors import StateError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Shape, Value
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.places import Place, Places, Traffic
from tflgpu.runtime.state import StateBuffers
from tflgpu.runtime.stateful import Stateful
from tflgpu.values import frozen


class Watcher(Protocol):
    """Makes the runs of a session and looks at each, until the session needs it no more."""

    def run(self) -> None:
        """What `Session.run` is to do."""
        ...

    def close(self) -> None:
        """The session is closed, or needs it no more; twice is harmless."""
        ...


@frozen
class Step:
    """One recording and the values at its edges, aligned with its arrays. Those ``on_cpu`` can run
    again after an error, and in a forked child. ``run`` is what runs the recording to its end, so
    many ``times``; ``submit`` begins a run that goes on by itself, None where none can. ``device``
    makes buffers that the recording can be bound to.

    ``keeper`` is the recording where that keeps state, which changes when all of a run is over, so
    that an error in the middle leaves it as it was."""

    recording: Recording
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    label: str
    on_cpu: bool = False
    keeper: StateBuffers | None = None
    run: Callable[[], None] = attrs.field()
    times: int = 1
    device: Device | None = None
    submit: Callable[[], Pending] | None = attrs.field()

    @run.default
    def _plainly(self) -> Callable[[], None]:
        return self.recording.run

    @submit.default
    def _by_itself(self) -> Callable[[], Pending] | None:
        is_plain = not self.on_cpu and self.run == self.recording.run
        return self.recording.submit if is_plain else None


class Session(Stateful, Holder):
    """Runs steps in order over host arrays. One thread at a time.

    Attributes:
        report: What runs where.
        complete: Whether the last run, if there was one, came to its end: what is in the outputs.
        traffic: Counts what runs copy between host and device.
        comes_by_run: Whether there are arrays only as a run makes them, of shapes that it gives
            them.
    """

    comes_by_run = False

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        report: DelegationReport,
        variables: dict[int, Array],
    ) -> None:
        self.report = report
        self.complete = True
        self._watcher: Watcher | None = None
        self._running: Step | None = None  # begun, and perhaps not finished
        self._steps = tuple(steps)
        self._variables = variables
        self._at_rest = {index: graph.values[index].at_rest for index in variables}
        self._arrays: dict[int, Array] = dict(variables)
        self._own_moves: list[list[tuple[int, Array, Array]]] = []
        self._keepers = [step.keeper for step in self._steps if step.keeper is not None]
        self._seen = [0] * len(self._keepers)  # their editions
        for value in graph.values.values():
            if value.data is not None:
                self._arrays[value.id] = value.data
        readers = Counter(value.id for step in self._steps for value in step.inputs)
        for step in self._steps:
            moves = []
            given = zip(step.inputs, step.recording.inputs, strict=True)
            for i, (value, array) in enumerate(given):
                home = self._arrays.get(value.id)
                # What is written for a device is not read again: others that read it have it from
                # elsewhere.
                is_readable = step.on_cpu or readers[value.id] == 1
                if home is None and is_readable and _is_home(value, array):
                    self._arrays[value.id] = array  # a graph input, first read here
                else:
                    if home is None:
                        home = self._arrays[value.id] = np.zeros(value.shape, value.dtype.numpy)
                    moves.append((i, array, home))
            self._own_moves.append(moves)
            for value, array in zip(step.outputs, step.recording.outputs, strict=True):
                self._arrays[value.id] = array
        self._lenders = self._find_lenders(graph)
        self._moving: dict[int, Step] = {}  # whose next run may leave its outputs elsewhere
        self._after = self._convert_outputs(graph)
        for value in (*graph.inputs, *graph.outputs):
            if value.id not in self._arrays:
                self._arrays[value.id] = value.dtype.blank(value.shape)
        self._places = Places(graph, self._steps)
        self.traffic = Traffic()
        self._replaced()
        self._closed = False
        self._open = [step.recording for step in self._steps]
        self.belongs_to_process()

    def _find_lenders(self, graph: Graph) -> dict[int, tuple[Lender, int, Step]]:
        """By value: what can be lent. Nothing inside may rely on where such a step's outputs are,
        so that they must all be results of the graph, read by no other step and not converted."""
        read = {value.id for step in self._steps for value in step.inputs}
        results = {value.id for value in graph.outputs}
        found: dict[int, tuple[Lender, int, Step]] = {}
        for step in self._steps:
            recording = step.recording
            if step.keeper is not None:
                continue  # its results may be those of two recordings in turn
            if offers(recording, Lender) and all(
                value.id in results and value.id not in read and _is_home(value, array)
                for value, array in zip(step.outputs, recording.outputs, strict=True)
            ):
                found.update((v.id, (recording, i, step)) for i, v in enumerate(step.outputs))
        return found

    def _look_up_outputs(self, step: Step) -> None:
        for value, array in zip(step.outputs, step.recording.outputs, strict=True):
            self._arrays[value.id] = array

    def _convert_outputs(self, graph: Graph) -> list[tuple[Array, Array]]:
        """Outputs whose device type differs (booleans) get an array of their own type."""
        moves = []
        for value in graph.outputs:
            array = self._arrays.get(value.id)
            if array is not None and not _is_home(value, array):
                home = np.zeros(value.shape, value.dtype.numpy)
                moves.append((home, array))
                self._arrays[value.id] = home
        return moves

    @property
    def arrays(self) -> Mapping[int, Array]:
        """Host arrays by value id, at the same address until `close` or `take_over`, which makes
        another mapping; where something was lent, the outputs' until the next run."""
        return self._arrays

    def known_shapes(self) -> Mapping[int, Shape]:
        """Where arrays come by runs: shapes of tensors, as far as they are known before one."""
        return {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """The recordings, in order."""
        return self._steps

    @property
    def is_broken(self) -> bool:
        """Whether a device's recording was left in the middle of something: by its driver's error
        or by a signal. It cannot run again then; the CPU's can."""
        return self._running is not None and _on_device(self._running)

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, and has nothing on a device any more."""
        return self._closed

    def run(self, *, is_watched: bool = True) -> None:
        """Run the whole graph on what the input arrays hold.

        Args:
            is_watched: Whether a watcher makes the run, where there is one. It says no itself.

        Raises:
            StateError: the session is closed, or the process was forked since it was opened.
            InputError: an array that an output is bound to has become read-only.
            DeviceError: a step failed.
        """
        if is_watched and self._watcher is not None:
            self._watcher.run()
            return
        if self._closed:
            self.check_inherited("this interpreter's device")
            raise StateError("this session is closed")
        if self._wanted:
            self._places.check_writable()
        # Set before and not where an exception is caught: a signal may come anywhere.
        self.complete = False
        for target, source in self._given:
            np.copyto(target, source)
        for step, moves in zip(self._steps, self._moves, strict=True):
            for target, source in moves:
                np.copyto(target, source, casting="unsafe")
            self._running = step
            step.run()
        self.finish()

    def submit(self) -> Pending | None:
        """Begin a run that goes on by itself, to be ended by `finish`; None where `run` has to make
        it: it has other parts than one of a device, keeps state, or is watched, repeated or timed.

        Raises:
            StateError, DeviceError: as `run`.
        """
        if self._watcher is not None or len(self._steps) != 1:
            return None
        (step,), (moves,) = self._steps, self._moves
        if step.on_cpu or step.keeper is not None or step.submit is None:
            return None
        if self._closed:
            self.check_inherited("this interpreter's device")
            raise StateError("this session is closed")
        self.complete = False
        for target, source in (*self._given, *moves):
            np.copyto(target, source, casting="unsafe")
        self._running = step
        return step.submit()

    def finish(self) -> None:
        """Copy results and commit state when all parts of a run are over."""
        self._running = None
        while self._moving:
            self._look_up_outputs(self._moving.popitem()[1])
        for target, source in self._after:
            np.copyto(target, source, casting="unsafe")
        for target, index in self._wanted:
            np.copyto(target, self._arrays[index])
        if self._keepers:
            self._commit()
        self.traffic.add(*self._copies)
        self.complete = True

    @property
    def device(self) -> Device | None:
        """The device whose buffers it can be bound to; None where no part runs on one."""
        return next((step.device for step in self._steps if step.device is not None), None)

    @property
    def is_bound(self) -> bool:
        """Whether inputs or outputs are elsewhere than in `arrays`, where others may change
        them."""
        return bool(self._places.buffers or self._places.arrays)

    def put(self, value_id: int, place: Place | None) -> Unsupported | None:
        """As `tflgpu.runtime.places.Places.put`.

        Raises:
            StateError, DeviceError: as there.
        """
        if self._watcher is not None:
            return Unsupported(
                "the accuracy guard reads inputs and outputs of its first runs in host memory; "
                "bind after these, or leave accuracy_guard out"
            )
        answer = self._places.put(value_id, place)
        self._replaced()
        return answer

    def _replaced(self) -> None:
        """What a run copies, after something was put elsewhere."""
        places = self._places
        self._moves = [
            [(to, source) for i, to, source in moves if not places.is_elsewhere(step, i)]
            for step, moves in zip(self._steps, self._own_moves, strict=True)
        ]
        self._given, self._wanted = places.before(self._arrays), places.after
        self._copies = places.copies()

    def lend(self, value_id: int) -> Array | None:
        """A tensor's array for the caller to keep and change, with the results of the last run.
        None where it has to be copied.

        Raises:
            DeviceError: the device failed.
        """
        if value_id not in self._lenders:
            return None
        recording, index, step = self._lenders[value_id]
        self.complete, self._running = False, step
        lent = recording.lend(index)
        self._look_up_outputs(step)
        if lent is not None:
            self._moving[id(step)] = step
        self.complete, self._running = True, None
        return lent

    def settle(self) -> None:
        """Give arrays that were lent to callers their own memory, so that no caller shares
        `arrays`.

        Raises:
            DeviceError: the device failed, or memory ran out.
        """
        if not self.complete:
            return  # there are no results to settle
        for recording, _, step in self._lenders.values():
            self.complete, self._running = False, step
            try:
                recording.settle()
            except NoRoomError:
                self.complete, self._running = True, None
                raise
            self._look_up_outputs(step)
            self.complete, self._running = True, None

    def watch(self, watcher: Watcher) -> None:
        """Let ``watcher`` run the session from now on, by ``run(is_watched=False)``. It must not
        hold the session alive."""
        self._watcher = watcher

    def unwatch(self) -> None:
        """Run by itself again."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.close()

    def take_over(self, other: Session) -> None:
        """Run what another session of the same graph runs, with its arrays, state, results and
        report. What this one had is released, and ``other`` is spent."""
        old, traffic, watcher = self._open, self.traffic, self._watcher
        vars(self).update(vars(other))
        self.traffic, self._watcher = traffic, watcher
        other._open, other._closed = [], True
        close_all(old)

    def close(self) -> None:
        """Release every recording; twice is harmless. One that was interrupted goes on."""
        self._closed = True
        if self._watcher is not None:
            self._watcher.close()
        if self.inherited:
            return
        close_all(self._open)

    def after_fork(self) -> None:
        """A child may not touch what is on a device; what the CPU runs it may."""
        on_device = [step for step in self._steps if _on_device(step)]
        for step in on_device:
            immortal(step.recording)
        if on_device:
            super().after_fork()
            self._closed = True


def _on_device(step: Step) -> bool:
    return not step.on_cpu


def _is_home(value: Value, array: Array) -> bool:
    return array.dtype == value.dtype.numpy and array.shape == value.shape


def make_variables(graph: Graph) -> dict[int, Array]:
    """State tensors of a graph as they are before the first run, by value id."""
    return {
        v.id: np.full(v.shape, v.at_rest, v.dtype.numpy)
        for v in graph.values.values()
        if v.is_variable
    }
