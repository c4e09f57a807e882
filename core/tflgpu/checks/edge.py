"""Checks an array at a recording's edge: its shape, type and memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tflgpu.ir.graph import Shape
from tflgpu.values import frozen


@frozen
class Edge:
    """What an input or output of a recording has to be."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    def misfit(self, array: object, *, writable: bool) -> str | None:
        """What is wrong with an array, None where it fits."""
        # Asked of every array that is lent: words are made where something is wrong only.
        if not isinstance(array, np.ndarray):
            return f"is a {type(array).__name__}, not an array of {self._wanted}"
        if array.shape != self.shape or array.dtype != self.dtype:
            return f"is {array.dtype}{list(array.shape)}, not {self._wanted}"
        if not array.flags.c_contiguous:
            return f"is not packed row-major (its strides are {array.strides})"
        if writable and not array.flags.writeable:
            return "cannot be written"
        return None

    @property
    def _wanted(self) -> str:
        return f"{self.dtype}{list(self.shape)}"
