"""The base of recordings with pooled memory, whose commands are recorded once and submitted for
every run."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol

from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.heaps import HeapKind
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_recording import BasePlanRecording, Span
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pools import B, MemoryPool, PooledRegion
from tflgpu.backend_kit.run_commands import Launch, RunCommands, Script
from tflgpu.compiler.plan import OutputRef, Plan
from tflgpu.contract.device import DispatchTime
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported


class PooledOutputs(OutputSet, Generic[B]):
    """Memory for all outputs. Small ones, which kernels store straight to the host, are the same
    in every set.

    Attributes:
        regions: One per output.
        commands: A whole run that leaves its outputs here.
        download: The copy of the last run's outputs to here, once recorded.
    """

    def __init__(
        self,
        regions: Sequence[PooledRegion[B]],
        arrays: Sequence[Array],
        commands: Any,
        pool: MemoryPool[B] | None,
    ) -> None:
        super().__init__(arrays)
        self.regions = tuple(regions)
        self.commands = commands
        self.download: Any = None
        self._pool = pool

    def release(self) -> None:
        """Free the memory as soon as no lent array lies in it."""
        super().release()
        if self._pool is not None:
            self._pool.release()


def output_sets(
    memory: PooledMemory[B],
    record_run: Callable[[Sequence[PooledRegion[B]]], Any],
    record_download: Callable[[Sequence[PooledRegion[B]]], Any],
    submit: Callable[[Any, str], None],
) -> OutputSets[PooledOutputs[B]]:
    """The sets of a recording, of which the first is the plan's own memory.

    Args:
        memory: The plan's.
        record_run: A run that leaves its outputs in the given regions, as commands.
        record_download: Copies of the last run's outputs to them.
        submit: Runs commands, and returns when they are done; it is told what they do.

    Raises:
        DeviceError: commands could not be recorded.
    """
    # Outputs that are copied to the host: those whose place can be chosen.
    places = zip(memory.outputs, memory.output_staging, strict=True)
    copied = [i for i, (source, target) in enumerate(places) if source is not target]

    def make() -> PooledOutputs[B]:
        pool = memory.heaps.pool(HeapKind.HOST)
        regions, arrays = list(memory.output_staging), list(memory.output_arrays)
        for i in copied:
            regions[i] = pool.region(f"{memory.outputs[i].name} on the host", regions[i].nbytes)
        pool.allocate(memory.ledger)
        with releasing_on_error(pool):
            commands = record_run(regions)
        for i in copied:
            arrays[i] = regions[i].bytes.view(arrays[i].dtype).reshape(arrays[i].shape)
        return PooledOutputs(regions, arrays, commands, pool)

    def fill(outputs: PooledOutputs[B]) -> None:
        if outputs.download is None:
            outputs.download = record_download(outputs.regions)
        submit(outputs.download, "reading outputs")

    staging = memory.output_staging
    first = PooledOutputs(staging, memory.output_arrays, record_run(staging), None)
    # What is slow to read is read once, by a copy.
    lendable = copied if memory.heaps.has_cached else []
    return OutputSets(first, lendable, make, fill)


class Timers(Protocol):
    """What `RunCommands.stamp` notes times in: two for each dispatch."""

    def spans(self) -> Sequence[Span]:
        """The two of each, when the run is done."""


class PooledRecording(BasePlanRecording[PooledOutputs[B], PooledRegion[B]], Generic[B]):
    """A `BasePlanRecording`. With guard bands it has commands for each dispatch, so that the one
    which writes outside a buffer can be named.

    A subclass calls `_compose` when it is ready to record, and has `_submit`, `_bind_again` and
    `_timers`; besides what `BasePlanRecording` asks for, less `_rebind`, `_profile` and
    `_dispatch_alone`. Its `_release` calls this one's when nothing runs any more.
    """

    def __init__(self, plan: Plan, memory: PooledMemory[B]) -> None:
        """Bind a plan to memory that was allocated; there are no commands before `_compose`."""
        super().__init__(plan, memory)
        self._memory = memory
        self._in_place = memory.in_place
        self._inputs = tuple(memory.input_arrays)
        self._launches: list[Launch[B]] = []
        self._script: Script[B] | None = None
        self._timed: tuple[PooledOutputs[B], Any] | None = None
        self._single: list[Any] = []

    # For subclasses to write

    @abstractmethod
    def _submit(self, commands: Any, what: str) -> None:
        """Have recorded commands be done, and return when they are; ``what`` is for messages.

        Raises:
            DeviceError: the device failed.
        """

    @abstractmethod
    def _bind_again(self) -> None:
        """Let the launches use ``_regions``, which are others. Commands that were recorded are of
        no use any more, and nothing runs."""

    @abstractmethod
    def _timers(self) -> Timers | None:
        """For all dispatches; None where the device's queue notes no times."""

    # What they use

    def _compose(
        self,
        begin: Callable[[], RunCommands],
        bound: Iterable[Any],
        submit: Callable[[Any, str], None],
    ) -> None:
        """Record a run.

        Args:
            begin: Gives empty commands; must not hold the recording, and the same of ``submit``.
            bound: Of each dispatch, `Launch.bound`.
            submit: As `_submit`.

        Raises:
            DeviceError: commands could not be recorded.
        """
        self._launches += [
            Launch(*each) for each in zip(self._planned, self._regions, bound, strict=True)
        ]
        script = self._script = Script(begin, self._memory, self._launches)
        self._record_alone(script)
        self._sets = output_sets(self._memory, script.run, script.download, submit)
        self._lendable = self._sets.lendable

    # What recordings ask for

    def _rebind(self) -> None:
        script = self._script
        assert script is not None
        self._bind_again()
        self._timed = None
        self._launches[:] = [
            Launch(planned, regions, launch.bound)
            for planned, regions, launch in zip(
                self._planned, self._regions, self._launches, strict=True
            )
        ]
        self._memory.fetched = self._fetched
        self._record_alone(script)

        def remake(outputs: PooledOutputs[B]) -> None:
            outputs.commands = script.run(outputs.regions)
            outputs.download = None

        own = self._own(OutputRef)
        self._outputs.change([i for i in self._lendable if i in own], remake)

    def _record_alone(self, script: Script[B]) -> None:
        if self._memory.guarded:
            self._single = [script.alone(launch) for launch in self._launches]

    def _profile(self) -> Sequence[DispatchTime] | Unsupported:
        timers = self._timers() if self._launches else None
        if timers is None or self._script is None:
            self._run()
            no_times = Unsupported("the device's queue notes no timestamps")
            return no_times if self._launches else ()
        into = self._outputs.for_run()
        if self._timed is None or self._timed[0] is not into:
            self._timed = into, self._script.run(into.regions, timers)
        self._submit(self._timed[1], "profiling")
        return self._times(timers.spans())

    def _dispatch_alone(self, index: int) -> None:
        self._submit(self._single[index], f"running {self._planned[index].label}")

    def _release(self) -> None:
        super()._release()
        self._memory.release()
        self._launches.clear()
        self._script = None
        self._timed = None
        self._single = []
