"""Submitted runs: whether they are over, and waiting for their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class Pending(Protocol):
    """A run that `Recording.submit` began.

    Until `wait` has said that it is over, the recording's inputs are not to be written, and its
    outputs hold nothing that means anything.
    """

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once. Asks the device; does not wait."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return when the run is over and its outputs are there: True; or after ``timeout``
        seconds: False. A signal's handler may raise meanwhile: the run goes on, and can be waited
        for again.

        Raises:
            StateError: the recording or its device was closed before the run was waited for.
            DeviceError: the run failed; again at every call.
        """


class Finished:
    """The `Pending` of a run that was over before `submit` returned."""

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """True, at once."""
        return True


FINISHED = Finished()


class Submission:
    """The `Pending` of a `tflgpu.backend_kit.recording.BaseRecording`, which keeps its word."""

    def __init__(
        self,
        ask: Callable[[Submission], bool],
        wait: Callable[[Submission, float | None], bool],
    ) -> None:
        self._ask, self._wait = ask, wait
        #: How it ended: True, an error's text, or None as long as nobody knows.
        self.end: bool | str | None = None

    def done(self) -> bool:
        """Whether the run is over; asks the device and does not wait."""
        return self._ask(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the run; False after ``timeout`` seconds."""
        return self._wait(self, timeout)
