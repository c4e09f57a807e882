"""Host memory of a recording: blocks with optional guard bands, and views of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

#: Bytes of pattern before and after a block; a multiple of every element size.
BAND = 256
_PATTERN = 0xA5
#: Read as a float this is NaN, as an integer -1: what was never written does not look like data.
_POISON = 0xFF


class Block:
    """``nbytes`` of memory named for messages, between guard bands where these are asked for."""

    def __init__(self, name: str, nbytes: int, *, guarded: bool) -> None:
        self.name = name
        self._band = BAND if guarded else 0
        try:
            self._all = np.full(nbytes + 2 * self._band, _PATTERN, np.uint8)
        except (MemoryError, ValueError) as error:
            raise DeviceError(f"allocating {nbytes} bytes for {name}: {error}") from error
        self.bytes: npt.NDArray[np.uint8] = self._all[self._band : self._band + nbytes]
        self.bytes[...] = 0

    def view(self, dtype: np.dtype[Any], offset: int = 0, nbytes: int | None = None) -> Array:
        """A flat array over ``nbytes`` at ``offset``, which lie inside."""
        end = len(self.bytes) if nbytes is None else offset + nbytes
        return self.bytes[offset:end].view(dtype)

    def poison(self) -> None:
        """Overwrite the contents with what no kernel may take for data."""
        self.bytes[...] = _POISON

    def check(self) -> None:
        """Look at the bands.

        Raises:
            DeviceError: a kernel wrote outside the block; says where.
        """
        end = self._band + len(self.bytes)
        for what, start, band in (
            ("before", 0, self._all[: self._band]),
            ("after", end, self._all[end:]),
        ):
            hit = np.flatnonzero(band != _PATTERN)
            if hit.size:
                at = start + int(hit[0]) - self._band
                raise DeviceError(
                    f"{self.name}: {hit.size} bytes {what} the buffer were overwritten, "
                    f"the first at offset {at} of {len(self.bytes)}"
                )
