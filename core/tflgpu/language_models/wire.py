"""Fields of a protocol buffer, without its schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tflgpu.errors import ModelError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
#: Fields that a message has at most: a hostile one has no more than a minute's worth.
_MOST = 100_000


def fields(data: bytes, where: str) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field, in the file's order: a whole number, or bytes; those of four
    and eight bytes as they are stored.

    Raises:
        ModelError: no well-formed message; ``where`` names it.
    """
    at = count = 0
    while at < len(data):
        key, at = _varint(data, at, where)
        number, kind = key >> 3, key & 7
        count += 1
        if not number or count > _MOST:
            raise ModelError(f"{where}: no protocol buffer; {_AGAIN}")
        if kind == _VARINT:
            value, at = _varint(data, at, where)
            yield number, value
            continue
        size = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if kind == _BYTES:
            size, at = _varint(data, at, where)
        if not 0 <= size <= len(data) - at:
            raise ModelError(f"{where}: field {number} does not end within it; {_AGAIN}")
        yield number, data[at : at + size]
        at += size


def texts(data: bytes, where: str) -> dict[int, list[str]]:
    """The fields of a message that are texts, by number."""
    found: dict[int, list[str]] = {}
    for number, value in fields(data, where):
        if isinstance(value, bytes):
            found.setdefault(number, []).append(value.decode("utf-8", "replace"))
    return found


def whole_numbers(value: int | bytes, where: str) -> list[int]:
    """A field of signed whole numbers, one or packed."""
    if isinstance(value, int):
        return [_signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at, where)
        found.append(_signed(number))
    return found


def real(value: int | bytes) -> float:
    """A field of four bytes as a number."""
    if isinstance(value, bytes) and len(value) == 4:
        return float(struct.unpack("<f", value)[0])
    return 0.0


_AGAIN = "the bundle is damaged; fetch it again"


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _varint(data: bytes, at: int, where: str) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), at
    raise ModelError(f"{where}: a number does not end within it; {_AGAIN}")
