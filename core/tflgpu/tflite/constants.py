"""Constant tensors from the bytes that hold them."""

from __future__ import annotations

import math
import sys

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.budget import check_size
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.flat import DAMAGED

_MAX_BYTES = 2**63 - 1


def check_shape(shape: tuple[int, ...], dtype: DType, where: str) -> int:
    """How many elements a tensor of this shape has.

    Raises:
        ModelError: a size is negative, there are too many dimensions, or its bytes are uncountable.
    """
    check_size(shape, dtype, where, _MAX_BYTES)
    return math.prod(shape)


def constant(content: memoryview, dtype: DType, shape: tuple[int, ...], where: str) -> Array:
    """The constant that these bytes are, in the form `TensorInfo.data` describes; read-only.

    Raises:
        ModelError: they are not as many as the shape takes.
    """
    elements = check_shape(shape, dtype, where)
    if dtype is DType.STRING:
        return _strings(content, shape, elements, where)
    if dtype.packed:
        _require(content, -(-elements * dtype.packed // 8), dtype, shape, where)
        return _frozen(unpack(np.frombuffer(content, np.uint8), dtype, elements).reshape(shape))
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


def unpack(packed: Array, dtype: DType, elements: int) -> Array:
    """Numbers of less than 8 bits, the first of a byte in its lowest bits, as a flat array of
    bytes."""
    bits = dtype.packed
    found = np.empty((packed.size, 8 // bits), np.uint8)
    for i in range(8 // bits):
        found[:, i] = packed << (8 - bits * (i + 1))  # the number's bits are the highest now
    stored = found.reshape(-1)[:elements].view(dtype.unpacked.numpy)
    stored >>= 8 - bits
    return stored


def pack(values: Array, dtype: DType) -> bytes:
    """The inverse of `unpack`, for numbers that the type can hold."""
    bits = dtype.packed
    each = 8 // bits
    flat = np.zeros(-(-values.size // each) * each, np.uint8)
    flat[: values.size] = values.reshape(-1).astype(dtype.unpacked.numpy).view(np.uint8)
    flat &= (1 << bits) - 1
    found = np.zeros(flat.size // each, np.uint8)
    for i in range(each):
        found |= flat[i::each] << (bits * i)
    return found.tobytes()


def packed_range(dtype: DType) -> tuple[int, int]:
    """The lowest and the highest number of a type of less than 8 bits."""
    if dtype is DType.U4:
        return 0, 15
    return -(1 << dtype.packed - 1), (1 << dtype.packed - 1) - 1


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
