"""Where a run leaves its outputs for the host: each set of arrays has commands of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tflgpu.ir.dtypes import Array
from tflgpu.runtime.lending import OutputSet, OutputSets
from tflgpu.runtime.protocols import PlannedIO

from tflgpu_opencl.commands import Commands
from tflgpu_opencl.finish import finish
from tflgpu_opencl.native import Native
from tflgpu_opencl.staging import Copied, Staging, pinned_array


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


def output_sets(
    context: Any,
    queue: Any,
    native: Native | None,
    ios: Sequence[PlannedIO],
    inputs: Sequence[Staging],
    outputs: Sequence[Staging],
    add_kernels: Callable[[Commands], None],
    *,
    lends: bool,
) -> OutputSets[Outputs]:
    """The sets of a recording, of which the first is that of ``outputs``.

    Args:
        context: The device's.
        queue: Of the recording.
        native: None where pyopencl enqueues.
        ios: The outputs of the plan.
        inputs: How inputs are moved.
        outputs: How outputs are.
        add_kernels: Adds the dispatches of a run to commands.
        lends: Whether there may be other sets: not between guard bands. Arrays that the device
            uses in place are never lent.
    """
    copied = [s for s in outputs if isinstance(s, Copied)]
    is_lender = lends and len(copied) == len(outputs)

    def end(commands: Commands, arrays: Sequence[Array]) -> None:
        for staging in inputs:
            staging.after(commands)
        for staging, array in zip(outputs, arrays, strict=True):
            if isinstance(staging, Copied):
                commands.read(staging.region.buffer, array)
            else:
                staging.after(commands)

    def made(arrays: Sequence[Array]) -> Outputs:
        whole, download = Commands(queue, native), Commands(queue, native)
        for staging in (*inputs, *outputs):
            staging.before(whole)
        add_kernels(whole)
        for commands in (whole, download):
            end(commands, arrays)
        return Outputs(arrays, whole, download)

    def fill(given: Outputs) -> None:
        given.download.submit()
        finish(queue, "reading outputs")

    first = made([s.array for s in outputs])
    return OutputSets(
        first,
        range(len(outputs)) if is_lender else (),
        lambda: made([pinned_array(context, queue, io) for io in ios]),
        fill,
    )
