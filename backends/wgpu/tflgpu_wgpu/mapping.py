"""Host memory that wgpu itself copies results to, so that the host copies nothing.

WebGPU lets host and device take turns with such a buffer. Here the host has it but for the time of
a run. Inputs lie elsewhere: a buffer that the host maps to write it is often the device's own
memory, from which an H200's host reads 30 MB/s.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from tflgpu.backend_kit.forks import immortal, keep_in_child
from tflgpu.backend_kit.waiting import wait_until
from tflgpu.contract.buffers import Bytes
from tflgpu.errors import DeviceError
from wgpu.backends.wgpu_native import ffi, lib

from tflgpu_wgpu.failure import failure
from tflgpu_wgpu.native import CHECKED, asking, poll

_READ = 1  # WGPUMapMode_Read


class Pinned:
    """What arrays over a mapped buffer have as the base of their base: keeps it mapped."""

    def __init__(self, device: Any, buffer: Any, address: int, nbytes: int) -> None:
        self.device, self._buffer = device, buffer
        _alive.add(self)
        place = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1"}
        self.__array_interface__ = {**place, "version": 3}


_alive: weakref.WeakSet[Pinned] = weakref.WeakSet()


def has_arrays(device: Any) -> bool:
    """Whether there is an array over memory of a device, which must not be destroyed then."""
    return any(pinned.device is device for pinned in _alive)


class _Answer:
    """What a callback tells of mapping a buffer.

    Attributes:
        done: Whether it is over.
        problem: Why it failed, if it did.
    """

    done = False
    problem: str | None = None


class Mapping:
    """A buffer that host and device take turns with, and host memory over it.

    Attributes:
        buffer: wgpu-py's.
        memory: All of it: zeros at first. It stays valid for as long as there is an array over it.
    """

    def __init__(self, device: Any, buffer: Any, nbytes: int) -> None:
        """Have the host's turn.

        Args:
            device: wgpu-py's.
            buffer: Mappable for reading, wgpu-py's.
            nbytes: Its size.

        Raises:
            DeviceError: the device is lost.
            wgpu.GPUError: wgpu refused.
        """
        self._device, self.buffer = device._internal, buffer
        self._handle = buffer._internal
        self._nbytes = nbytes
        # The callback knows this alone, and not the object that has the callback: the two would
        # keep the device until Python's collector comes by.
        self._answer = answer = _Answer()

        # Python handles signals in callbacks too. What they raise there, KeyboardInterrupt above
        # all, does not get through the library that calls, so it is kept for who asked it.
        def failed(kind: Any, error: BaseException, trace: Any) -> None:
            answer.done = True
            asking.raised = error.with_traceback(trace)

        @ffi.callback(  # type: ignore[untyped-decorator]
            "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", onerror=failed
        )
        def mapped(status: int, message: Any, data1: Any, data2: Any) -> None:
            if status != lib.WGPUMapAsyncStatus_Success:
                text = ffi.string(message.data, message.length).decode(errors="replace")
                answer.problem = text or f"status {status}"
            answer.done = True

        self._callback = mapped
        self._info = ffi.new("WGPUBufferMapCallbackInfo *")
        self._info.mode = lib.WGPUCallbackMode_AllowProcessEvents
        self._info.callback = mapped
        self._address = ffi.NULL
        self.take()
        self.finish()
        address = int(ffi.cast("uintptr_t", self._address))
        self.memory: Bytes = np.asarray(Pinned(device, buffer, address, nbytes))
        keep_in_child(self.memory)

    def give(self) -> None:
        """Give the device its turn."""
        lib.wgpuBufferUnmap(self._handle)

    def take(self) -> None:
        """Ask for the host's turn, which comes when everything that was submitted is done.

        Raises:
            wgpu.GPUError: wgpu refused.
        """
        self._answer.done, self._answer.problem = False, None
        CHECKED.wgpuBufferMapAsync(self._handle, _READ, 0, self._nbytes, self._info[0])

    def is_over(self) -> bool:
        """Whether `finish` would not wait. Asks the device."""
        if not self._answer.done:
            poll(self._device)
        return self._answer.done

    def finish(self) -> None:
        """Return when the host has its turn.

        Raises:
            DeviceError: the device is lost.
        """
        if not self._answer.done:
            wait_until(self.is_over)
        problem = self._answer.problem
        if problem is not None:
            raise failure("waiting for the device", problem)
        address = lib.wgpuBufferGetConstMappedRange(self._handle, 0, self._nbytes)
        if address == ffi.NULL or self._address not in (ffi.NULL, address):
            raise DeviceError("waiting for the device: it maps memory elsewhere")
        self._address = address

    def keep(self) -> None:
        """Never release the callback: the library may still call it."""
        immortal(self._callback)
