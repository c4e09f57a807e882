"""The part of CUDA's driver API that reads and writes memory shared by another API.

The library is called by ctypes, so that no package for CUDA is needed, and is only looked for when
a buffer is shared with CUDA. Sources: CUDA Driver API, "External Resource Interoperability",
"Primary Context Management" and "Device Management".
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tflgpu.backend_kit.forks import Holder
from tflgpu.errors import DeviceError

_NAMES = ("libcuda.so.1", "libcuda.so")
_OPAQUE_FD = 1  # CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD
_DEDICATED = 1  # CUDA_EXTERNAL_MEMORY_DEDICATED
UUID_BYTES = 16


class _HandleUnion(ctypes.Union):
    class _Win32(ctypes.Structure):
        _fields_ = (("handle", ctypes.c_void_p), ("name", ctypes.c_void_p))

    _fields_ = (("fd", ctypes.c_int), ("win32", _Win32), ("nvSciBufObject", ctypes.c_void_p))


class MemoryHandle(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_HANDLE_DESC."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle", _HandleUnion),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


class MappedBuffer(ctypes.Structure):
    """CUDA_EXTERNAL_MEMORY_BUFFER_DESC."""

    _fields_ = (
        ("offset", ctypes.c_ulonglong),
        ("size", ctypes.c_ulonglong),
        ("flags", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 16),
    )


class Cuda:
    """The driver. Errors are `DeviceError` and name the function and what it answered."""

    def __init__(self, library: Any = None) -> None:
        """Load and initialize it.

        Args:
            library: What has the functions; None for the system's.

        Raises:
            DeviceError: there is none, or it cannot be used.
        """
        self._library = _load() if library is None else library
        self.call("cuInit", 0)

    def device_of(self, uuid: bytes) -> int:
        """CUDA's number of the device that another API knows by a UUID.

        Raises:
            DeviceError: CUDA has no such device; says which it has.
        """
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        seen = []
        for index in range(count.value):
            device, found = ctypes.c_int(), (ctypes.c_ubyte * UUID_BYTES)()
            self.call("cuDeviceGet", ctypes.byref(device), index)
            self.call("cuDeviceGetUuid", ctypes.byref(found), device)
            if bytes(found) == uuid:
                return index
            seen.append(bytes(found).hex())
        raise DeviceError(
            f"CUDA has no device with the UUID {uuid.hex()}, which the model's device has; it has "
            f"{', '.join(seen) or 'none'}. Choose the backend's device that is one of CUDA's "
            "(CUDA_VISIBLE_DEVICES hides others)"
        )

    @contextmanager
    def context(self, device: int) -> Iterator[None]:
        """The primary context of a device is the thread's current one, inside.

        Raises:
            DeviceError: there is none.
        """
        handle, made = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(made), handle)
        try:
            self.call("cuCtxPushCurrent_v2", made)
            try:
                yield
            finally:
                self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        finally:
            self.call("cuDevicePrimaryCtxRelease_v2", handle)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver.

        Raises:
            DeviceError: it failed.
        """
        function = getattr(self._library, name, None)
        if function is None:
            raise DeviceError(f"CUDA's driver has no {name}; it is too old for shared memory")
        result = function(*arguments)
        if result:
            raise DeviceError(f"{name}: CUDA error {result}{self._text(result)}")

    def _text(self, result: int) -> str:
        found = ctypes.c_char_p()
        name = getattr(self._library, "cuGetErrorName", None)
        if name is None or name(result, ctypes.byref(found)) or not found.value:
            return ""
        return f" ({found.value.decode('ascii', 'replace')})"


class Imported(Holder):
    """Memory of another API that CUDA sees.

    Attributes:
        pointer: Where, for CUDA.
        device: CUDA's number of the device.
        nbytes: How much.
    """

    def __init__(
        self, cuda: Cuda, device: int, descriptor: int, allocated: int, nbytes: int
    ) -> None:
        """At an address in the primary context of a device, which is what PyTorch and the runtime
        use.

        Args:
            cuda: The driver.
            device: CUDA's number.
            descriptor: A file descriptor of the memory; it belongs to CUDA from now on, or is
                closed.
            allocated: Bytes of the memory.
            nbytes: Bytes from its start that are wanted.

        Raises:
            DeviceError: the driver refused.
        """
        self._cuda = cuda
        self.device, self.nbytes = device, nbytes
        # The context is there as long as the memory is mapped.
        self._closed = True
        self._handle, self._memory = ctypes.c_int(), ctypes.c_void_p()
        self._descriptor: int | None = descriptor  # None once it is CUDA's
        try:
            cuda.call("cuDeviceGet", ctypes.byref(self._handle), device)
            # The context is there as long as the memory is mapped.
            cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), self._handle)
            try:
                with cuda.context(device):
                    self.pointer = self._mapped(allocated)
            except BaseException:
                cuda.call("cuDevicePrimaryCtxRelease_v2", self._handle)
                raise
        except BaseException:
            if self._descriptor is not None:
                os.close(self._descriptor)
            raise
        self._closed = False
        self.belongs_to_process()

    def wait(self) -> None:
        """Return when all of CUDA's work on the device is done, in every stream.

        Raises:
            DeviceError: it failed at that.
            StateError: the process was forked since.
        """
        self.check_inherited("this memory of CUDA")
        with self._cuda.context(self.device):
            self._cuda.call("cuCtxSynchronize")

    def close(self) -> None:
        """Let go of it, when CUDA is done; twice is harmless.

        Raises:
            DeviceError: the driver failed.
        """
        if self._closed or self.inherited:
            return
        self._closed = True
        try:
            with self._cuda.context(self.device):
                self._cuda.call("cuCtxSynchronize")
                self._cuda.call("cuMemFree_v2", ctypes.c_ulonglong(self.pointer))
                self._cuda.call("cuDestroyExternalMemory", self._memory)
        finally:
            self._cuda.call("cuDevicePrimaryCtxRelease_v2", self._handle)

    def _mapped(self, allocated: int) -> int:
        cuda, mapped = self._cuda, ctypes.c_ulonglong()
        given = MemoryHandle(type=_OPAQUE_FD, size=allocated, flags=_DEDICATED)
        given.handle.fd = self._descriptor
        cuda.call("cuImportExternalMemory", ctypes.byref(self._memory), ctypes.byref(given))
        self._descriptor = None
        wanted = MappedBuffer(offset=0, size=self.nbytes)
        try:
            cuda.call(
                "cuExternalMemoryGetMappedBuffer",
                ctypes.byref(mapped),
                self._memory,
                ctypes.byref(wanted),
            )
        except BaseException:
            cuda.call("cuDestroyExternalMemory", self._memory)
            raise
        return int(mapped.value)


def _load() -> Any:
    reasons = []
    for name in _NAMES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise DeviceError(
        f"there is no CUDA driver: {reasons[0]}; install NVIDIA's driver, or bind host memory"
    )
