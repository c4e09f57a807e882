"""Where a run leaves its outputs for the host: one set of arrays, or another while somebody keeps
arrays of that one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

from tflgpu_vulkan.blocks import HOST, Pool, Region
from tflgpu_vulkan.context import Context
from tflgpu_vulkan.memory import PlanMemory

#: Sets that lending may make, and their bytes in all: pinned memory is scarce.
_MOST_SETS = 4
_MOST_BYTES = 128 << 20

#: Records commands that fill the given regions.
Record = Callable[[Sequence[Region]], Any]


class _Loan:
    """The base of a lent array and of every view of it, so that its end is theirs."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array


class OutputSet:
    """Memory for all outputs. Small ones, which kernels store straight to the host, are the same
    in every set.

    Attributes:
        regions, arrays: One per output.
        touched: Outputs that were lent since the last run: their contents are somebody else's.
        commands: A whole run that leaves its outputs here, once recorded.
        download: The copy of the last run's outputs to here, once recorded.
    """

    def __init__(
        self, regions: Sequence[Region], arrays: Sequence[Array], pool: Pool | None
    ) -> None:
        self.regions = tuple(regions)
        self.arrays = tuple(arrays)
        self.touched: set[int] = set()
        self.commands: Any = None
        self.download: Any = None
        self._pool = pool
        self._loans: list[weakref.ref[_Loan]] = []

    @property
    def is_free(self) -> bool:
        """Whether nobody holds an array of it."""
        self._loans = [loan for loan in self._loans if loan() is not None]
        return not self._loans

    def lend(self, index: int) -> Array:
        """An array over the memory of an output."""
        loan = _Loan(self.arrays[index])
        self._loans.append(weakref.ref(loan))
        self.touched.add(index)
        return np.asarray(loan)

    def release(self) -> None:
        """Free the memory, as soon as nobody holds any of it."""
        self.arrays = ()
        if self._pool is not None:
            self._pool.release()


class Outputs:
    """The sets of a recording. One thread at a time."""

    def __init__(
        self, context: Context, memory: PlanMemory, record_run: Record, record_download: Record
    ) -> None:
        self._context = context
        self._memory = memory
        self._record_run, self._record_download = record_run, record_download
        # Outputs that are copied to the host: those whose place can be chosen.
        places = zip(memory.outputs, memory.output_staging, strict=True)
        self._copied = [i for i, (source, target) in enumerate(places) if source is not target]
        self._bytes = sum(memory.outputs[i].nbytes for i in self._copied)
        self.current = OutputSet(memory.output_staging, memory.output_arrays, None)
        self.current.commands = record_run(self.current.regions)
        self._sets = [self.current]

    def for_run(self) -> OutputSet:
        """Where the next run is to leave its outputs."""
        if not self.current.is_free:
            # Lending saw to it that there is another.
            self.current = self._other() or self._made()
        self.current.touched.clear()
        return self.current

    def lend(self, index: int, submit: Callable[[Any], None]) -> Array | None:
        """As `tflgpu.runtime.lending.Lender`; ``submit`` runs commands."""
        if index not in self._copied:
            return None
        if index in self.current.touched:
            self.settle(submit)
        if self._other() is None:
            room = len(self._sets) < _MOST_SETS
            if not room or (len(self._sets) + 1) * self._bytes > _MOST_BYTES:
                return None
            try:
                self._made()
            except DeviceError:
                return None  # no memory for another: a copy needs none of the device's
        return self.current.lend(index)

    def settle(self, submit: Callable[[Any], None]) -> None:
        """As `tflgpu.runtime.lending.Lender`."""
        if not self.current.touched:
            return
        other = self._other() or self._made()
        if other.download is None:
            other.download = self._record_download(other.regions)
        submit(other.download)
        other.touched.clear()
        self.current = other

    def release(self) -> None:
        """Free what the sets have besides the plan's own memory."""
        for each in self._sets:
            each.release()

    # Inside

    def _other(self) -> OutputSet | None:
        """A free set that is not the current one."""
        return next((s for s in self._sets if s is not self.current and s.is_free), None)

    def _made(self) -> OutputSet:
        memory = self._memory
        pool = Pool(self._context, HOST, self._context.details.alignment)
        regions, arrays = list(memory.output_staging), list(memory.output_arrays)
        for i in self._copied:
            regions[i] = pool.region(f"{memory.outputs[i].name} on the host", regions[i].nbytes)
        pool.allocate()
        for i in self._copied:
            arrays[i] = regions[i].bytes.view(arrays[i].dtype).reshape(arrays[i].shape)
        made = OutputSet(regions, arrays, pool)
        try:
            made.commands = self._record_run(made.regions)
        except DeviceError:
            pool.release()
            raise
        self._sets.append(made)
        return made
