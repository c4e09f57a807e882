"""`Session`: recordings in order, and the host arrays between them.

Every recording (a device's, or the references') owns host arrays for its edges. A session ties
them together so that a tensor has one home: graph inputs are written where the first recording
reads them, and outputs are read where the last one left them; only what crosses from one
recording to another is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import attrs
import numpy as np

from tflgpu.backend_kit.forks import Holder, immortal
from tflgpu.backend_kit.output_sets import NoRoomError
from tflgpu.checks.device import close_all
from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import Device
from tflgpu.contract.offers import Lender, offers
from tflgpu.contract.pending import Pending
from tflgpu.errors import StateError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Shape, Value
from tflgpu.ir.stored_reals import StoredReals
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.loaded_part import LoadedPart, Traffic
from tflgpu.runtime.places import Place, Places, check_writable
from tflgpu.runtime.stateful import Stateful

_WATCHED = Unsupported(
    "the accuracy guard reads inputs and outputs of its first runs in host memory; bind after "
    "these, or leave accuracy_guard out"
)


class Watcher(Protocol):
    """Makes the runs of a session and looks at each, until the session needs it no more."""

    def run(self) -> None:
        """What `Session.run` is to do."""

    def close(self) -> None:
        """The session is closed, or needs it no more; twice is harmless."""


class Session(Stateful, Holder):
    """Runs loaded parts in order over host arrays. One thread at a time.

    Attributes:
        report: What runs where.
        parts: Its loaded parts, in the order of a run.
        complete: Whether the last run, if there was one, came to its end: what is in the outputs.
        traffic: Counts what runs copy between host and device.
        is_closed: Whether it was closed, and has nothing on a device any more.
        comes_by_run: Whether there are arrays only as a run makes them, of shapes that it gives
            them.
    """

    comes_by_run = False

    def __init__(
        self,
        graph: Graph,
        parts: Sequence[LoadedPart],
        report: DelegationReport,
        variables: dict[int, Array],
    ) -> None:
        self.report = report
        self.complete = True
        self._watcher: Watcher | None = None
        self._running: LoadedPart | None = None  # begun, and perhaps not finished
        self.parts = tuple(parts)
        self._graph_inputs, self._graph_outputs = tuple(graph.inputs), tuple(graph.outputs)
        self._variables = variables
        self.kept = variables.keys()
        self._at_rest = {index: graph.values[index].at_rest for index in variables}
        self._arrays: dict[int, Array] = dict(variables)
        self._own_moves: list[list[tuple[int, Array, Array]]] = []
        self._state_buffers = [part.state for part in self.parts if part.state is not None]
        self._seen = [0] * len(self._state_buffers)  # their editions
        edges = {v.id for v in (*graph.outputs, *(v for part in parts for v in part.inputs))}
        for value in graph.values.values():
            # Large ones that the file stores otherwise are expanded only for what reads them.
            is_apart = isinstance(value.contents, StoredReals) and value.id not in edges
            data = None if is_apart else value.data
            if data is not None:
                self._arrays[value.id] = data
        readers = Counter(value.id for part in self.parts for value in part.inputs)
        for part in self.parts:
            moves = []
            given = zip(part.inputs, part.recording.inputs, strict=True)
            for i, (value, array) in enumerate(given):
                home = self._arrays.get(value.id)
                # What is written for a device is not read again: others that read it have it from
                # elsewhere.
                is_readable = part.on_cpu or readers[value.id] == 1
                if home is None and is_readable and _is_home(value, array):
                    self._arrays[value.id] = array  # a graph input, first read here
                else:
                    if home is None:
                        home = self._arrays[value.id] = np.zeros(value.shape, value.dtype.numpy)
                    moves.append((i, array, home))
            self._own_moves.append(moves)
            self._look_up_outputs(part)
        self._lenders = self._find_lenders(graph)
        self._moving: dict[int, LoadedPart] = {}  # whose next run may leave outputs elsewhere
        self._after = self._convert_outputs(graph)
        for value in (*graph.inputs, *graph.outputs):
            if value.id not in self._arrays:
                self._arrays[value.id] = value.dtype.blank(value.shape)
        self._places: Places | None = None  # of inputs and outputs, once one is put elsewhere
        self.traffic = Traffic()
        self._replaced()
        self.is_closed = False
        self._open = [part.recording for part in self.parts]
        self.belongs_to_process()

    def _find_lenders(self, graph: Graph) -> dict[int, tuple[Lender, int, LoadedPart]]:
        """By value: what can be lent. Nothing inside may rely on where such a part's outputs are,
        so that they must all be results of the graph, read by no other part and not converted."""
        read = {value.id for part in self.parts for value in part.inputs}
        results = {value.id for value in graph.outputs}
        found: dict[int, tuple[Lender, int, LoadedPart]] = {}
        for part in self.parts:
            recording = part.recording
            if part.state is not None:
                continue  # its results may be those of two recordings in turn
            if offers(recording, Lender) and all(
                value.id in results and value.id not in read and _is_home(value, array)
                for value, array in zip(part.outputs, recording.outputs, strict=True)
            ):
                found.update((v.id, (recording, i, part)) for i, v in enumerate(part.outputs))
        return found

    def _look_up_outputs(self, part: LoadedPart) -> None:
        made = zip(part.outputs, part.recording.outputs, strict=True)
        self._arrays.update((value.id, array) for value, array in made)

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

    def note(self, reason: str) -> None:
        """Add a sentence to the report."""
        self.report = attrs.evolve(self.report, choice=(*self.report.choice, reason))

    def keep_constants(self, graph: Graph) -> None:
        """Let constants of the graph be read that no run has to do with."""
        for value in graph.values.values():
            if value.data is not None:
                self._arrays.setdefault(value.id, value.data)

    @property
    def arrays(self) -> Mapping[int, Array]:
        """Host arrays by value id, at the same address until `close` or `take_over`, which makes
        another mapping; where something was lent, the outputs' until the next run."""
        return self._arrays

    def known_shapes(self) -> Mapping[int, Shape]:
        """Where arrays come by runs: shapes of tensors, as far as they are known before one."""
        return {}

    @property
    def inner(self) -> Sequence[tuple[Session, bool]]:
        """The sessions that have its parts, and whether their operators are the graph's own: those
        of a loop's body are another subgraph's."""
        return [(self, True)]

    @property
    def is_watched(self) -> bool:
        """Whether a watcher makes its runs."""
        return self._watcher is not None

    @property
    def is_broken(self) -> bool:
        """Whether a device's recording was left in the middle of something: by its driver's error
        or by a signal. It cannot run again then; the CPU's can."""
        return self._running is not None and not self._running.on_cpu

    def run(self) -> None:
        """Run the whole graph on what the input arrays hold.

        Raises:
            StateError: the session is closed, or the process was forked since it was opened.
            InputError: an array that an output is bound to has become read-only.
            DeviceError: a part failed.
        """
        plain = self._plain
        if self._watcher is not None:
            self._watcher.run()
        elif plain is None or self.is_closed:
            self.run_parts()
        else:
            # Set before and not where an exception is caught: a signal may come anywhere.
            self.complete = False
            self._running = plain
            plain.recording.run()
            self.finish()

    def run_parts(self, run_part: Callable[[LoadedPart], object] | None = None) -> None:
        """`run`, whether it is watched or not; ``run_part`` runs each part, in the place of its
        policy."""
        self._check_open()
        if self._wanted:
            check_writable(self._wanted)
        self.complete = False
        for target, source in self._given:
            target[...] = source
        for part, moves in zip(self.parts, self._moves, strict=True):
            for target, source in moves:
                target[...] = source  # of another type, perhaps
            self._running = part
            if run_part is not None:
                run_part(part)
            elif part.policy is None:
                part.recording.run()
            else:
                part.policy.run(part.recording)
        self.finish()

    def _check_open(self) -> None:
        if self.is_closed:
            self.check_inherited("this interpreter's device")
            raise StateError("this session is closed")

    def submit(self) -> Pending | None:
        """Begin a run that goes on by itself, to be ended by `finish`; None where `run` has to make
        it: it has other parts than one of a device, keeps state, or is watched, repeated or timed.
        Raises as `run`.
        """
        if self._watcher is not None or len(self.parts) != 1:
            return None
        (part,), (moves,) = self.parts, self._moves
        policy = part.policy
        if part.on_cpu or part.state is not None or not (policy is None or policy.submits):
            return None
        self._check_open()
        self.complete = False
        for target, source in (*self._given, *moves):
            np.copyto(target, source, casting="unsafe")
        self._running = part
        return part.recording.submit() if policy is None else policy.submit(part.recording)

    def finish(self) -> None:
        """Copy results and commit state when all parts of a run are over."""
        self._running = None
        while self._moving:
            self._look_up_outputs(self._moving.popitem()[1])
        if self._after or self._wanted:
            for target, source in self._after:
                target[...] = source
            for target, index in self._wanted:
                target[...] = self._arrays[index]
        if self._state_buffers:
            self._commit()
        traffic = self.traffic
        traffic.runs += 1
        if self._copies:
            sent, fetched = self._copies
            traffic.to_device += sent
            traffic.to_host += fetched
        self.complete = True

    @property
    def device(self) -> Device | None:
        """The device whose buffers it can be bound to; None where no part runs on one."""
        return next((part.device for part in self.parts if part.device is not None), None)

    def put(self, value_id: int, place: Place | None) -> Unsupported | None:
        """As `tflgpu.runtime.places.Places.put`.

        Raises:
            StateError, DeviceError: as there.
        """
        if self._watcher is not None:
            return _WATCHED
        answer = self._own_places.put(value_id, place)
        self._replaced()
        return answer

    def refusal(self, value_id: int) -> Unsupported | None:
        """Why an input or output cannot lie in a buffer of the device; None where it can."""
        return self._own_places.refusal(value_id) if self._watcher is None else _WATCHED

    def put_buffers(self, buffers: Mapping[int, Buffer | None]) -> Unsupported | None:
        """As `tflgpu.runtime.places.Places.put_buffers`.

        Raises:
            StateError, DeviceError: as there.
        """
        answer = self._own_places.put_buffers(buffers)
        self._replaced()
        return answer

    @property
    def _own_places(self) -> Places:
        if self._places is None:
            self._places = Places(self._graph_inputs, self._graph_outputs, self.parts)
        return self._places

    def _replaced(self, unchanged: Collection[int] = ()) -> None:
        """What a run copies, after something was put elsewhere; not inputs that are as they were
        in the run before, by value id."""
        places = self._places
        self._moves = [
            [
                (to, source)
                for i, to, source in moves
                if part.inputs[i].id not in (unchanged if places is None else places.buffers)
            ]
            for part, moves in zip(self.parts, self._own_moves, strict=True)
        ]
        self._given = [] if places is None else places.before(self._arrays)
        self._wanted = [] if places is None else places.after
        # The only part, where a run needs no more than the recording's.
        is_one = len(self.parts) == 1 and self.parts[0].policy is None
        more = any((*self._moves, self._given, self._wanted))
        self._plain = self.parts[0] if is_one and not more else None
        self._count_copies()

    def _count_copies(self) -> None:
        """Bytes that a run copies to the device and to the host."""
        bound = () if self._places is None else self._places.buffers.keys()
        sent = fetched = 0
        for part in self.parts:
            if not part.on_cpu:
                more = getattr(part.recording, "copies", None) or _not_bound(part, bound)
                times = 1 if part.policy is None else part.policy.loops
                sent, fetched = sent + more[0] * times, fetched + more[1] * times
        self._copies = (sent, fetched) if sent or fetched else None

    def lend(self, value_id: int) -> Array | None:
        """A tensor's array for the caller to keep and change, with the results of the last run.
        None where it has to be copied.

        Raises:
            DeviceError: the device failed.
        """
        if value_id not in self._lenders:
            return None
        recording, index, part = self._lenders[value_id]
        self.complete, self._running = False, part
        lent = recording.lend(index)
        self._look_up_outputs(part)
        if lent is not None:
            self._moving[id(part)] = part
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
        for recording, _, part in self._lenders.values():
            self.complete, self._running = False, part
            try:
                recording.settle()
            except NoRoomError:
                self.complete, self._running = True, None
                raise
            self._look_up_outputs(part)
            self.complete, self._running = True, None

    def watch(self, watcher: Watcher) -> None:
        """Let ``watcher`` run the session from now on, by `run_parts`. It must not hold the session
        alive."""
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
        other._open, other.is_closed = [], True
        close_all(old)

    def close(self) -> None:
        """Release every recording; twice is harmless. One that was interrupted goes on."""
        self.is_closed = True
        if self._watcher is not None:
            self._watcher.close()
        if self.inherited:
            return
        close_all(self._open)

    def after_fork(self) -> None:
        """A child may not touch what is on a device; what the CPU runs it may."""
        on_device = [part for part in self.parts if not part.on_cpu]
        for part in on_device:
            immortal(part.recording)
        if on_device:
            super().after_fork()
            self.is_closed = True


def _not_bound(part: LoadedPart, bound: Collection[int]) -> tuple[int, int]:
    """Bytes of all inputs and outputs that are not bound to buffers: what a recording copies that
    does not say it itself."""
    sides = ((part.inputs, part.recording.inputs), (part.outputs, part.recording.outputs))
    sent, fetched = (
        sum(a.nbytes for value, a in zip(values, arrays, strict=True) if value.id not in bound)
        for values, arrays in sides
    )
    return sent, fetched


def _is_home(value: Value, array: Array) -> bool:
    return array.dtype == value.dtype.numpy and array.shape == value.shape


def make_variables(graph: Graph) -> dict[int, Array]:
    """State tensors of a graph as they are before the first run, by value id."""
    states = (v for v in graph.values.values() if v.is_variable)
    return {v.id: np.full(v.shape, v.at_rest, v.dtype.numpy) for v in states}
