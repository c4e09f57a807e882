"""wgpu's errors, told as tflgpu's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import wgpu
from tflgpu.errors import DeviceError, DeviceLostError


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Turn wgpu's exceptions into `DeviceError`; ``what`` says what was tried."""
    try:
        yield
    except wgpu.GPUOutOfMemoryError as error:
        raise DeviceError(
            f"{what}: out of memory ({first_line(error)}); free some, or use a smaller model or "
            "precision F16"
        ) from error
    except (wgpu.GPUError, RuntimeError, ValueError) as error:
        if isinstance(error, DeviceError):
            raise
        raise failure(what, str(error)) from error


def failure(what: str, said: str) -> DeviceError:
    """An error of wgpu's by its text, which alone tells that a device is lost."""
    kind = DeviceLostError if "device is lost" in said.lower() else DeviceError
    return kind(f"{what}: {said}")


def first_line(error: BaseException) -> str:
    """The first line of a message."""
    return str(error).strip().split("\n")[0]
