"""Where a run leaves its outputs for the host: each set of arrays has a command buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.contract.lending import OutputSet, OutputSets
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

from tflgpu_vulkan.blocks import HOST, Pool, Region
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.memory import PlanMemory

#: Records commands that fill the given regions.
Record = Callable[[Sequence[Region]], Any]


class Outputs(OutputSet):
    """Memory for all outputs. Small ones, which kernels store straight to the host, are the same
    in every set.

    Attributes:
        regions: One per output.
        commands: A whole run that leaves its outputs here.
        download: The copy of the last run's outputs to here, once recorded.
    """

    def __init__(
        self, regions: Sequence[Region], arrays: Sequence[Array], commands: Any, pool: Pool | None
    ) -> None:
        super().__init__(arrays)
        self.regions = tuple(regions)
        self.commands = commands
        self.download: Any = None
        self._pool = pool

    def release(self) -> None:
        """Free the memory, as soon as nobody holds any of it."""
        super().release()
        if self._pool is not None:
            self._pool.release()


def output_sets(
    context: Context,
    memory: PlanMemory,
    record_run: Record,
    record_download: Record,
    submit: Callable[[Any, str], None],
) -> OutputSets[Outputs]:
    """The sets of a recording, of which the first is the plan's own memory.

    Raises:
        DeviceError: a command buffer could not be recorded.
    """
    # Outputs that are copied to the host: those whose place can be chosen.
    places = zip(memory.outputs, memory.output_staging, strict=True)
    copied = [i for i, (source, target) in enumerate(places) if source is not target]

    def make() -> Outputs:
        pool = Pool(context, HOST, context.details.alignment)
        regions, arrays = list(memory.output_staging), list(memory.output_arrays)
        for i in copied:
            regions[i] = pool.region(f"{memory.outputs[i].name} on the host", regions[i].nbytes)
        pool.allocate(memory.ledger)
        try:
            commands = record_run(regions)
        except DeviceError:
            pool.release()
            raise
        for i in copied:
            arrays[i] = regions[i].bytes.view(arrays[i].dtype).reshape(arrays[i].shape)
        return Outputs(regions, arrays, commands, pool)

    def fill(outputs: Outputs) -> None:
        if outputs.download is None:
            outputs.download = record_download(outputs.regions)
        submit(outputs.download, "reading outputs")

    staging = memory.output_staging
    first = Outputs(staging, memory.output_arrays, record_run(staging), None)
    # What is slow to read is read once, by a copy.
    lendable = copied if context.details.has_cached_memory else []
    return OutputSets(first, lendable, make, fill)
