"""The commands of a run with the barriers between them, for APIs that record commands once and have
no automatic barriers (Vulkan, Direct3D 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Generic, Protocol

from tflgpu.backend_kit.heaps import PieceCopy
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pools import B, PooledRegion
from tflgpu.compiler.plan import ConstRef, PlannedDispatch
from tflgpu.values import frozen

#: Some bytes: of which memory, first, and one past the last.
Range = tuple[int, int, int]


@frozen
class Access:
    """What a dispatch reads and writes."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


def access_of(dispatch: PlannedDispatch, parts: Sequence[Range]) -> Access:
    """What a dispatch reads and writes, whose buffers are these parts of memory; constants are left
    out, since they never change."""
    buffers = dispatch.kernel.buffers
    bound = [
        (buffer.access, part)
        for buffer, ref, part in zip(buffers, dispatch.refs, parts, strict=True)
        if not isinstance(ref, ConstRef)
    ]
    return Access(
        tuple(part for access, part in bound if access != "write"),
        tuple(part for access, part in bound if access != "read"),
    )


def barriers(accesses: Sequence[Access]) -> list[bool]:
    """For each dispatch whether a barrier must come before it.

    It must where the dispatch reads what one since the last barrier wrote, or writes what one
    since then read or wrote. A barrier orders everything before it, so what came before it
    needs no further look.
    """
    found: list[bool] = []
    reads: list[Range] = []
    writes: list[Range] = []
    for access in accesses:
        needed = (
            _overlap(access.reads, writes)
            or _overlap(access.writes, writes)
            or _overlap(access.writes, reads)
        )
        if needed:
            reads.clear()
            writes.clear()
        reads.extend(access.reads)
        writes.extend(access.writes)
        found.append(needed)
    return found


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


class Between(Enum):
    """What comes before a barrier, and what waits for it behind."""

    #: Submissions that use the same memory: a barrier reaches back past its own commands, on its
    #: queue. What those of other queues left is there for what follows it once somebody has waited
    #: for them.
    SUBMISSIONS = auto()
    DISPATCHES = auto()
    UPLOADS_AND_DISPATCHES = auto()
    DISPATCHES_AND_DOWNLOADS = auto()
    DOWNLOADS_AND_HOST = auto()
    DISPATCHES_AND_HOST = auto()


@frozen(eq=False)
class Launch(Generic[B]):
    """A dispatch with everything bound.

    Attributes:
        dispatch: What is launched.
        regions: What its buffers are bound to.
        bound: What else the API binds for it.
    """

    dispatch: PlannedDispatch
    regions: tuple[PooledRegion[B], ...]
    bound: Any

    @property
    def access(self) -> Access:
        """The bytes that it reads and writes."""
        parts = [(id(r.block), r.offset, r.offset + r.nbytes) for r in self.regions]
        return access_of(self.dispatch, parts)


class RunCommands(Protocol):
    """Commands that are being recorded; each method but the last adds one."""

    def copy(self, source: tuple[Any, int], target: tuple[Any, int], nbytes: int) -> None:
        """From a byte of a block to one of another."""

    def barrier(self, between: Between) -> None:
        """What follows waits for what came."""

    def launch(self, launch: Launch[Any]) -> None:
        """A dispatch that has workgroups."""

    def stamp(self, timers: Any, index: int) -> None:
        """Note the time when everything before is done, as number ``index``; the first one begins
        with forgetting what was noted in an earlier run."""

    def end(self) -> Any:
        """What is submitted.

        Raises:
            DeviceError: the commands could not be recorded.
        """


@frozen(eq=False)
class Script(Generic[B]):
    """Records the commands of one plan in its memory. It does not hold the recording, so that this
    may hold what was made here.

    Attributes:
        begin: Gives empty commands.
        memory: The plan's.
        launches: Its dispatches, in their order.
    """

    begin: Callable[[], RunCommands]
    memory: PooledMemory[B]
    launches: list[Launch[B]]

    def run(self, staging: Sequence[PooledRegion[B]], timers: Any = None) -> Any:
        """A whole run: copies in, dispatches with the barriers that they need (every one of them
        where they are timed, with a stamp before and behind it), copies of the outputs to
        ``staging``."""
        commands = self.begin()
        if self.memory.bound:
            # What another recording left in a buffer; it may have run on another queue.
            commands.barrier(Between.SUBMISSIONS)
        if _copy(commands, self.memory.uploads()):
            commands.barrier(Between.UPLOADS_AND_DISPATCHES)
        needed = barriers([launch.access for launch in self.launches])
        for index, launch in enumerate(self.launches):
            if needed[index] or timers:
                commands.barrier(Between.DISPATCHES)
            if timers:
                commands.stamp(timers, 2 * index)
            _launch(commands, launch)
            if timers:
                commands.barrier(Between.DISPATCHES)
                commands.stamp(timers, 2 * index + 1)
        self._fetch(commands, staging)
        commands.barrier(Between.DISPATCHES_AND_HOST)
        return commands.end()

    def download(self, staging: Sequence[PooledRegion[B]]) -> Any:
        """Copies of the last run's outputs once more."""
        commands = self.begin()
        self._fetch(commands, staging)
        return commands.end()

    def alone(self, launch: Launch[B]) -> Any:
        """One dispatch, on memory that the host looks at afterwards."""
        commands = self.begin()
        _launch(commands, launch)
        commands.barrier(Between.DISPATCHES_AND_HOST)
        return commands.end()

    def _fetch(self, commands: RunCommands, staging: Sequence[PooledRegion[B]]) -> None:
        pairs = self.memory.downloads(staging)
        if any(a is not b for a, b in pairs):
            commands.barrier(Between.DISPATCHES_AND_DOWNLOADS)
            if _copy(commands, pairs):
                commands.barrier(Between.DOWNLOADS_AND_HOST)


def exchange(
    commands: RunCommands, piece: PooledRegion[B], copies: Sequence[PieceCopy[B]], *, to_host: bool
) -> None:
    """The commands of `tflgpu.backend_kit.heaps.Heaps._copy`."""
    commands.barrier(Between.SUBMISSIONS)
    for each in copies:
        place = each.region.block, each.region.offset + each.at
        hosts = piece.block, piece.offset + each.start
        source, target = (place, hosts) if to_host else (hosts, place)
        commands.copy(source, target, each.nbytes)
    commands.barrier(Between.SUBMISSIONS)
    if to_host:
        commands.barrier(Between.DOWNLOADS_AND_HOST)


def _launch(commands: RunCommands, launch: Launch[B]) -> None:
    if all(launch.dispatch.groups):
        commands.launch(launch)


def _copy(commands: RunCommands, pairs: Sequence[tuple[PooledRegion[B], PooledRegion[B]]]) -> bool:
    """Copy regions; whether there was anything to copy."""
    moved = [(a, b) for a, b in pairs if a.nbytes and a is not b]
    for source, target in moved:
        commands.copy((source.block, source.offset), (target.block, target.offset), source.nbytes)
    return bool(moved)
