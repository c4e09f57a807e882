"""Buffers and shared arrays of the kernel interpreter, with the checks that a device leaves out.

Checked are indices; two invocations writing one element, or one reading what another wrote
with nothing between them to order the two; and, for buffers that are only written, an element
written twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.frame import Index
from tflgpu.language.types import ROW_ALIGNMENT, TILE, Scalar
from tflgpu.values import define

_NOBODY, _SEVERAL = -1, -2

#: Undefined contents must not look like zeros: a kernel may not rely on them.
_UNDEFINED: dict[Scalar, Any] = {
    Scalar.F16: np.nan,
    Scalar.F32: np.nan,
    Scalar.I32: -0x40000000,
    Scalar.U32: 0xC0000000,
    Scalar.BOOL: True,
}


@define
class Owners:
    """Who touched each element since the last barrier."""

    name: str
    writer: npt.NDArray[np.int32]
    reader: npt.NDArray[np.int32]
    order: str  # what is missing where two touch one element

    @classmethod
    def of(cls, name: str, size: int, order: str) -> Owners:
        """An empty record: no element was read or written."""
        nobody = np.full(size, _NOBODY, np.int32)
        return cls(name, nobody, nobody.copy(), order)

    def read(self, at: Index, who: Index) -> None:
        """Raises: KernelError: another invocation wrote the element."""
        writer = self.writer[at]
        if ((writer != _NOBODY) & (writer != who)).any():
            raise KernelError(f"{self.name} is read {self.order} after its write")
        reader = self.reader[at]
        self.reader[at] = np.where((reader == _NOBODY) | (reader == who), who, _SEVERAL)
        # Where several read one element at once, the assignment kept just one of them.
        differs = self.reader[at] != who
        self.reader[at[differs]] = _SEVERAL

    def write(self, at: Index, who: Index) -> None:
        """Raises: KernelError: another invocation read or wrote the element."""
        for touched in (self.writer[at], self.reader[at]):
            if ((touched != _NOBODY) & (touched != who)).any():
                raise KernelError(f"{self.name} is overwritten {self.order}")
        self.writer[at] = who
        if (self.writer[at] != who).any():
            raise KernelError(f"two invocations write one element of {self.name}")

    def read_together(self, at: Index) -> None:
        """Several invocations read the elements, none of them one in particular.

        Raises:
            KernelError: anyone wrote an element.
        """
        if (self.writer[at] != _NOBODY).any():
            raise KernelError(f"{self.name} is read {self.order} after its write")
        self.reader[at] = _SEVERAL

    def write_together(self, at: Index) -> None:
        """Several invocations write the elements, none of them one in particular.

        Raises:
            KernelError: anyone read or wrote an element, or it is there twice.
        """
        if ((self.writer[at] != _NOBODY) | (self.reader[at] != _NOBODY)).any():
            raise KernelError(f"{self.name} is overwritten {self.order}")
        self.writer[at] = np.arange(len(at))
        if (self.writer[at] != np.arange(len(at))).any():
            raise KernelError(f"two subgroups write one element of {self.name}")
        self.writer[at] = _SEVERAL

    def forget(self, at: Index) -> None:
        """A barrier passed for these elements."""
        self.writer[at] = _NOBODY
        self.reader[at] = _NOBODY


class BufferMemory:
    """A buffer's array for one run of a kernel."""

    def __init__(self, buffer: KernelBuffer, array: Array, races: bool) -> None:
        if array.ndim != 1 or array.dtype != buffer.scalar.numpy or array.size % buffer.width:
            raise KernelError(
                f"buffer {buffer.name} wants flat {buffer.scalar.value} in "
                f"multiples of {buffer.width}, got {array.dtype}{list(array.shape)}"
            )
        self.buffer = buffer
        self.flat = array
        self.rows = array if buffer.width == 1 else array.reshape(-1, buffer.width)
        self._written = np.zeros(array.size, np.bool_) if races else None
        self._turn = np.zeros(array.size if races else 0, np.int32)
        self._owners = None
        if races and buffer.access == "read_write":
            self._owners = Owners.of(buffer.name, array.size, "by several invocations")

    def load(self, index: Array, scalar: bool, who: Index) -> Array:
        """Elements, or lanes with ``scalar``; one for each entry of ``index``."""
        source = self.flat if scalar else self.rows
        self._check(index, source)
        if self._owners is not None:
            at, owner = self._lanes(index, scalar, who)
            self._owners.read(at, owner)
        return np.asarray(source.take(index, axis=0))

    def store(self, index: Array, value: Array, scalar: bool, who: Index) -> None:
        """Write elements, or lanes with ``scalar``."""
        target = self.flat if scalar else self.rows
        self._check(index, target)
        kept = value.astype(self.flat.dtype)
        if self.buffer.scalar.is_storage_only and (kept != value).any():
            raise KernelError(
                f"{value[kept != value][0]} stored in {self.buffer.name} of "
                f"{self.buffer.scalar.value}"
            )
        if self._written is not None:
            at, owner = self._lanes(index, scalar, who)
            if self._owners is not None:
                self._owners.write(at, owner)
            else:
                self._write_once(at)
        target[index] = kept

    def _write_once(self, at: Index) -> None:
        assert self._written is not None
        if self._written[at].any():
            raise KernelError(f"an element of {self.buffer.name} is written twice")
        self._written[at] = True
        turn = np.arange(len(at), dtype=np.int32)
        self._turn[at] = turn
        if (self._turn[at] != turn).any():
            raise KernelError(f"two invocations write one element of {self.buffer.name}")

    def _check(self, index: Array, source: Array) -> None:
        if index.size and (index.min() < 0 or index.max() >= len(source)):
            bad = index[(index < 0) | (index >= len(source))][0]
            raise KernelError(f"{self.buffer.name}[{bad}] of {len(source)} elements")

    def _lanes(self, index: Array, scalar: bool, who: Index) -> tuple[Index, Index]:
        """Every lane that is touched, and by whom."""
        width = 1 if scalar else self.buffer.width
        if len(index) != len(who):
            index = np.broadcast_to(index, who.shape)
        if width == 1:
            return index.astype(np.int64), who
        at = index.astype(np.int64)[:, None] * width + np.arange(width)
        return at.ravel(), np.repeat(who, width)


