"""Outputs in pooled memory: each set of output arrays has recorded commands of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from tflgpu.backend_kit.base_device import releasing_on_error
from tflgpu.backend_kit.heaps import HeapKind
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pools import B, MemoryPool, PooledRegion
from tflgpu.ir.dtypes import Array


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
