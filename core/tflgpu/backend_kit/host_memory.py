"""Host memory that devices can use in place (whole pages, without other data in them), and blocks
that hold several arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from tflgpu.backend_kit.base_buffer import host_bytes
from tflgpu.compiler.plan import PlannedIO
from tflgpu.contract.buffers import Bytes
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.reason import Unsupported

#: Where drivers want host memory to begin and end: a page, on most systems; some have larger ones.
PAGE = 4096
_LARGEST_PAGE = 64 << 10


class _Pages:
    """What the arrays of `in_pages` have as the base of their base: whole pages."""

    def __init__(self, size: int) -> None:
        self._memory = np.zeros(size + _LARGEST_PAGE, np.uint8)
        start = -self._memory.ctypes.data % _LARGEST_PAGE
        self.bytes: Bytes = self._memory[start : start + size]
        self.__array_interface__ = self.bytes.__array_interface__


def in_pages(shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """An array of zeros that has whole pages for itself.

    Raises:
        MemoryError: there is none.
    """
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    size = max(_LARGEST_PAGE, -(-nbytes // _LARGEST_PAGE) * _LARGEST_PAGE)
    whole = np.asarray(_Pages(size))
    found: Array = whole[:nbytes].view(kind).reshape(shape)
    return found


def pages_of(array: Array) -> Bytes | None:
    """The whole pages of an array of `in_pages`; None of any other, or of a part of one."""
    pages: object = array
    while isinstance(pages, np.ndarray):
        pages = pages.base
    if not isinstance(pages, _Pages) or not array.flags.c_contiguous:
        return None
    return pages.bytes if pages.bytes.ctypes.data == array.ctypes.data else None


def starts_in_block(ios: Sequence[PlannedIO], padded: Callable[[int], int]) -> list[int]:
    """The byte of a block at which each input or output of a plan starts, and where the last ends.

    Args:
        ios: The inputs or outputs.
        padded: Bytes of the block that one of so many bytes takes.
    """
    return [0, *accumulate(padded(io.nbytes) for io in ios)]


def arrays_in_block(
    block: Bytes, ios: Sequence[PlannedIO], starts: Sequence[int]
) -> tuple[Array, ...]:
    """An array for each of some inputs or outputs, over a block of host memory."""
    return tuple(
        block[start : start + io.nbytes].view(io.dtype.numpy).reshape(io.shape)
        for start, io in zip(starts, ios, strict=False)
    )


def usable_in_place(
    source: object, objection: str, *, page: int = PAGE, step: int = PAGE
) -> Bytes | Unsupported:
    """Host memory that a driver may use as it is, or the reason why not.

    Args:
        source: What has Python's buffer protocol.
        objection: Why the device uses no host memory at all in place ("shares
            none with the host"); "" where it does.
        page: Bytes of which the driver wants a multiple where memory begins.
        step: The same of how much there is.
    """
    host = host_bytes(source)
    if isinstance(host, Unsupported):
        return host
    if objection:
        return Unsupported(
            f"the device does not use host memory in place (it {objection}); allocate a buffer and "
            "write to it"
        )
    if host.ctypes.data % page or not host.nbytes or host.nbytes % step:
        return Unsupported(
            f"host memory must begin at a multiple of {page} bytes and have a multiple of {step}; "
            f"this begins {host.ctypes.data % page} bytes after one and has {host.nbytes}: "
            "allocate_array makes such arrays"
        )
    return host
