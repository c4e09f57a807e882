"""Where a run leaves its outputs for the host: each set of arrays has commands of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from tflgpu.compiler.plan import PlannedIO
from tflgpu.contract.lending import OutputSet, OutputSets
from tflgpu.contract.memory_use import Ledger
from tflgpu.ir.dtypes import Array

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.finish import finish
from tflgpu_opencl.native import Native
from tflgpu_opencl.staging import Copied, Shared, Staging, pinned_array


class Outputs(OutputSet):
    """Arrays for all outputs.

    Attributes:
        commands: A whole run that leaves its outputs here.
        download: The part of it after the kernels.
    """

    def __init__(self, arrays: Sequence[Array], commands: Commands, download: Commands) -> None:
        super().__init__(arrays)
        self.commands = commands
        self.download = download


@attrs.frozen
class Outline:
    """What the commands of a run are made of, for any set of output arrays.

    Attributes:
        queue: Of the recording.
        native: None where pyopencl enqueues.
        inputs, outputs: How each is moved. Items of the lists may be others later.
        add_kernels: Adds the dispatches of a run to commands.
    """

    queue: Any
    native: Native | None
    inputs: list[Staging]
    outputs: list[Staging]
    add_kernels: Callable[[Commands], None]

    @property
    def lendable(self) -> list[int]:
        """Outputs that are copied. Arrays that the device uses in place are never lent, nor is
        anything beside them: a set has memory for all outputs."""
        copied = [i for i, staging in enumerate(self.outputs) if isinstance(staging, Copied)]
        shares = any(isinstance(staging, Shared) for staging in self.outputs)
        return [] if shares else copied

    def before(self) -> Commands:
        """The part of a run before the kernels."""
        commands = Commands(self.queue, self.native)
        for staging in (*self.inputs, *self.outputs):
            staging.before(commands)
        return commands

    def make(self, arrays: Sequence[Array]) -> Outputs:
        """A run, and the part of it after the kernels, that leave the outputs in ``arrays``."""
        whole, download = self.before(), Commands(self.queue, self.native)
        self.add_kernels(whole)
        for commands in (whole, download):
            for staging in self.inputs:
                staging.after(commands)
            for staging, array in zip(self.outputs, arrays, strict=True):
                if isinstance(staging, Copied):
                    commands.read(staging.region.buffer, array)
                else:
                    staging.after(commands)
        return Outputs(arrays, whole, download)

    def remake(self, outputs: Outputs) -> None:
        """The same for a set that there is, after a change."""
        made = self.make(outputs.arrays)
        outputs.commands, outputs.download = made.commands, made.download


def output_sets(
    context: Any, ios: Sequence[PlannedIO], outline: Outline, ledger: Ledger, *, lends: bool
) -> OutputSets[Outputs]:
    """The sets of a recording, of which the first is that of the outline's own arrays.

    Args:
        context: The device's.
        ios: The outputs of the plan.
        outline: Makes their commands.
        ledger: Counts the memory of others.
        lends: Whether there may be other sets: not between guard bands.
    """

    def fill(given: Outputs) -> None:
        given.download.submit()
        finish(outline.queue, "reading outputs")

    return OutputSets(
        outline.make([s.array for s in outline.outputs]),
        outline.lendable if lends else (),
        lambda: outline.make([pinned_array(context, outline.queue, io, ledger) for io in ios]),
        fill,
    )
