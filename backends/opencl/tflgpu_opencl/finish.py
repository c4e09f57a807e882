"""Waiting for a queue, in a way that lets signals through."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
from tflgpu.errors import DeviceError
from tflgpu.runtime.waiting import wait_until

from tflgpu_opencl.failure import device_errors, explain

_COMPLETE = int(cl.command_execution_status.COMPLETE)


#: Seconds of a run that a signal may wait for. In runs as short as this a marker, and asking the
#: driver about it again and again, would count.
SHORT = 0.02


def finish(queue: Any, what: str, *, is_short: bool = False) -> None:
    """Return when a queue has done all that it was given.

    clFinish is one call, during which Python cannot handle a signal. So it is called when there is
    nothing left to wait for; it says what went wrong. With ``is_short`` it is called at once.

    Raises:
        DeviceError: the device failed; ``what`` says what it was doing.
    """
    if is_short:
        with device_errors(what):
            queue.finish()
        return
    with device_errors(what):
        marker = cl.enqueue_marker(queue)
        queue.flush()
        status = _COMPLETE

        def ended() -> bool:
            nonlocal status
            status = marker.command_execution_status
            return bool(status <= _COMPLETE)

        wait_until(ended)
        queue.finish()
    if status < _COMPLETE:
        raise DeviceError(f"{what}: {explain(status)}")
