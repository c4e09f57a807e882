"""The file around an index: a header with a digest, the index, and the arrays at its end.

Reading checks the sizes first, then the digest, which covers everything after itself, and looks at
nothing else before both are right. Arrays are views of the bytes that were given: of a mapped file,
no weight is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import attrs

from tflgpu.cache.digest import digest_of
from tflgpu.errors import SavedModelError
from tflgpu.saved.index import Index, index_bytes, read_index
from tflgpu.values import frozen

FAMILY = b"tflgpu saved "
MAGIC = FAMILY + b"2\n\0"
ALIGNMENT = 64
_DIGEST = slice(16, 48)
_SIZES = struct.Struct("<QQ")
HEADER = 64
_REMEDY = "; delete it, or make it again with `tflgpu compile`"


@frozen(eq=False)
class Content:
    """The contents of a file: its index, and views of its arrays."""

    index: Index
    blobs: Sequence[memoryview]


def packed(index: Index, blobs: Sequence[memoryview]) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece. ``index.blobs`` is filled in here; each blob is a view
    of bytes."""
    sizes = [len(blob) for blob in blobs]
    # The index has the places of the blobs, which begin after it: its size does not depend on them.
    draft = len(index_bytes(attrs.evolve(index, blobs=[0] * (2 * len(blobs)))))
    at, places = _aligned(HEADER + draft), []
    start = at
    for size in sizes:
        places += [at, size]
        at = _aligned(at + size)
    data = index_bytes(attrs.evolve(index, blobs=places))
    assert len(data) == draft
    pieces: list[bytes | memoryview] = [_SIZES.pack(at if blobs else start, len(data)), data]
    pieces.append(bytes(start - HEADER - len(data)))
    for blob, size in zip(blobs, sizes, strict=True):
        pieces += [blob, bytes(_aligned(size) - size)]
    yield MAGIC + digest_of(*pieces)
    yield from pieces


def unpacked(data: memoryview) -> Content:
    """The contents of a file's bytes.

    Raises:
        SavedModelError: they are no saved model, one of another version, cut short, or changed.
    """
    content = data[HEADER:] if len(data) >= HEADER else data[:0]
    if len(data) < len(FAMILY) or bytes(data[: len(FAMILY)]) != FAMILY:
        raise SavedModelError("this is no saved model")
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise SavedModelError("this model was saved in a format of another version" + _REMEDY)
    if not content:
        raise SavedModelError(
            f"this saved model ends in its header, after {len(data)} bytes{_REMEDY}"
        )
    size, index_size = _SIZES.unpack_from(data, _DIGEST.stop)
    if size != len(data):
        raise SavedModelError(f"this saved model has {len(data)} bytes and says {size}{_REMEDY}")
    if digest_of(data[_DIGEST.stop :]) != data[_DIGEST]:
        raise SavedModelError(f"this saved model is damaged{_REMEDY}")
    if index_size > len(content):
        raise SavedModelError(f"the index of this saved model is longer than the file{_REMEDY}")
    index = read_index(content[:index_size])
    return Content(index, _blobs(data, index.blobs))


def _blobs(data: memoryview, places: Sequence[int]) -> list[memoryview]:
    if len(places) % 2:
        raise SavedModelError("a saved model is damaged: an array without a size")
    found = []
    for start, size in zip(places[::2], places[1::2], strict=True):
        if start % ALIGNMENT or start + size > len(data):
            raise SavedModelError("a saved model is damaged: an array that does not lie in it")
        found.append(data[start : start + size])
    return found


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
