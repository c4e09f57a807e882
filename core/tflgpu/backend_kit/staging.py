"""Host memory for inputs and outputs, and the copies that a run's list of commands needs for it,
before the kernels and after them (OpenCL, CUDA, Level Zero).

With memory of its own the device gets copies. Where host and device share memory, or where an input
or output is bound to a buffer, a backend has kinds of `Staging` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

import attrs

from tflgpu.backend_kit.base_buffer import flat_bytes
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.ir.dtypes import Array
from tflgpu.values import frozen


class Commands(Protocol):
    """Commands in order, on one queue."""

    def write(self, buffer: Any, array: Array) -> None:
        """Add: copy a host array to the start of a buffer."""

    def read(self, buffer: Any, array: Array) -> None:
        """Add: fill a host array from the start of a buffer."""

    def submit(self) -> None:
        """Have them all be done.

        Raises:
            DeviceError: the driver refused one.
        """


C = TypeVar("C", bound=Commands)


class Staging(Generic[C]):
    """One input or output: a host array, and the region of a device buffer.

    Attributes:
        is_copied: Whether a run copies one to the other.
        is_shared: Whether the device uses the array in place.
    """

    is_copied = False
    is_shared = False

    def __init__(self, array: Array, region: Any) -> None:
        self.array = array
        self.region = region

    def before(self, commands: C) -> None:
        """Add what happens before the kernels."""

    def after(self, commands: C) -> None:
        """Add what happens after the kernels."""

    def release(self) -> None:
        """Let go of the buffer, which is freed next; the array lives as long as someone holds
        it."""


class CopiedInput(Staging[C]):
    """An input of which the device gets a copy."""

    is_copied = True

    def before(self, commands: C) -> None:
        """Upload it."""
        commands.write(self.region.buffer, self.array)


class CopiedOutput(Staging[C]):
    """An output that is copied to the host."""

    is_copied = True

    def after(self, commands: C) -> None:
        """Download it."""
        commands.read(self.region.buffer, self.array)


class StagedOutputs(OutputSet, Generic[C]):
    """Arrays for all outputs.

    Attributes:
        commands: A whole run that leaves its outputs here.
        download: The part of it after the kernels.
    """

    def __init__(self, arrays: Sequence[Array], commands: C, download: C) -> None:
        super().__init__(arrays)
        self.commands = commands
        self.download = download


@frozen(eq=False)
class Outline(Generic[C]):
    """What the commands of a run are made of, for any set of output arrays.

    Attributes:
        new: Makes an empty list of commands.
        inputs, outputs: How each is moved. Items of the lists may be others later.
        add_kernels: Adds the dispatches of a run to commands.
        fetched: Of each output, how many bytes are copied to the host.
    """

    new: Callable[[], C]
    inputs: list[Staging[C]]
    outputs: list[Staging[C]]
    add_kernels: Callable[[C], None]
    fetched: list[int] = attrs.field(init=False)

    @fetched.default
    def _all(self) -> list[int]:
        return [staging.array.nbytes for staging in self.outputs]

    @property
    def lendable(self) -> list[int]:
        """Outputs that are copied. Arrays that the device uses in place are never lent, nor is
        anything beside them: a set has memory for all outputs."""
        copied = [i for i, staging in enumerate(self.outputs) if staging.is_copied]
        return [] if any(staging.is_shared for staging in self.outputs) else copied

    @property
    def copies(self) -> tuple[int, int]:
        """Bytes that a run copies to the device, and to the host."""
        sent = sum(staging.array.nbytes for staging in self.inputs if staging.is_copied)
        copied = zip(self.outputs, self.fetched, strict=True)
        return sent, sum(nbytes for staging, nbytes in copied if staging.is_copied)

    def before(self) -> C:
        """The part of a run before the kernels."""
        commands = self.new()
        for staging in (*self.inputs, *self.outputs):
            staging.before(commands)
        return commands

    def make(self, arrays: Sequence[Array]) -> StagedOutputs[C]:
        """A run, and the part of it after the kernels, that leave the outputs in ``arrays``."""
        whole, download = self.before(), self.new()
        self.add_kernels(whole)
        for commands in (whole, download):
            for staging in self.inputs:
                staging.after(commands)
            places = zip(self.outputs, arrays, self.fetched, strict=True)
            for staging, array, nbytes in places:
                if staging.is_copied:
                    commands.read(staging.region.buffer, flat_bytes(array)[:nbytes])
                else:
                    staging.after(commands)
        return StagedOutputs(arrays, whole, download)

    def remake(self, outputs: StagedOutputs[C]) -> None:
        """The same for a set that there is, after a change."""
        made = self.make(outputs.arrays)
        outputs.commands, outputs.download = made.commands, made.download

    def clear(self) -> None:
        """Let go of all arrays and regions."""
        self.inputs.clear()
        self.outputs.clear()


def output_sets(
    outline: Outline[C],
    arrays: Callable[[], Sequence[Array]],
    finish: Callable[[], None],
    *,
    lends: bool,
) -> OutputSets[StagedOutputs[C]]:
    """The sets of a recording, of which the first is that of the outline's own arrays.

    Args:
        outline: Makes their commands.
        arrays: Makes host arrays for another set.
        finish: Returns when the device has done all that was submitted to read outputs.
        lends: Whether there may be other sets: not between guard bands.
    """

    def fill(given: StagedOutputs[C]) -> None:
        given.download.submit()
        finish()

    lendable: Collection[int] = outline.lendable if lends else ()
    first = outline.make([s.array for s in outline.outputs])
    return OutputSets(first, lendable, lambda: outline.make(arrays()), fill)
