"""Driver errors, told as tflgpu's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl
from tflgpu.errors import DeviceError, DeviceLostError

_MEMORY = frozenset({"MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY"})

#: What drivers say of everything on a device that has crashed or is gone.
_LOST = frozenset({"DEVICE_NOT_AVAILABLE", "INVALID_CONTEXT", "INVALID_COMMAND_QUEUE"})


def failure(what: str, code: int) -> DeviceError:
    """The error of a status, with what it means for the user; ``what`` says what was tried."""
    name = str(cl.status_code.to_string(code, "error %d"))
    kind = DeviceLostError if name in _LOST else DeviceError
    if name in _MEMORY:
        name += ": out of memory; free some, or use a smaller model or precision F16"
    if name == "OUT_OF_RESOURCES":
        name += ": the device ran out of resources, or a kernel crashed it"
    return kind(f"{what}: {name}")


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn pyopencl's exceptions into `DeviceError`; ``what`` says what was tried."""
    try:
        yield
    except cl.Error as error:
        raise failure(what, error.code) from error
