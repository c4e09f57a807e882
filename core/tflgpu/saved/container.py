"""The file around an index: a header with a digest, the index, and the arrays at its end.

Reading checks the size first, then the digest, which covers everything after itself, and looks at
nothing else before both are right. Arrays are views of the bytes that were given: of a mapped file,
no weight is copied.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from tflgpu.cache.digest import digest_of
from tflgpu.errors import SavedModelError
from tflgpu.values import frozen

FAMILY = b"tflgpu saved "
MAGIC = FAMILY + b"3\n\0"
ALIGNMENT = 64
_DIGEST = slice(16, 48)
_SIZES = struct.Struct("<QQ")
HEADER = 64
_REMEDY = "; delete it, or make it again with `tflgpu compile`"


@frozen(eq=False)
class Index:
    """The contents of a file without its arrays.

    Attributes:
        key: What the file is for: names and texts.
        classes: Of each class that it has values of, its name and those of its fields.
        records: The values (`tflgpu.saved.records`); the last one is the whole.
    """

    key: Sequence[Sequence[str]]
    classes: Sequence[Sequence[str]]
    records: Sequence[Any]


@frozen(eq=False)
class Content:
    """The contents of a file: its index, and views of its arrays."""

    index: Index
    blobs: Sequence[memoryview]


def index_bytes(index: Index, sizes: Sequence[int] = ()) -> bytes:
    """The index as JSON, with the sizes of the arrays, which lie one after another."""
    parts = (index.key, index.classes, index.records, sizes)
    return json.dumps(parts, separators=(",", ":")).encode()


def packed(index: Index, blobs: Sequence[memoryview]) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece. Each blob is a view of bytes."""
    data = index_bytes(index, [len(blob) for blob in blobs])
    start = _aligned(HEADER + len(data))
    whole = start + sum(_aligned(len(blob)) for blob in blobs)
    pieces: list[bytes | memoryview] = [_SIZES.pack(whole, len(data)), data]
    pieces.append(bytes(start - HEADER - len(data)))
    for blob in blobs:
        pieces += [blob, bytes(_aligned(len(blob)) - len(blob))]
    yield MAGIC + digest_of(*pieces)
    yield from pieces


def unpacked(data: memoryview) -> Content:
    """The contents of a file's bytes.

    Raises:
        SavedModelError: they are no saved model, one of another version, cut short, or changed.
    """
    if len(data) < len(FAMILY) or bytes(data[: len(FAMILY)]) != FAMILY:
        raise SavedModelError("this is no saved model")
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise SavedModelError("this model was saved in a format of another version" + _REMEDY)
    if len(data) <= HEADER:
        raise SavedModelError(
            f"this saved model ends in its header, after {len(data)} bytes{_REMEDY}"
        )
    size, index_size = _SIZES.unpack_from(data, _DIGEST.stop)
    if size != len(data):
        raise SavedModelError(f"this saved model has {len(data)} bytes and says {size}{_REMEDY}")
    if digest_of(data[_DIGEST.stop :]) != data[_DIGEST]:
        raise SavedModelError(f"this saved model is damaged{_REMEDY}")
    key, classes, records, sizes = json.loads(bytes(data[HEADER : HEADER + index_size]))
    at, blobs = _aligned(HEADER + index_size), []
    for size in sizes:
        blobs.append(data[at : at + size])
        at = _aligned(at + size)
    return Content(Index(key, classes, records), blobs)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
