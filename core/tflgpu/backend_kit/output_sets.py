"""Sets of output memory, from which a recording lends results without a copy
(`tflgpu.contract.offers`)."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

#: Sets that lending may make of a recording's outputs, and their bytes in all: they may be pinned
#: memory, which is scarce.
_MOST_SETS = 4


_MOST_BYTES = 128 << 20


class _Loan:
    """The base of a lent array and of every view of it, so that its end is theirs."""

    def __init__(self, array: Array) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array = array


class NoRoomError(DeviceError):
    """There is no memory for another set of outputs. The device and its recordings are as good as
    before."""


class OutputSet:
    """Host memory for all outputs of a recording; backends add what fills it.

    Attributes:
        arrays: One per output.
        loans: Of arrays that were lent, some of which may be gone.
        touched: Outputs that were lent since the last run: the caller may have changed their
            contents.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self.arrays = tuple(arrays)
        self.touched: set[int] = set()
        self.loans: list[weakref.ref[_Loan]] = []

    @property
    def is_free(self) -> bool:
        """Whether no lent array is alive."""
        if self.loans:
            self.loans = [loan for loan in self.loans if loan() is not None]
        return not self.loans

    def lend(self, index: int) -> Array:
        """An array over the memory of an output."""
        loan = _Loan(self.arrays[index])
        self.loans.append(weakref.ref(loan))
        self.touched.add(index)
        return np.asarray(loan)

    def release(self) -> None:
        """Drop the memory; it lives on in arrays that were lent."""
        self.arrays = ()


S = TypeVar("S", bound=OutputSet)


def _no_other() -> Any:
    raise NoRoomError("nothing of this recording is lent")


def _fill_nothing(given: object) -> None:
    """Where nothing is lent, there is nothing to put elsewhere."""


class OutputSets(Generic[S]):
    """The sets of one recording: how a `Lender` keeps its word. One thread at a time.

    Args:
        first: The set of a recording that never lends.
        lendable: Outputs whose place can be chosen; the others are the same in every set. None
            of them: then the rest is not needed.
        make: Another set. Raises `DeviceError` or `MemoryError` where there is no memory for it.
        fill: Put the results of the last run into a set once more.

    ``make`` and ``fill`` must not hold the recording, which would then not end with its last
    holder.
    """

    def __init__(
        self,
        first: S,
        lendable: Collection[int] = (),
        make: Callable[[], S] = _no_other,
        fill: Callable[[S], None] = _fill_nothing,
    ) -> None:
        self.current = first
        self.lendable = frozenset(lendable)
        self._make, self._fill = make, fill
        self._bytes = sum(first.arrays[i].nbytes for i in lendable)
        self._sets = [first]
        self._has_run = False

    def for_run(self) -> S:
        """Where the next run is to leave its outputs."""
        current = self.current
        if current.loans and not current.is_free:
            # Lending saw to it that there is another.
            current = self.current = self._other() or self._made()
        current.touched.clear()
        self._has_run = True
        return current

    def lend(self, index: int) -> Array | None:
        """Output ``index`` of the last run for the caller to keep; None where it must be copied."""
        if index not in self.lendable or not self._has_run:
            return None
        if index in self.current.touched:
            self.settle()
        if self._other() is None:
            count = len(self._sets) + 1
            if count > _MOST_SETS or count * self._bytes > _MOST_BYTES:
                return None
            try:
                self._made()
            except NoRoomError:
                return None  # a copy needs none of the device's memory
        return self.current.lend(index)

    def settle(self) -> None:
        """Give `outputs` memory that is not lent, with the results of the last run."""
        if not self.current.touched:
            return
        other = self._other() or self._made()
        self._fill(other)
        other.touched.clear()
        self.current = other

    def change(self, lendable: Collection[int], remake: Callable[[S], None]) -> None:
        """Other outputs can be lent from now on; ``remake`` changes what fills a set."""
        self.lendable = frozenset(lendable)
        for each in self._sets:
            remake(each)

    def release(self) -> None:
        """Let go of all sets."""
        for each in self._sets:
            each.release()

    # Inside

    def _other(self) -> S | None:
        """A free set that is not the current one."""
        return next((s for s in self._sets if s is not self.current and s.is_free), None)

    def _made(self) -> S:
        try:
            made = self._make()
        except (DeviceError, MemoryError) as error:
            raise NoRoomError(
                f"making room for outputs beside those that are lent: {error}"
            ) from error
        self._sets.append(made)
        return made
