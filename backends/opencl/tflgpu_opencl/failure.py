"""Driver errors, told as tflgpu's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyopencl as cl
from tflgpu.errors import DeviceError, DeviceLostError

_MEMORY = frozenset({"MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY"})

#: What drivers say of everything on a device that has crashed or is gone.
_LOST = frozenset({"DEVICE_NOT_AVAILABLE", "INVALID_CONTEXT", "INVALID_COMMAND_QUEUE"})


def status_name(code: int) -> str:
    """OpenCL's name for an error code, without its prefix."""
    return str(cl.status_code.to_string(code, "error %d"))


def explain(code: int) -> str:
    """An error code's name and what it means for the user."""
    name = status_name(code)
    if name in _MEMORY:
        return f"{name}: out of memory; free some, or use a smaller model or precision F16"
    if name == "OUT_OF_RESOURCES":
        return f"{name}: the device ran out of resources, or a kernel crashed it"
    return name


def failure(what: str, code: int) -> DeviceError:
    """The error of a status; ``what`` says what was tried."""
    kind = DeviceLostError if status_name(code) in _LOST else DeviceError
    return kind(f"{what}: {explain(code)}")


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn pyopencl's exceptions into `DeviceError`; ``what`` says what was tried."""
    try:
        yield
    except cl.Error as error:
        raise failure(what, error.code) from error
