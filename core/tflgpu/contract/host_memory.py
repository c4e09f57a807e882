"""Arrays in memory that devices may use in place: whole pages, which nobody else's data lies in."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tflgpu.contract.buffers import Bytes
from tflgpu.ir.dtypes import Array

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
