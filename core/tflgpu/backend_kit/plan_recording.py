"""What recordings of plans have in common, for backends that want it: memory, the names of their
dispatches, and runs between guard bands."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Generic, TypeAlias

from tflgpu.backend_kit.base_buffer import BaseBuffer, overlap
from tflgpu.backend_kit.output_sets import S
from tflgpu.backend_kit.plan_memory import BasePlanMemory, R
from tflgpu.backend_kit.recording import BaseRecording, stray_write
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedIO, Ref
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.lowering.reason import Unsupported

#: When a dispatch began and how long it took, in seconds of one clock.
Span: TypeAlias = tuple[float, float]


class BasePlanRecording(BaseRecording[S], Generic[S, R]):
    """A `BaseRecording` of a plan in a `BasePlanMemory`.

    A subclass has, besides what `BaseRecording` asks for, `_rebind`, and for runs between guard
    bands `_dispatch_alone`, which returns when the device is done; also `_upload` and `_download`,
    where its memory has not the methods of that name. Its `_release` calls this one's.
    """

    #: Whether kernels use the host's arrays in place, so that no run copies any.
    _in_place = False
    #: Of the device that loaded it; a buffer of that device has the same.
    device_token: object = None

    def __init__(
        self,
        plan: Plan,
        memory: BasePlanMemory[R],
        lock: threading.RLock | None = None,
    ) -> None:
        """Bind a plan to memory that has its constants, inputs and outputs.

        Raises:
            DeviceError: memory ran out.
        """
        super().__init__(lock)
        self._plan_memory = memory
        self._goes_on = not memory.guarded
        self._planned = plan.dispatches
        self._edges: dict[type[InputRef | OutputRef], tuple[PlannedIO, ...]] = {
            InputRef: plan.inputs,
            OutputRef: plan.outputs,
        }
        self._fetched = [io.nbytes for io in plan.outputs]
        self._regions = memory.bind(plan.dispatches)
        self._buffers: dict[Ref, BaseBuffer] = {}

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._planned)

    @property
    def copies(self) -> tuple[int, int]:
        """Bytes that a run copies to the device, and to the host."""
        if self._in_place:
            return 0, 0
        sent = sum(self._edges[InputRef][i].nbytes for i in self._own(InputRef))
        return sent, sum(self._fetched[i] for i in self._own(OutputRef))

    def fit(self, absent: int, fetched: Sequence[int]) -> None:
        """As `tflgpu.contract.device.Fitting.fit`.

        Raises:
            StateError: the recording is closed.
            DeviceError: the device failed, now or in an earlier run.
        """
        with self._lock:
            self._check_usable()
            self._planned = tuple(each.fitted(absent) for each in self._planned)
            self._fetched[:] = fetched
            self._attempt(self._rebind)

    def bind(
        self,
        inputs: Mapping[int, Buffer | None] | None = None,
        outputs: Mapping[int, Buffer | None] | None = None,
    ) -> Unsupported | None:
        """As `Recording.bind`.

        Raises:
            StateError: the recording or a buffer is closed.
            DeviceError: a buffer that does not fit, or is of another device; or the device failed,
                now or in an earlier run.
        """
        with self._lock:
            self._check_usable()
            if self._plan_memory.guarded:
                return Unsupported("between guard bands a recording has memory of its own only")
            wanted = dict(self._buffers)
            for ref, changes in ((InputRef, inputs or {}), (OutputRef, outputs or {})):
                for index, buffer in changes.items():
                    self._change(wanted, ref, index, buffer)
            self._check_shared(wanted)
            for place, held in wanted.items():
                # One that is bound already may have been closed since.
                held.hold(again=self._buffers.get(place) is held)
            before, self._buffers = self._buffers, wanted
            try:
                self._attempt(self._rebind_all)
            finally:
                for buffer in before.values():
                    buffer.let_go()
        return None

    # For subclasses to write

    @abstractmethod
    def _rebind(self) -> None:
        """Let the next runs be of ``_planned`` and ``_regions``, which are others; inputs and
        outputs that are in ``_buffers`` are neither uploaded nor downloaded, and of others the
        first bytes, as ``_fetched`` says."""

    def _upload(self) -> None:
        """Let the device have the inputs."""
        self._plan_memory.upload(self._inputs)

    @abstractmethod
    def _dispatch_alone(self, index: int) -> None:
        """Run one dispatch of the plan."""

    def _download(self) -> None:
        """Let the host have the outputs."""
        self._plan_memory.download(self._outputs.current.arrays)

    # What they use

    def _own(self, kind: type[InputRef | OutputRef]) -> list[int]:
        """Inputs or outputs that lie in the recording's own memory, by index."""
        return [i for i in range(len(self._edges[kind])) if kind(i) not in self._buffers]

    def _release(self) -> None:
        buffers, self._buffers = self._buffers, {}
        for buffer in buffers.values():
            buffer.let_go()

    def _run(self) -> None:
        if self._goes_on:
            self._begin()
            self._end()
        else:
            self._run_between_bands()

    def _run_between_bands(self) -> None:
        """Run dispatch by dispatch, so that the one which writes outside a buffer can be named.

        Raises:
            DeviceError: one does.
        """
        memory = self._plan_memory
        self._outputs.for_run()
        memory.poison()
        self._upload()
        for index, (planned, regions) in enumerate(zip(self._planned, self._regions, strict=True)):
            self._dispatch_alone(index)
            for region in dict.fromkeys(regions):
                damage = memory.damage(region)
                if damage:
                    raise stray_write(damage, planned)
        for region in memory.regions:
            damage = memory.damage(region)
            if damage:
                raise stray_write(damage, None)
        self._download()

    def _change(
        self,
        wanted: dict[Ref, BaseBuffer],
        kind: type[InputRef | OutputRef],
        index: int,
        buffer: Buffer | None,
    ) -> None:
        edges = self._edges[kind]
        what = f"{'input' if kind is InputRef else 'output'} {index}"
        if not 0 <= index < len(edges):
            raise DeviceError(f"there is no {what}: there are {len(edges)}")
        if buffer is None:
            wanted.pop(kind(index), None)
            return
        if not isinstance(buffer, BaseBuffer) or buffer.token is not self.device_token:
            raise DeviceError(f"{what} is bound to a buffer that is not of this device")
        buffer.check_open()
        if buffer.nbytes < edges[index].nbytes:
            raise DeviceError(
                f"{what} ({edges[index].name}) takes {edges[index].nbytes} bytes and is bound to "
                f"a buffer of {buffer.nbytes}"
            )
        if not (buffer.readable if kind is InputRef else buffer.writable):
            does = "reads" if kind is InputRef else "writes"
            raise DeviceError(
                f"{what} ({edges[index].name}) is bound to a buffer that was made without leave "
                f"for what a run does with it: it {does} it"
            )
        wanted[kind(index)] = buffer

    def _check_shared(self, wanted: dict[Ref, BaseBuffer]) -> None:
        for (ref, buffer), (other, its) in combinations(wanted.items(), 2):
            writes = isinstance(ref, OutputRef) or isinstance(other, OutputRef)
            if writes and overlap(buffer, its):
                raise DeviceError(f"{ref} and {other} are bound to one buffer; a run writes it")

    def _rebind_all(self) -> None:
        memory = self._plan_memory
        memory.bound = {
            ref: memory.part(self._buffers[ref].region, io.nbytes)
            for kind, ios in self._edges.items()
            for i, io in enumerate(ios)
            if (ref := kind(i)) in self._buffers
        }
        self._regions = memory.bind(self._planned)
        waits = (buffer.wait for buffer in self._buffers.values())
        self._waits = [wait for wait in waits if wait is not None]
        self._rebind()

    def _times(self, spans: Sequence[Span]) -> list[DispatchTime]:
        """Names for the times of the dispatches."""
        first = min((start for start, _ in spans), default=0.0)
        return [
            DispatchTime(planned.label, planned.kernel.name, seconds, start - first)
            for planned, (start, seconds) in zip(self._planned, spans, strict=True)
        ]
