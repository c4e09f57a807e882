"""OpenCL's functions for kernels and for enqueueing, called directly.

A run enqueues some dozens of commands whose arguments never change. pyopencl converts each
argument anew and makes an event object, in the driver too, for every command. Here arguments
are converted once, no event is asked for, and the loop over the commands runs in C. For a kernel
object pyopencl takes 0.2 to 0.4 ms, as it looks up the text of a function that enqueues it, and
compiles that.

What is left is the driver's own time. NVIDIA's (580.159, H200) takes 5.1 us of the host for each
launch, and 8.4 in some processes and moments, in which every other call takes 1.6 times as long
too: the core is slower then. The device waits for it, so that a model of small kernels has the
speed of that core: 0.18 or 0.28 ms for MobileNet v1. A launch takes 0.8 us more for each buffer
after the fourth, 0.3 for those before. It takes no less with SVM pointers, buffers without host
access, queues out of order, or flushes and markers in between; and threads wait for each other.
Fewer dispatches are what helps.

The functions are taken from the library that pyopencl itself is linked to.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import attrs
import numpy as np
import pyopencl as cl
from tflgpu.backend_kit.calls import Call
from tflgpu.errors import DeviceError

# What is an `int` or a null pointer in C goes as a Python number and as None, and arrays as
# `byref`: ctypes takes 0.3 us less for such a call (of 0.8) than for one with objects like
# `c_uint`.
_NO_EVENTS = (0, None)  # to wait for
_NO_WAIT = (*_NO_EVENTS, None)  # and none wanted
_NOT_BLOCKING = 0
_NAMES = (
    "clEnqueueNDRangeKernel",
    "clEnqueueWriteBuffer",
    "clEnqueueReadBuffer",
    "clEnqueueMapBuffer",
    "clEnqueueUnmapMemObject",
    "clCreateKernel",
    "clReleaseKernel",
    "clSetKernelArg",
    "clGetKernelInfo",
    "clGetKernelWorkGroupInfo",
    "clGetDeviceInfo",
)


@attrs.frozen
class Native:
    """The functions. Objects are pyopencl's; a caller that keeps a call must keep them alive."""

    _nd_range: Any
    _write: Any
    _read: Any
    _map: Any
    _unmap: Any
    _create: Any
    _release: Any
    _set: Any
    _info: Any
    _work_group_info: Any
    _device_info: Any

    def device_info(self, device: Any, what: int, nbytes: int) -> bytes:
        """What a device says of itself, as bytes.

        Raises:
            pyopencl.RuntimeError: it does not say that, or in more bytes.
        """
        found = ctypes.create_string_buffer(nbytes)
        _check(
            self._device_info(_handle(device), what, ctypes.c_size_t(nbytes), found, None),
            "clGetDeviceInfo",
        )
        return found.raw

    def kernel(
        self,
        queue: Any,
        kernel: Any,
        size: tuple[int, ...],
        local: tuple[int, ...],
        event: Any = None,
    ) -> Call:
        """Run a kernel over ``size`` work items in groups of ``local``; ``event`` is a
        ``c_void_p`` that gets an event of it."""
        return self._nd_range, (
            _handle(queue),
            _handle(kernel),
            len(size),
            None,
            _sizes(size),
            _sizes(local),
            *_NO_EVENTS,
            None if event is None else ctypes.byref(event),
        )

    def write(self, queue: Any, buffer: Any, array: np.ndarray[Any, Any]) -> Call:
        """Copy all of ``array`` to the start of a buffer."""
        return self._write, self._copy(queue, buffer, array)

    def read(self, queue: Any, buffer: Any, array: np.ndarray[Any, Any]) -> Call:
        """Fill ``array`` from the start of a buffer."""
        return self._read, self._copy(queue, buffer, array)

    def map(self, queue: Any, buffer: Any, nbytes: int, flags: int) -> Call:
        """Let the host see a buffer that was made over host memory."""
        status = (ctypes.c_int * 1)()
        return self._mapped, (
            _handle(queue),
            _handle(buffer),
            _NOT_BLOCKING,
            ctypes.c_uint64(flags),
            ctypes.c_size_t(0),
            ctypes.c_size_t(nbytes),
            *_NO_WAIT,
            status,
        )

    def unmap(self, queue: Any, buffer: Any, array: np.ndarray[Any, Any]) -> Call:
        """Give a mapped buffer back to the device."""
        pointer = ctypes.c_void_p(array.ctypes.data)
        return self._unmap, (_handle(queue), _handle(buffer), pointer, *_NO_WAIT)

    def _copy(self, queue: Any, buffer: Any, array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
        return (
            _handle(queue),
            _handle(buffer),
            _NOT_BLOCKING,
            ctypes.c_size_t(0),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_void_p(array.ctypes.data),
            *_NO_WAIT,
        )

    def _mapped(self, *args: Any) -> int:
        # A function that gives a pointer, known from the first call, instead of a status.
        self._map(*args)
        return int(args[-1][0])


class RawKernel:
    """A kernel object: what is used here of pyopencl's, under the same names."""

    def __init__(self, program: Any, name: str) -> None:
        self._native, self.int_ptr = native(), None
        status = (ctypes.c_int * 1)()
        made = self._native._create(_handle(program), name.encode(), status)
        _check(status[0], "clCreateKernel")
        self.int_ptr = made

    def __del__(self) -> None:
        if self.int_ptr is not None:
            self._native._release(_handle(self))

    @property
    def num_args(self) -> int:
        """How many arguments it has."""
        found = (ctypes.c_uint * 1)()
        return int(self._asked(self._native._info, found, int(cl.kernel_info.NUM_ARGS))[0])

    def set_arg(self, index: int, buffer: Any) -> None:
        """Have an argument be a buffer."""
        handle = _handle(buffer)
        size, to = ctypes.c_size_t(ctypes.sizeof(handle)), ctypes.byref(handle)
        _check(self._native._set(_handle(self), ctypes.c_uint(index), size, to), "clSetKernelArg")

    def get_work_group_info(self, what: int, device: Any) -> Any:
        """One number, or three of COMPILE_WORK_GROUP_SIZE."""
        is_size = what == cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE
        found = (ctypes.c_size_t * (3 if is_size else 1))()
        numbers = self._asked(self._native._work_group_info, found, _handle(device), int(what))
        return numbers if is_size else numbers[0]

    def _asked(self, function: Any, found: Any, *about: Any) -> list[int]:
        to = ctypes.c_size_t(ctypes.sizeof(found)), ctypes.byref(found), None
        _check(function(_handle(self), *about, *to), "asking about a kernel")
        return list(found)


def _check(status: int, what: str) -> None:
    if status:
        raise cl.RuntimeError(cl._cl._ErrorRecord(msg=what, code=status, routine=what))


@cache
def native() -> Native:
    """The functions.

    Raises:
        DeviceError: they cannot be found.
    """
    # On most systems a symbol is also looked for in what the extension module is linked to.
    name = "OpenCL" if sys.platform == "win32" else cl._cl.__file__
    try:
        library = ctypes.CDLL(name)
        functions = [getattr(library, n) for n in _NAMES]
    except (OSError, AttributeError) as error:
        raise DeviceError(
            f"the OpenCL library that pyopencl uses cannot be called ({error}); install another "
            "build of pyopencl"
        ) from error
    for giving in (library.clEnqueueMapBuffer, library.clCreateKernel):
        giving.restype = ctypes.c_void_p
    return Native(*functions)


def _handle(wrapper: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(wrapper.int_ptr)


def _sizes(values: tuple[int, ...]) -> Any:
    return ctypes.byref((ctypes.c_size_t * len(values))(*values))
