"""`DeviceBuffer`: memory of a device that tensors of one shape and type can be bound to."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.backend_kit.run_guard import Closable, RunGuard
from tflgpu.contract.buffers import Buffer
from tflgpu.errors import ArgumentError, InputError, UnsupportedError
from tflgpu.errors.blame import Failed, attempt, listed, shown
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported


class DeviceBuffer(Closable):
    """A tensor in a device's memory, as `Interpreter.allocate_buffer` makes it.

    It may be bound to inputs and outputs of any model on the same opened device, so that what one
    model leaves another reads. It lives until `close`; a model whose input is bound to it then
    refuses to run until something else is bound.

    Attributes:
        shape: As NumPy's.
        dtype: The elements' NumPy type; they lie packed row-major.
        nbytes: What the elements take.
    """

    def __init__(self, buffer: Buffer, shape: Shape, dtype: np.dtype[Any]) -> None:
        """Over a buffer of a device, large enough."""
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.nbytes = math.prod(shape) * dtype.itemsize
        self._guard = RunGuard("this buffer")

    def write(self, value: npt.ArrayLike) -> None:
        """Copy an array of the same shape and type to the device.

        Raises:
            InputError: it has another shape or type.
            StateError: the buffer or its device is closed.
            DeviceError: the device failed.
        """
        array = np.asarray(value)
        if array.shape != self.shape or array.dtype != self.dtype:
            raise InputError(
                f"{array.dtype}{listed(array.shape)} for a buffer of {self.dtype}"
                f"{listed(self.shape)}"
            )
        with self._guard.call:
            self.buffer.write(array)

    def read(self) -> Array:
        """A copy of what is in it.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the device failed.
        """
        found: Array = np.empty(self.shape, self.dtype)
        with self._guard.call:
            self.buffer.read(found)
        return found

    def reshaped(self, shape: Sequence[int]) -> DeviceBuffer:
        """The same memory as a tensor of another shape, with as many elements.

        Raises:
            InputError: another number of elements.
            ArgumentError: no sizes.
        """
        wanted = attempt(lambda: tuple(operator.index(n) for n in shape))
        if isinstance(wanted, Failed):
            raise ArgumentError(f"a shape is a tuple of whole numbers, not {shown(shape)}")
        if math.prod(wanted) != math.prod(self.shape) or any(n < 0 for n in wanted):
            raise InputError(
                f"a buffer of shape {listed(self.shape)} cannot be seen as {listed(wanted)}: "
                "another number of elements"
            )
        return DeviceBuffer(self.buffer, wanted, self.dtype)

    def export(self) -> Any:
        """What the device's API calls it, over the same memory (docs/buffers.md).

        Raises:
            UnsupportedError: the backend does not hand it out; says why.
            StateError: the buffer or its device is closed.
        """
        found = self.buffer.export()
        if isinstance(found, Unsupported):
            raise UnsupportedError(f"this buffer cannot be exported: {found.reason}")
        return found

    def _close(self) -> None:
        self.buffer.close()

    def __repr__(self) -> str:
        return f"DeviceBuffer({self.dtype}{listed(self.shape)})"
