"""Waiting for a queue, in a way that lets signals through."""

from __future__ import annotations

from typing import Any

import pyopencl as cl
from tflgpu.backend_kit.waiting import wait_until

from tflgpu_opencl.failure import device_errors, failure

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
    marker = Marker(queue, what)
    wait_until(marker.is_over)
    marker.finish()


class Marker:
    """The end of the commands that a queue has now, to be asked for later. The device starts on
    them."""

    def __init__(self, queue: Any, what: str) -> None:
        """Put it there.

        Raises:
            DeviceError: the device failed; ``what`` says what it was doing.
        """
        self._queue, self._what = queue, what
        with device_errors(what):
            self._event = cl.enqueue_marker(queue)
            queue.flush()

    def is_over(self) -> bool:
        """Whether the device has come to it, or failed before.

        Raises:
            DeviceError: the driver does not say.
        """
        with device_errors(self._what):
            return bool(self._event.command_execution_status <= _COMPLETE)

    def sleep(self) -> None:
        """Wait until the device has come to it.

        Raises:
            DeviceError: it failed before.
        """
        with device_errors(self._what):
            self._event.wait()

    def finish(self) -> None:
        """Where the device has come to it: hear whether anything went wrong.

        Raises:
            DeviceError: it did.
        """
        with device_errors(self._what):
            self._queue.finish()
            status = self._event.command_execution_status
        if status < _COMPLETE:
            raise failure(self._what, status)
