"""Tables of the TFLite schema, written into a flatbuffer by name."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
from attrs import frozen
from flatbuffers import number_types

from tflgpu.errors import ModelError
from tflgpu.errors.blame import shown
from tflgpu.tflite.layouts import Field, Kind
from tflgpu.tflite.schema import layout

BUFFER_ALIGNMENT = 16
"""What the schema's force_align asks of a buffer's data, in bytes."""

_FLAGS = {
    np.dtype(flags.packer_type.format): flags
    for flags in (
        number_types.BoolFlags,
        number_types.Int8Flags,
        number_types.Uint8Flags,
        number_types.Int16Flags,
        number_types.Uint16Flags,
        number_types.Int32Flags,
        number_types.Uint32Flags,
        number_types.Int64Flags,
        number_types.Uint64Flags,
        number_types.Float32Flags,
        number_types.Float64Flags,
    )
}


@frozen
class Record:
    """A table to write: its schema name, and values by the schema's snake_case field names.

    A field takes a number, a string, a sequence of numbers, ``bytes``, a Record for a table or a
    union, or a sequence of Records. None and fields left out are not written. An offset that the
    builder gave for something written before may stand for a vector of bytes.
    """

    table: str
    values: Mapping[str, Any]


@frozen
class PackedTable:
    """A table that is written by a function of the builder, which gives its offset."""

    pack: Callable[[Any], int]


@frozen
class Offset:
    """Something already in the builder."""

    position: int


def encode(builder: Any, record: Record, where: str) -> int:
    """Write a table and all that it refers to; returns the builder's offset of it.

    Raises:
        ModelError: the schema has no such field, or the value does not fit its type.
    """
    fields = layout(record.table).fields
    unknown = [name for name in record.values if name not in fields]
    if unknown:
        raise ModelError(
            f"{where}: {record.table} has no field {unknown[0]!r}; it has "
            f"{', '.join(fields) or 'none'}"
        )
    ready: list[tuple[Field, Any]] = []
    for name, value in record.values.items():
        if value is not None:
            ready.append((fields[name], _prepare(builder, fields[name], value, f"{where}: {name}")))
    builder.StartObject(layout(record.table).slots)
    for field, value in ready:
        if field.kind is Kind.SCALAR:
            try:
                builder.PrependSlot(_FLAGS[field.number], field.slot, value, field.default)
            except (TypeError, struct.error) as error:
                raise _unfit(value, field, f"{where}: {field.name}") from error
        else:
            builder.PrependUOffsetTRelativeSlot(field.slot, value, 0)
    return int(builder.EndObject())


def _unfit(value: Any, field: Field, where: str) -> ModelError:
    number = "" if field.number is None else f" of {field.number.name}"
    return ModelError(f"{where}: {shown(value)} is no {field.kind.value}{number}")


def _prepare(builder: Any, field: Field, value: Any, where: str) -> Any:
    """A scalar as it is; anything else written, as the offset of it."""
    if isinstance(value, Offset):
        return value.position
    if isinstance(value, PackedTable):
        return value.pack(builder)
    if field.kind is Kind.SCALAR:
        return _scalar(field, value, where)
    if field.kind is Kind.STRING and isinstance(value, str):
        return builder.CreateString(value)
    if field.kind is Kind.NUMBERS:
        return builder.CreateNumpyVector(_numbers(field, value, where))
    if field.kind in (Kind.TABLE, Kind.UNION) and isinstance(value, Record):
        return encode(builder, value, where)
    if field.kind is Kind.TABLES and not isinstance(value, (str, Record)):
        return _tables(builder, value, where)
    raise _unfit(value, field, where)


def _scalar(field: Field, value: Any, where: str) -> int | float | bool:
    assert field.number is not None
    if isinstance(value, np.generic):
        value = value.item()
    kinds = {"b": (bool,), "f": (int, float)}.get(field.number.kind, (int,))
    # A bool is an int to Python, but not to the schema.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise _unfit(value, field, where)
    return float(value) if field.number.kind == "f" else value


def _numbers(field: Field, value: Any, where: str) -> Any:
    assert field.number is not None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return np.frombuffer(value, field.number)
    values = np.asarray(value) if len(value) else np.empty(0, field.number)
    # Whole numbers may become floats, but nothing may be cut off.
    if values.ndim != 1 or values.dtype.kind not in ("b" if field.number.kind == "b" else "iuf"):
        raise _unfit(value, field, where)
    stored = values.astype(field.number)
    if field.number.kind != "f" and not np.array_equal(stored, values):
        raise _unfit(value, field, where)
    return stored


def _tables(builder: Any, records: Sequence[Record], where: str) -> int:
    offsets = [encode(builder, record, f"{where} {i}") for i, record in enumerate(records)]
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def aligned_bytes(builder: Any, content: bytes | memoryview) -> Offset:
    """Write a vector of bytes that begins at a multiple of BUFFER_ALIGNMENT in the file."""
    builder.StartVector(1, len(content), BUFFER_ALIGNMENT)
    head = int(builder.head) - len(content)
    builder.head = head
    builder.Bytes[head : head + len(content)] = content
    return Offset(int(builder.EndVector()))


def finish(root: Record, content: Sequence[bytes | memoryview]) -> bytes:
    """A whole file: ``root`` with ``content`` as its buffers."""
    builder = flatbuffers.Builder(1024 + sum(len(c) + 64 for c in content))
    data = [aligned_bytes(builder, c) if c else None for c in content]
    buffers = [Record("Buffer", {"data": d}) for d in data]
    model = encode(builder, Record(root.table, {**root.values, "buffers": buffers}), "model")
    builder.Finish(model, b"TFL3")
    # Not by `Output`, which makes a copy of its own: constants may be most of a machine's memory.
    return bytes(memoryview(builder.Bytes)[builder.Head() :])
