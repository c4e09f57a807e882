"""`TensorMemory`: a tensor that outlives runs, in host memory or in buffers of a device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tflgpu.backend_kit.host_memory import in_pages
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import Device
from tflgpu.errors.blame import attempt
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported


class TensorMemory:
    """A tensor of one shape and type that runs read and write.

    A run cannot write the buffer that it reads. Where it does both with one tensor (the cache of a
    language model), the tensor has two buffers, and after the run the other one counts.

    Attributes:
        shape: As NumPy's.
        dtype: The elements' NumPy type; they lie packed row-major.
        array: The tensor in host memory; None where it is on a device.
    """

    def __init__(
        self, shape: Shape, dtype: np.dtype[Any], device: Device | None = None, *, name: str = ""
    ) -> None:
        """Zeros, on a device if it has buffers, otherwise in host memory.

        Raises:
            DeviceError: the device has no memory left for it.
        """
        self.shape, self.dtype, self.name = shape, dtype, name
        self.array: Array | None = None
        self._device = device
        self._buffers: list[Buffer] = []
        self._turn = 0
        if not self._allocate():
            self.array = in_pages(shape, dtype)

    @classmethod
    def over(cls, array: Array) -> TensorMemory:
        """A tensor in the memory of an array."""
        made = cls((0,), array.dtype)
        made.shape, made.array = array.shape, array
        return made

    @property
    def nbytes(self) -> int:
        """What the elements take."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def source(self) -> Buffer | None:
        """The buffer that has the tensor; None in host memory."""
        return self._buffers[self._turn] if self._buffers else None

    def target(self, *, is_read: bool) -> Buffer | None:
        """The buffer that a run writes the tensor to; another than `source` where it reads the
        tensor too.

        Raises:
            DeviceError: the device has no memory left for a second buffer.
        """
        if not self._buffers or not is_read:
            return self.source
        if len(self._buffers) == 1:
            self._allocate()
        return self._buffers[1 - self._turn]

    def swap(self) -> None:
        """Let the buffer count that a run wrote which read the other one."""
        if len(self._buffers) == 2:
            self._turn = 1 - self._turn

    def read(self) -> Array:
        """A copy of the tensor.

        Raises:
            StateError, DeviceError: the device is closed, or failed.
        """
        if self.array is not None:
            return np.array(self.array)
        found: Array = np.empty(self.shape, self.dtype)
        self._buffers[self._turn].read(found)
        return found

    def write(self, value: Array) -> None:
        """Replace the tensor by an array of its shape and type.

        Raises:
            StateError, DeviceError: as `read`.
        """
        if self.array is not None:
            self.array[...] = value
        else:
            self._buffers[self._turn].write(value)

    def to_host(self) -> None:
        """Move the tensor to host memory for good.

        Raises:
            StateError, DeviceError: as `read`.
        """
        if self.array is None:
            array = in_pages(self.shape, self.dtype)
            np.copyto(array, self.read())
            self.array = array
            self.close()

    def close(self) -> None:
        """Free the buffers."""
        buffers, self._buffers = self._buffers, []
        for buffer in buffers:
            attempt(buffer.close)

    def _allocate(self) -> bool:
        found = None if self._device is None else self._device.allocate(self.nbytes)
        if found is None or isinstance(found, Unsupported):
            return False
        self._buffers.append(found)
        return True
