"""`CudaBuffer`: memory of the device that CUDA can read and write too."""

from __future__ import annotations

import contextlib
import weakref
from functools import cache
from typing import Any

import numpy as np

from tflgpu.contract.buffers import SharesMemory
from tflgpu.contract.offers import offers
from tflgpu.errors import StateError, UnsupportedError
from tflgpu.interpreter.cuda import Cuda, Imported
from tflgpu.interpreter.device_buffer import DeviceBuffer
from tflgpu.interpreter.dlpack import CUDA, DlpackTensor, capsule
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported

#: Those that are open, by where CUDA sees them: a tensor over one is known by that.
_open: weakref.WeakValueDictionary[int, CudaBuffer] = weakref.WeakValueDictionary()


class CudaBuffer(DeviceBuffer):
    """A `DeviceBuffer` that is a tensor of CUDA as well: what takes DLPack
    (``torch.from_dlpack(buffer)``) or ``__cuda_array_interface__`` (CuPy, Numba) sees the same
    memory, without a copy.

    A run waits until CUDA has done what it was asked to, in all streams of the device, and CUDA may
    use the results when ``invoke`` has returned. Keep the buffer open as long as anything of CUDA's
    uses it: a tensor over it keeps the object, not the memory, after `close`.

    Attributes:
        pointer: Where CUDA sees it.
        cuda_device: CUDA's number of the device.
    """

    def __init__(self, buffer: Any, shape: Shape, dtype: np.dtype[Any], imported: Imported) -> None:
        """Over a buffer of a device that CUDA has imported."""
        super().__init__(buffer, shape, dtype)
        self._imported = imported
        self.pointer, self.cuda_device = imported.pointer, imported.device
        _open[self.pointer] = self

    def __dlpack_device__(self) -> tuple[int, int]:
        """As the array API standard says: CUDA, and which."""
        return CUDA, self.cuda_device

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """As the array API standard says. No stream has to wait: runs are over when they return.

        Raises:
            StateError: it is closed.
            UnsupportedError: a copy or another device was asked for.
        """
        del stream
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise UnsupportedError("a CudaBuffer is handed over as it is: no copy, no other device")
        self._check()
        what = DlpackTensor(self.__dlpack_device__(), self.pointer, self.shape, self.dtype)
        return capsule(what, self, versioned=max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3, as Numba's documentation has it.

        Raises:
            StateError: it is closed.
        """
        self._check()
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "strides": None,
            "data": (self.pointer, False),
            "stream": None,
        }

    def _close(self) -> None:
        """Wait for CUDA, take the memory from it, and free it once no model is bound to it any
        more.

        Raises:
            DeviceError: CUDA's driver failed.
        """
        if _open.get(self.pointer) is self:
            del _open[self.pointer]
        try:
            self._imported.close()
        finally:
            self.buffer.wait = None  # type: ignore[attr-defined]
            super()._close()

    def __del__(self) -> None:
        # One that nobody closed; CUDA may be gone when the process ends.
        with contextlib.suppress(Exception):
            self._close()

    def _check(self) -> None:
        if _open.get(self.pointer) is not self:
            raise StateError("this buffer is closed")


def allocate(device: object, shape: Shape, dtype: np.dtype[Any], what: str) -> CudaBuffer:
    """Memory of a device that CUDA sees.

    Raises:
        UnsupportedError: the backend shares none; says why.
        DeviceError: there is no CUDA, it does not have the same device, or it refused the memory.
    """
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    made: Any = (
        device.allocate_shared(nbytes)
        if offers(device, SharesMemory)
        else Unsupported("its backend shares no memory with other APIs; the Vulkan backend does")
    )
    if isinstance(made, Unsupported):
        raise UnsupportedError(f"a buffer of CUDA for {what}: {made.reason}")
    try:
        cuda = driver()
        number = cuda.device_of(made.uuid)
        imported = Imported(cuda, number, made.descriptor(), made.allocated, nbytes)
    except BaseException:
        made.close()
        raise
    made.wait = imported.wait
    return CudaBuffer(made, shape, dtype, imported)


@cache
def driver() -> Cuda:
    """CUDA's driver, loaded once.

    Raises:
        DeviceError: there is none.
    """
    return Cuda()


def buffer_at(pointer: int) -> CudaBuffer | None:
    """The buffer that begins where a tensor of CUDA does."""
    return _open.get(pointer)
