"""Memory of a device that recordings can be bound to, as an input or an output.

With it results stay on the device between recordings, and memory that something else made (host
memory, a buffer of the same API) is used without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tflgpu.ir.dtypes import Array
from tflgpu.values import frozen

Bytes = npt.NDArray[np.uint8]
#: Which memory, and from which byte of it to which.
Span = tuple[Hashable, int, int]


@frozen(eq=False)
class ForeignMemory:
    """Memory of a caller's that a tensor is to be bound to.

    Attributes:
        source: What `Device.import_buffer` takes, or, with ``owned``, a `Buffer`.
        kind: What it is, for messages: "a pyopencl Buffer".
        shape, dtype: Of its elements, packed row-major; None where it is bytes of any meaning.
        array: The same memory as an array, where the host has it.
        owned: Whether ``source`` is a `Buffer` that a device made, which stays the caller's.
    """

    source: Any
    kind: str
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    array: Array | None = None
    owned: bool = False


@frozen
class MemoryKind:
    """A kind of objects of an API's whose memory a device of it can import.

    Attributes:
        name: What they are called in the list of what can be bound: "a pyopencl Buffer or Array".
        find: An object as memory; None where it is of another kind. Asked of everything that is
            bound, so that it must not import a driver: whose class is not imported yet, there is no
            object of. Raises `InputError` or `UnsupportedError` for one that cannot be bound.
    """

    name: str
    find: Callable[[object], ForeignMemory | None]


@runtime_checkable
class Buffer(Protocol):
    """Bytes on a device, of `Device.allocate` or `Device.import_buffer`.

    While a run is in flight whose recording is bound to it, a buffer is not to be used otherwise:
    not by the host, and not by another run if one of the two writes it.
    """

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    def write(self, data: Array) -> None:
        """Copy an array, in row-major order, to the buffer's start.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the array is larger than the buffer, or the device failed.
        """

    def read(self, into: Array) -> None:
        """Fill an array, in row-major order, from the buffer's start.

        Raises:
            StateError, DeviceError: as `write`.
        """

    def export(self) -> object:
        """The API's own object for a buffer (OpenCL's ``pyopencl.Buffer``, wgpu's ``GPUBuffer``,
        ...) over the same memory; or an `Unsupported` with the reason why there is none.

        Raises:
            StateError: the buffer or its device is closed.
        """

    def close(self) -> None:
        """Free it once no recording is bound to it any more; twice is harmless. What was imported
        is let go of."""


class SharedBuffer(Protocol):
    """A `Buffer` of memory that another API may use at the same time, by a file descriptor.

    Attributes:
        wait: As `BaseBuffer.wait`; set by the API that shares the memory.
        uuid: Of the device that has it.
        allocated: Bytes of the memory, of which the buffer is the beginning.
    """

    wait: Callable[[], None] | None
    uuid: bytes
    allocated: int

    def descriptor(self) -> int:
        """A new file descriptor of the memory, the caller's to close or to hand on.

        Raises:
            StateError: the buffer or its device is closed.
            DeviceError: the driver gives none.
        """


class SharesMemory(Protocol):
    """Optional for a `tflgpu.contract.device.Device`: memory that another API can use."""

    def allocate_shared(self, nbytes: int) -> Any:
        """A `SharedBuffer`, all zeros; or an `Unsupported` with the reason why there is none.

        Raises:
            StateError: the device is closed.
            DeviceError: memory ran out.
        """
