"""Constant tensors from the bytes that hold them."""

from __future__ import annotations

import math
import sys

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.sizes import MAX_RANK
from tflgpu.tflite.flat import DAMAGED

_MAX_BYTES = 2**63 - 1


def check_shape(shape: tuple[int, ...], dtype: DType, where: str) -> int:
    """How many elements a tensor of this shape has.

    Raises:
        ModelError: a size is negative, there are too many dimensions, or its bytes are uncountable.
    """
    if len(shape) > MAX_RANK:
        raise ModelError(f"{where}: {len(shape)} dimensions, at most {MAX_RANK} are supported")
    if any(d < 0 for d in shape):
        raise ModelError(f"{where}: shape {shape} has a negative size")
    # numpy counts a size of 0 as 1 here, and refuses an empty array that is too big without it.
    if math.prod(max(d, 1) for d in shape) * max(1, dtype.itemsize) > _MAX_BYTES:
        raise ModelError(f"{where}: shape {shape} has more than 2**63 bytes")
    return math.prod(shape)


def constant(content: memoryview, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
    """The constant that these bytes are, in the form `TensorInfo.data` describes; read-only.

    Raises:
        ModelError: they are not as many as the shape takes.
    """
    elements = check_shape(shape, dtype, where)
    if dtype is DType.STRING:
        return _strings(content, shape, elements, where)
    if dtype is DType.I4:
        _require(content, (elements + 1) // 2, dtype, shape, where)
        return _frozen(unpack_int4(np.frombuffer(content, np.uint8), elements).reshape(shape))
    if dtype.itemsize == 0:
        raise ModelError(f"{where}: a constant of type {dtype.value} has no defined content")
    _require(content, elements * dtype.itemsize, dtype, shape, where)
    return typed(content, dtype).reshape(shape)


def typed(content: memoryview, dtype: DType) -> Array:
    """Bytes as a flat read-only array of a type with whole bytes. Their number must be a multiple
    of the element's size."""
    if dtype is DType.BOOL:
        raw = np.frombuffer(content, np.uint8)
        # numpy's bool must be 0 or 1 to compare rightly; C++ takes any other byte as true.
        return raw.view(np.bool_) if not raw.size or raw.max() <= 1 else _frozen(raw != 0)
    stored = (np.dtype(np.uint16) if dtype is DType.BF16 else dtype.numpy).newbyteorder("<")
    values = np.frombuffer(content, stored)
    return values if sys.byteorder == "little" else _frozen(values.astype(stored.newbyteorder("=")))


def _require(
    content: memoryview, size: int, dtype: DType, shape: tuple[int, ...], where: str
) -> None:
    if len(content) != size:
        raise ModelError(
            f"{where}: buffer of {len(content):,} bytes for {dtype.value} of shape {shape}, "
            f"which takes {size:,}; {DAMAGED}"
        )


def unpack_int4(packed: Array, elements: int) -> Array:
    """Signed 4-bit numbers, two a byte with the first in the low half, as flat int8."""
    pairs = np.empty((packed.size, 2), np.int8)
    signed = packed.view(np.int8)
    pairs[:, 0] = (signed << 4).astype(np.int8) >> 4
    pairs[:, 1] = signed >> 4
    return pairs.reshape(-1)[:elements]


def pack_int4(values: Array) -> bytes:
    """The inverse of `unpack_int4`, for whole numbers from -8 to 7."""
    flat = np.zeros((values.size + 1) // 2 * 2, np.uint8)
    flat[: values.size] = values.reshape(-1).astype(np.int8).view(np.uint8) & 15
    return (flat[0::2] | flat[1::2] << 4).astype(np.uint8).tobytes()


def _strings(content: memoryview, shape: tuple[int, ...], elements: int, where: str) -> Array:
    """TFLite's string tensor: count, count + 1 offsets from the start (int32), then the bytes."""
    if len(content) < 4:
        raise ModelError(f"{where}: string buffer of {len(content)} bytes; {DAMAGED}")
    count = int.from_bytes(content[:4], "little")
    if count != elements:
        raise ModelError(f"{where}: {count} strings for shape {shape}, which takes {elements}")
    first = 4 * (count + 2)
    if first > len(content):
        raise ModelError(f"{where}: {count} strings in a buffer of {len(content)} bytes; {DAMAGED}")
    bounds = np.frombuffer(content, "<i4", count + 1, 4).astype(np.int64)
    if bounds[0] != first or np.any(np.diff(bounds) < 0) or bounds[-1] > len(content):
        raise ModelError(f"{where}: string offsets do not rise within the buffer; {DAMAGED}")
    strings = np.empty(count, np.object_)
    for i in range(count):
        strings[i] = bytes(content[int(bounds[i]) : int(bounds[i + 1])])
    return _frozen(strings.reshape(shape))


def pack_strings(strings: list[bytes]) -> bytes:
    """The bytes of a string tensor."""
    first = 4 * (len(strings) + 2)
    ends = first + np.cumsum([0, *map(len, strings)])
    return np.array([len(strings), *ends], "<i4").tobytes() + b"".join(strings)


def _frozen(values: Array) -> Array:
    values.setflags(write=False)
    return values
