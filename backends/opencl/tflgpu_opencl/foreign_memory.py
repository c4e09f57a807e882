"""Objects of pyopencl that tensors can be bound to."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyopencl as cl
from tflgpu.contract.buffers import ForeignMemory
from tflgpu.errors import InputError, UnsupportedError


def memory_of(source: object) -> ForeignMemory | None:
    """A ``pyopencl.Buffer`` or ``pyopencl.array.Array`` as memory; None for anything else.

    Raises:
        InputError: an array whose elements do not lie packed row-major.
        UnsupportedError: an array in a part of a buffer that the driver makes no buffer of.
    """
    arrays = sys.modules.get("pyopencl.array")
    if arrays is not None and isinstance(source, arrays.Array):
        return _array(source)
    return ForeignMemory(source, "a pyopencl Buffer") if isinstance(source, cl.Buffer) else None


def _array(source: Any) -> ForeignMemory:
    kind = "a pyopencl Array"
    if not source.flags.c_contiguous:
        raise InputError(f"{kind} whose elements do not lie packed row-major cannot be bound")
    buffer = source.base_data
    if source.offset or buffer.size < source.nbytes:
        # A part of another array; OpenCL says where such a part may begin.
        try:
            buffer = buffer.get_sub_region(source.offset, source.nbytes)
        except cl.Error as error:
            raise UnsupportedError(
                f"{kind} that begins {source.offset} bytes into its buffer cannot be bound: the "
                f"driver makes no buffer of that part ({type(error).__name__}: {error}); copy it "
                "to an array of its own"
            ) from error
    shape = tuple(int(n) for n in source.shape)
    return ForeignMemory(buffer, kind, shape, np.dtype(source.dtype))
