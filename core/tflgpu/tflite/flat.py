"""Walking a flatbuffer that may be damaged or hostile.

Python's flatbuffers library has no verifier: it follows any offset it meets. Every access here is
checked against the file before it is made, every number of elements against the bytes that hold
them, and what one file may cost in all is bounded by its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.budget import Budget
from tflgpu.ir.dtypes import Array
from tflgpu.tflite.layouts import Field, Kind, TableLayout
from tflgpu.tflite.schema import layout
from tflgpu.tflite.sniff import NOT_FLAT

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_OFFSET = 4

_NUMBERS = {
    np.dtype(f"<{kind}"): struct.Struct(f"<{code}")
    for kind, code in zip(
        ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"), "bBhHiIqQfd", strict=True
    )
}

# As many as the C++ verifier visits at most.
_MAX_TABLES = 1_000_000

DAMAGED = "the file is damaged or was not written by a TFLite converter; fetch or convert it again"
#: The same of bytes that are no flatbuffer at all.
_NOT_FLAT = f"{NOT_FLAT}: {DAMAGED}"


class FlatFile:
    """The bytes of a flatbuffer, and what may still be spent on reading them."""

    __slots__ = ("_budget", "data", "layout", "size")

    def __init__(self, data: memoryview, layouts: Callable[[str], TableLayout] = layout) -> None:
        """A flatbuffer whose tables have these ``layouts``, by name: the TFLite schema's."""
        self.data = data
        self.layout = layouts
        self.size = len(data)
        # A table takes four bytes and the offset to it four; no file has more unless they are
        # shared. A hostile one may have a million tables share one long vector, too.
        tables = min(_MAX_TABLES, self.size // 8)
        self._budget = Budget(nodes=tables, nbytes=2 * self.size + (1 << 16))

    def root(self, where: str, table: str) -> Table:
        """The root table."""
        return self.table(self._offset(0, f"{where}: root table"), where, self.layout(table))

    def table(self, position: int, where: str, fields: TableLayout) -> Table:
        """The table at an absolute position.

        Raises:
            ModelError: it, or its vtable, is not within the file.
            BudgetError: tables were visited too often.
        """
        self._budget.spend("nodes", 1, where)
        self.require(position, 4, where)
        vtable = position - int(_I32.unpack_from(self.data, position)[0])
        self.require(vtable, 4, f"{where}: vtable")
        length = int(_U16.unpack_from(self.data, vtable)[0])
        if length < 4 or length % 2:
            raise ModelError(f"{where}: vtable of {length} bytes. {_NOT_FLAT}")
        self.require(vtable, length, f"{where}: vtable")
        return Table(self, position, vtable, length, where, fields)

    def follow(self, position: int, where: str) -> int:
        """The absolute position that the offset stored at ``position`` points to."""
        self.require(position, _OFFSET, where)
        return self._offset(position, where)

    def _offset(self, position: int, where: str) -> int:
        offset = int(_U32.unpack_from(self.data, position)[0])
        if offset == 0:
            raise ModelError(f"{where}: an offset of 0 points to itself. {_NOT_FLAT}")
        self.require(position + offset, 1, where)
        return position + offset

    def vector(self, position: int, itemsize: int, where: str) -> tuple[int, int]:
        """Where the elements of the vector at ``position`` begin, and how many there are."""
        self.require(position, _OFFSET, where)
        count = int(_U32.unpack_from(self.data, position)[0])
        self.require(position + _OFFSET, count * itemsize, where)
        return position + _OFFSET, count

    def require(self, position: int, size: int, where: str) -> None:
        """Check that ``size`` bytes from ``position`` are within the file.

        Raises:
            ModelError: they are not.
        """
        if position < 0 or position + size > self.size:
            raise ModelError(
                f"{where}: needs {size:,} bytes at offset {position:,} of a file of "
                f"{self.size:,} bytes. {_NOT_FLAT}"
            )

    def spend(self, size: int, where: str) -> None:
        """Account for ``size`` bytes that are about to be copied into Python values."""
        self._budget.spend("nbytes", size, where)


class Table:
    """One table whose vtable is known to be within the file. Each getter checks its own field.

    Getters take the schema's snake_case field name; an absent field reads as the schema's default,
    an absent vector as an empty one, an absent string as ``""`` and an absent table as None. Each
    raises ModelError, naming ``where``, if what the field points to is not within the file.
    """

    __slots__ = ("_file", "_layout", "_length", "_position", "_vtable", "where")

    def __init__(
        self,
        file: FlatFile,
        position: int,
        vtable: int,
        length: int,
        where: str,
        fields: TableLayout,
    ) -> None:
        self._file = file
        self._position = position
        self._vtable = vtable
        self._length = length
        self._layout = fields
        self.where = where

    def _at(self, field: Field, size: int) -> int | None:
        """The position of a field, None if absent; ``size`` bytes are known to be there."""
        entry = 4 + 2 * field.slot
        if entry + 2 > self._length:
            return None
        offset = int(_U16.unpack_from(self._file.data, self._vtable + entry)[0])
        if offset == 0:
            return None
        if offset < 4:
            raise ModelError(f"{self.where}: {field.name} lies in the table's header. {_NOT_FLAT}")
        position = self._position + offset
        if position + size > self._file.size:
            self._file.require(position, size, f"{self.where}: {field.name}")
        return position

    def scalar(self, name: str) -> Any:
        """A number or a bool."""
        field = self._layout.fields[name]
        assert field.number is not None, f"{self._layout.name}.{field.name} is no scalar"
        position = self._at(field, field.number.itemsize)
        if position is None:
            return field.default
        if field.number.kind == "b":
            # struct would do, but a bool byte other than 0 and 1 is true as in C++.
            return self._file.data[position] != 0
        return _NUMBERS[field.number].unpack_from(self._file.data, position)[0]

    def integer(self, name: str) -> int:
        """A whole number."""
        return int(self.scalar(name))

    def text(self, name: str) -> str:
        """A string. Bytes that are not UTF-8 stay visible as backslash escapes."""
        position = self._at(self._layout.fields[name], _OFFSET)
        if position is None:
            return ""
        return self._text_at(position, f"{self.where}: {name}")

    def _text_at(self, position: int, where: str) -> str:
        start, count = self._file.vector(self._file.follow(position, where), 1, where)
        self._file.require(start, count + 1, where)
        if self._file.data[start + count] != 0:
            raise ModelError(f"{where}: string without its final zero byte. {_NOT_FLAT}")
        self._file.spend(count, where)
        return bytes(self._file.data[start : start + count]).decode("utf-8", "backslashreplace")

    def texts(self, name: str) -> tuple[str, ...]:
        """A vector of strings."""
        start, count = self._offsets(name)
        where = f"{self.where}: {name}"
        self._file.spend(_OFFSET * count, where)
        return tuple(self._text_at(start + _OFFSET * i, where) for i in range(count))

    def array(self, name: str) -> Array:
        """A vector of numbers, as a read-only view of the file."""
        field = self._layout.fields[name]
        assert field.number is not None, f"{self._layout.name}.{field.name} is no vector of numbers"
        position = self._at(field, _OFFSET)
        if position is None:
            return np.empty(0, field.number)
        where = f"{self.where}: {name}"
        start, count = self._file.vector(
            self._file.follow(position, where), field.number.itemsize, where
        )
        return np.frombuffer(self._file.data, field.number, count, start)

    def numbers(self, name: str) -> tuple[Any, ...]:
        """A vector of numbers, as Python values."""
        values = self.array(name)
        self._file.spend(values.nbytes, f"{self.where}: {name}")
        if values.dtype.kind == "b":
            return tuple((values.view(np.uint8) != 0).tolist())
        return tuple(values.tolist())

    def content(self, name: str) -> memoryview:
        """A vector of bytes, as a read-only view of the file."""
        field = self._layout.fields[name]
        position = self._at(field, _OFFSET)
        if position is None:
            return self._file.data[:0]
        where = f"{self.where}: {name}"
        start, count = self._file.vector(self._file.follow(position, where), 1, where)
        return self._file.data[start : start + count]

    def child(self, name: str, table: str, where: str) -> Table | None:
        """A table, or a union whose type code stands for ``table``; ``where`` names it."""
        position = self._at(self._layout.fields[name], _OFFSET)
        if position is None:
            return None
        return self._file.table(self._file.follow(position, where), where, self._file.layout(table))

    def count(self, name: str) -> int:
        """How many tables a vector of tables has; its offsets are known to be within the file."""
        return self._offsets(name)[1]

    def children(self, name: str, table: str, where: str) -> Iterator[Table]:
        """The tables of a vector of tables, one at a time; ``where`` plus the index names each."""
        start, count = self._offsets(name)
        fields = self._file.layout(table)
        for i in range(count):
            here = f"{where} {i}"
            yield self._file.table(self._file.follow(start + _OFFSET * i, here), here, fields)

    def child_at(self, name: str, table: str, where: str, index: int) -> Table:
        """One of the tables of `children`, of which there are `count`."""
        start, _ = self._offsets(name)
        here = f"{where} {index}"
        position = self._file.follow(start + _OFFSET * index, here)
        return self._file.table(position, here, self._file.layout(table))

    def _offsets(self, name: str) -> tuple[int, int]:
        position = self._at(self._layout.fields[name], _OFFSET)
        if position is None:
            return 0, 0
        where = f"{self.where}: {name}"
        return self._file.vector(self._file.follow(position, where), _OFFSET, where)

    @property
    def place(self) -> tuple[memoryview, int]:
        """The file, and where in it the table is, for readers that know more of the schema."""
        return self._file.data, self._position

    def left_out(self) -> list[str]:
        """Fields that are in the table and not in `all_fields`: those of other kinds by name,
        unknown ones by slot. Writing the table again would lose them."""
        known = {field.slot: field for field in self._layout.fields.values()}
        found = []
        for slot in range((self._length - 4) // 2):
            field = known.get(slot)
            if _U16.unpack_from(self._file.data, self._vtable + 4 + 2 * slot)[0] == 0:
                continue
            if field is None:
                found.append(f"field {slot}, which the schema known here lacks")
            elif field.kind not in (Kind.SCALAR, Kind.NUMBERS, Kind.STRING):
                found.append(field.name)
        return found

    def all_fields(self) -> dict[str, Any]:
        """Every scalar, string and vector of numbers, with defaults for what is absent."""
        values: dict[str, Any] = {}
        for field in self._layout.fields.values():
            if field.kind is Kind.SCALAR:
                values[field.name] = self.scalar(field.name)
            elif field.kind is Kind.NUMBERS:
                values[field.name] = self.numbers(field.name)
            elif field.kind is Kind.STRING:
                values[field.name] = self.text(field.name)
        return values
