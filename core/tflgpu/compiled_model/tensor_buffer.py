"""`TensorBuffer`: a tensor that compiled models read and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.errors import ArgumentError, InputError, StateError
from tflgpu.errors.blame import Failed, attempt, listed, shown
from tflgpu.interpreter.tensor_memory import TensorMemory
from tflgpu.ir.dtypes import Array


class TensorBuffer:
    """An input or output of a compiled model: in host memory, or on the device where runs hand it
    on to one another.

    One that is an input and an output of the same run is replaced by what the run makes of it.
    """

    def __init__(self, capsule: TensorMemory, environment: Any = None) -> None:
        """Over a tensor's memory, with what has to live as long."""
        self._memory: TensorMemory | None = capsule
        self._environment = environment
        self._wait: Callable[[], object] | None = None

    @classmethod
    def create_from_host_memory(cls, data_array: Array) -> TensorBuffer:
        """A buffer over an array, which runs read and write in place; nothing is copied here,
        whatever its address.

        Raises:
            InputError: no array, an array that is not C-contiguous, or of a type without numbers.
        """
        array = _array(data_array)
        if not array.flags.c_contiguous:
            raise InputError(
                "data_array must be C-contiguous to be used in place; give "
                "np.ascontiguousarray(data_array), or write it to a buffer"
            )
        return cls(TensorMemory.over(array))

    def write(self, data_array: Array) -> None:
        """Copy an array to the buffer: of as many elements as it has, in any shape, or fewer, which
        become its first ones.

        Raises:
            InputError: no array, another type than the buffer's, or too many elements.
            StateError: the buffer was destroyed.
            DeviceError: the device failed.
        """
        array, memory = _array(data_array), self.capsule
        size = _check(memory, array.dtype, array.size, "written to")
        if array.size == size:
            memory.write(array if array.shape == memory.shape else array.reshape(memory.shape))
            return
        whole = memory.read()
        whole.reshape(-1)[: array.size] = array.reshape(-1)
        memory.write(whole)

    def read(self, num_elements: int, output_dtype: npt.DTypeLike) -> Array:
        """The first elements, as a flat array for the caller to keep. Waits for a run that writes
        the buffer.

        Args:
            num_elements: How many.
            output_dtype: The buffer's type.

        Raises:
            InputError: another type than the buffer's, or more elements than it has.
            StateError: the buffer was destroyed.
            DeviceError: the device failed.
        """
        memory = self.capsule
        own = memory.dtype
        dtype = own if output_dtype is own.type else attempt(np.dtype, output_dtype)
        if isinstance(dtype, Failed):
            raise InputError(
                f"Unsupported dtype: {shown(output_dtype)}; this one is {memory.dtype}"
            )
        if isinstance(num_elements, bool) or not isinstance(num_elements, (int, np.integer)):
            raise ArgumentError(f"num_elements is a whole number, not {shown(num_elements)}")
        _check(memory, dtype, int(num_elements), "read from")
        found: Array = memory.read().reshape(-1)[: int(num_elements)]
        return found

    def get_tensor_details(self) -> dict[str, Any]:
        """The type's name and the shape: ``{"dtype": "float32", "shape": [1, 10]}``.

        Raises:
            StateError: the buffer was destroyed.
        """
        memory = self.capsule
        return {"dtype": memory.dtype.name, "shape": list(memory.shape)}

    def destroy(self) -> None:
        """Free the memory; twice is harmless. A host array stays its owner's."""
        memory, self._memory, self._environment = self._memory, None, None
        if memory is not None:
            memory.close()

    @property
    def capsule(self) -> TensorMemory:
        """The memory, when no run is writing it any more.

        Raises:
            StateError: the buffer was destroyed.
            DeviceError: the run that was to write it failed.
        """
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()
        if self._memory is None:
            raise StateError("TensorBuffer has been destroyed; create another one")
        return self._memory

    def expect(self, wait: Callable[[], object]) -> None:
        """Call ``wait`` before the next use: a run is under way that uses the buffer."""
        self._wait = wait

    def __repr__(self) -> str:
        memory = self._memory
        if memory is None:
            return "<TensorBuffer: destroyed>"
        where = "a device" if memory.array is None else "host memory"
        return f"<TensorBuffer: {memory.dtype}{listed(memory.shape)} in {where}>"


def _size(memory: TensorMemory) -> int:
    return memory.nbytes // memory.dtype.itemsize


def _array(value: Any) -> Array:
    if not isinstance(value, np.ndarray):
        raise InputError(f"data_array must be a NumPy array, not {shown(value)}")
    if value.dtype.kind not in "biufcV" or value.dtype.hasobject or value.dtype.names:
        raise InputError(f"Unsupported dtype: {value.dtype}; a tensor has numbers or truth values")
    return value


def _check(memory: TensorMemory, dtype: np.dtype[Any], count: int, what: str) -> int:
    """How many elements there are."""
    size = _size(memory)
    if dtype != memory.dtype:
        raise InputError(
            f"Unsupported dtype: {dtype} cannot be {what} a buffer of {memory.dtype}; convert it "
            f"by astype(np.{memory.dtype})"
        )
    if not 0 <= count <= size:
        raise InputError(
            f"{count} elements cannot be {what} a buffer of {memory.dtype}{listed(memory.shape)}, "
            f"which has {size}"
        )
    return size
