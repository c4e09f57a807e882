"""How large a tensor may be. Asked of every shape before anything of its size is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import DType

MAX_RANK = 32
"""The most dimensions a tensor may have: NumPy's limit, in versions before 2."""

MAX_BYTES = 2**31
"""The most bytes one tensor may take. Kernels index with signed 32-bit numbers, and a `.tflite` file
is not larger either; what is larger is a mistake or an attack, and would fill the memory."""

MAX_RESULTS = 1 << 16
"""The most results one operator may have."""

# Whatever is stored in fewer bits is computed in 32.
_LEAST_ITEMSIZE = 4


def bytes_of(shape: Sequence[int], dtype: DType) -> int:
    """The bytes that a tensor takes while a model runs, as a whole number of any size."""
    return math.prod(shape) * max(dtype.itemsize, _LEAST_ITEMSIZE)


def check_size(shape: Sequence[int], dtype: DType, what: str) -> None:
    """That a tensor can be allocated; ``what`` names it.

    Raises:
        ModelError: it has a negative size, too many dimensions, or too many bytes.
    """
    if len(shape) > MAX_RANK:
        raise ModelError(f"{what} has {len(shape)} dimensions; at most {MAX_RANK} are supported")
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} has a negative size in its shape {list(shape)}")
    # An empty tensor takes no bytes, but its other sizes are multiplied on the way.
    size = bytes_of([max(d, 1) for d in shape], dtype)
    if size > MAX_BYTES:
        raise ModelError(
            f"{what} is too large: shape {list(shape)} takes {size:,} bytes; a tensor has at most "
            f"{MAX_BYTES:,}"
        )