class SharedMemory:
    """A shared array of every workgroup of a batch."""

    def __init__(self, array: SharedArray, groups: int, races: bool) -> None:
        self.array = array
        lanes = (array.type.width,) if array.type.width > 1 else ()
        shape = (groups * array.count, *lanes)
        undefined = _UNDEFINED[array.type.scalar]
        self._data = np.full(shape, undefined, array.type.scalar.numpy)
        self._owners = Owners.of(array.name, groups * array.count, "without a barrier")
        self._races = races

    def load(self, index: Array, group: Index, who: Index) -> Array:
        """One element for each invocation."""
        at = self._at(index, group)
        if self._races:
            self._owners.read(at, who)
        return np.asarray(self._data[at])

    def store(self, index: Array, value: Array, group: Index, who: Index) -> None:
        """Write one element for each invocation."""
        at = self._at(index, group)
        if self._races:
            self._owners.write(at, who)
        self._data[at] = value

    def load_tiles(self, index: Index, stride: int, group: Index) -> Array:
        """A matrix tile of f16 for each subgroup: [subgroups, 16, 16]."""
        at = self._tile_elements(index, stride, group, np.float16)
        if self._races:
            self._owners.read_together(at.ravel())
        return np.ascontiguousarray(self._data[at]).view(np.float16).reshape(-1, TILE, TILE)

    def store_tiles(self, index: Index, stride: int, tiles: Array, group: Index) -> None:
        """Write a matrix tile of f32 of each subgroup."""
        at = self._tile_elements(index, stride, group, np.float32)
        if self._races:
            self._owners.write_together(at.ravel())
        bits = np.ascontiguousarray(tiles, np.float32).view(self._data.dtype)
        self._data[at] = bits.reshape(*at.shape, *self._data.shape[1:])

    def _tile_elements(
        self, index: Index, stride: int, group: Index, dtype: npt.DTypeLike
    ) -> Index:
        """Of each subgroup's tile the elements: [subgroups, 16, elements of a row]."""
        kind = self.array.type
        if (index * kind.width * kind.scalar.itemsize % ROW_ALIGNMENT).any():
            raise KernelError(
                f"a matrix begins at an element of {self.array.name} that is not at a multiple "
                f"of {ROW_ALIGNMENT} bytes"
            )
        rows = index[:, None] + np.arange(TILE) * stride
        row_bytes = TILE * np.dtype(dtype).itemsize
        elements = rows[:, :, None] + np.arange(row_bytes // self._data[:1].nbytes)
        return self._at(elements, group[:, None, None])

    def barrier(self, arrived: npt.NDArray[np.bool_]) -> None:
        """These workgroups passed a barrier."""
        self._owners.forget(np.nonzero(np.repeat(arrived, self.array.count))[0])

    def _at(self, index: Array, group: Index) -> Index:
        count = self.array.count
        if index.size and (index.min() < 0 or index.max() >= count):
            bad = index[(index < 0) | (index >= count)][0]
            raise KernelError(f"{self.array.name}[{bad}] of {count} elements")
        return group * count + index
