"""A recording's memory in pools: an arena, constants, inputs and outputs.

With memory of its own the device has copies of inputs and outputs, and the host's arrays lie in
mapped memory beside. Where host and device share memory, the arrays are what kernels read and
write. With guard bands everything is in memory that the host sees, each region of the arena
fenced in by itself, so that what was written where can be looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_buffer import flat_bytes
from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.heaps import HeapKind, Heaps
from tflgpu.backend_kit.plan_memory import BasePlanMemory, named_arenas
from tflgpu.backend_kit.pools import B, MemoryPool, PooledRegion
from tflgpu.backend_kit.shared_weights import Made, SharedWeights
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan, PlannedIO
from tflgpu.contract.buffers import Bytes
from tflgpu.contract.memory_use import MemoryUse, Use
from tflgpu.ir.dtypes import Array

#: Inputs up to this size in all are written straight into device memory, where the host can; some
#: machines have just 256 MiB of it.
_REACHED_INPUTS = 64 << 20
#: Outputs up to this size are stored straight into host memory: shorter than a copy.
_SMALL_OUTPUT = 64 << 10


class PooledMemory(BasePlanMemory[PooledRegion[B]], Generic[B]):
    """The memory of one recording, in the heaps of a device.

    Attributes:
        in_place: Whether kernels use the host's arrays.
        input_arrays, output_arrays: The host's, one per input and output; there once it is
            allocated.
        fetched: Of each output, how many bytes are copied.
        input_staging, output_staging: Where these arrays lie: in the region that kernels use where
            the host reaches that, or in one that is copied from or to.
    """

    def __init__(
        self,
        heaps: Heaps[B],
        plan: Plan,
        *,
        shared: bool,
        guarded: bool,
        ledger: Ledger | None = None,
    ) -> None:
        """Lay out everything; there is no memory before `allocate`.

        Args:
            heaps: The device's memory.
            plan: What needs memory.
            shared: Let kernels use the host's arrays in place.
            guarded: Fence every buffer in.
            ledger: Counts what is allocated.

        Raises:
            DeviceError: something is larger than any memory of the device.
        """
        super().__init__(limit=heaps.limit, guarded=guarded, ledger=ledger)
        self.heaps = heaps
        self._plan = plan
        self.in_place = shared or guarded
        kind = self._kind = HeapKind.HOST if self.in_place else HeapKind.DEVICE
        self._arena = heaps.pool(kind, Use.ARENA)
        self._edges = heaps.pool(kind)
        self._staging = heaps.pool(HeapKind.HOST)
        self._reached = heaps.pool(HeapKind.REACHED)
        self._pools = (self._arena, self._edges, self._staging, self._reached)
        self.input_arrays: tuple[Array, ...] = ()
        self.output_arrays: tuple[Array, ...] = ()
        self._direct: set[int] = set()  # regions, by id, that host and device both reach
        sizes = () if guarded else plan.arenas
        self._arenas = [self._between(name, nbytes) for name, nbytes in named_arenas(sizes)]
        self.inputs = [self._input(io) for io in plan.inputs]
        read = _outputs_read(plan)
        self.outputs = [self._output(io, i in read) for i, io in enumerate(plan.outputs)]
        for dispatch in plan.dispatches:  # so that every region is in its pool
            for ref in dispatch.refs:
                if isinstance(ref, ArenaRef):
                    self.resolve(ref)
        self.fetched = [io.nbytes for io in plan.outputs]
        self.input_staging = self._stage(self.inputs)
        self.output_staging = self._stage(self.outputs)

    def allocate(self, weights: SharedWeights[PooledRegion[B]] | None) -> None:
        """Allocate what was laid out, and upload the constants that are not among ``weights``.

        Raises:
            DeviceError: memory ran out; nothing is left then.
        """
        plan = self._plan
        with releasing_on_error(self):
            self.hold(weights, plan.constants, self._new_constants, self._contents)
            for pool in self._pools:
                pool.allocate(self.ledger)
            self._fence()
            self.input_arrays = self._arrays(plan.inputs, self.input_staging)
            self.output_arrays = self._arrays(plan.outputs, self.output_staging)

    @property
    def footprint(self) -> MemoryUse:
        """What was laid out, and the constants."""
        weights = self.heaps.pool(self._kind, Use.WEIGHTS)
        sizes = self._plan.constants.sizes
        for i in self._plan.own_constants:
            weights.region("a constant", sizes[i], self.band)
        staging = (self._edges, self._staging, self._reached)
        return MemoryUse(self._arena.nbytes, weights.nbytes, sum(p.nbytes for p in staging))

    def uploads(self) -> list[tuple[PooledRegion[B], PooledRegion[B]]]:
        """What is copied before the kernels: from where to where."""
        pairs = zip(self.input_staging, self.inputs, strict=True)
        return [pair for i, pair in enumerate(pairs) if InputRef(i) not in self.bound]

    def downloads(
        self, staging: Sequence[PooledRegion[B]]
    ) -> list[tuple[PooledRegion[B], PooledRegion[B]]]:
        """What is copied after them, to ``staging``."""
        pairs = enumerate(zip(self.outputs, staging, self.fetched, strict=True))
        return [
            (made if made is place else self.part(made, nbytes), place)
            for i, (made, place, nbytes) in pairs
            if OutputRef(i) not in self.bound
        ]

    def part(self, region: PooledRegion[B], nbytes: int) -> PooledRegion[B]:
        """The region's first bytes, those that kernels see, without guard bands."""
        return PooledRegion(region.name, nbytes, 0, region.offset, placed=region.block)

    def release(self) -> None:
        """Free everything; the device must be done with it."""
        super().release()
        self.input_arrays = self.output_arrays = ()
        for pool in self._pools:
            pool.release()

    # Inside

    def _look(self, region: PooledRegion[B], start: int, nbytes: int) -> Bytes:
        at = region.offset + start
        return region.block.bytes[at : at + nbytes]

    def _overwrite(self, region: PooledRegion[B], value: int) -> None:
        region.bytes[:] = value

    def _between(self, name: str, nbytes: int) -> PooledRegion[B]:
        return self._arena.region(name, nbytes, self.band)

    def _region(self, name: str, nbytes: int) -> PooledRegion[B]:
        return self._edges.region(name, nbytes, self.band)

    def _new_constants(self, indices: Sequence[int]) -> list[Made[PooledRegion[B]]]:
        """All in one pool, which is freed when none of them is used."""
        pool = self.heaps.pool(self._kind, Use.WEIGHTS)
        constants, ledger = self._plan.constants.only(indices), self.ledger.account.ledger()
        regions = [
            pool.region(f"constant {i}", nbytes, self.band)
            for i, nbytes in zip(indices, constants.sizes, strict=True)
        ]
        with releasing_on_error(pool):
            pool.allocate(ledger)
            self.heaps.fill(regions, map(flat_bytes, constants), self._kind)
        free = _Freeing(pool, ledger, len(regions))
        return [(region, free) for region in regions]

    def _contents(self, region: PooledRegion[B]) -> Bytes:
        if self.in_place:
            return region.bytes
        return self.heaps.download(region, region.nbytes)

    def _input(self, io: PlannedIO) -> PooledRegion[B]:
        name = f"input {io.name}"
        if self.in_place or not self.heaps.has_reached:
            return self._region(name, io.nbytes)
        if sum(each.nbytes for each in self._plan.inputs) > _REACHED_INPUTS:
            return self._region(name, io.nbytes)
        region = self._reached.region(name, io.nbytes)
        self._direct.add(id(region))
        return region

    def _output(self, io: PlannedIO, read_back: bool) -> PooledRegion[B]:
        name = f"output {io.name}"
        if self.in_place or read_back or io.nbytes > _SMALL_OUTPUT:
            return self._region(name, io.nbytes)
        region = self._staging.region(name, io.nbytes)
        self._direct.add(id(region))
        return region

    def _stage(self, regions: Sequence[PooledRegion[B]]) -> list[PooledRegion[B]]:
        """Where the host writes or reads: the region itself where it can."""
        return [
            r
            if self.in_place or id(r) in self._direct
            else self._staging.region(f"{r.name} on the host", r.nbytes)
            for r in regions
        ]

    def _arrays(
        self, ios: Sequence[PlannedIO], regions: Sequence[PooledRegion[B]]
    ) -> tuple[Array, ...]:
        found = []
        for io, region in zip(ios, regions, strict=True):
            region.bytes[:] = 0
            found.append(region.bytes.view(io.dtype.numpy).reshape(io.shape))
        return tuple(found)

    def _slice(self, name: str, ref: ArenaRef) -> PooledRegion[B]:
        if not self._arenas or not ref.nbytes:
            return self._between(name, ref.nbytes)
        arena = self._arenas[ref.arena]
        return PooledRegion(name, ref.nbytes, 0, arena.offset + ref.offset, arena)

    def _fence(self) -> None:
        """Put the bands' pattern where it belongs."""
        if self.band:
            for region in self.regions:
                start, _ = region.bound
                after = region.offset + region.nbytes
                for at in (start, after):
                    region.block.bytes[at : at + self.band] = self._pattern


class _Freeing(Generic[B]):
    """The end of a pool of constants, which comes with that of the last of them."""

    def __init__(self, pool: MemoryPool[B], ledger: Ledger, users: int) -> None:
        self._pool, self._ledger, self._users = pool, ledger, users

    def __call__(self) -> None:
        self._users -= 1
        if not self._users:
            self._pool.release()
            self._ledger.close()


def _outputs_read(plan: Plan) -> set[int]:
    """Outputs that some dispatch reads again."""
    return {
        ref.index
        for dispatch in plan.dispatches
        for ref, buffer in zip(dispatch.refs, dispatch.kernel.buffers, strict=False)
        if isinstance(ref, OutputRef) and buffer.access != "write"
    }
