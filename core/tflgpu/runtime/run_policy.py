"""How options have recordings run where a plain run does not do: waited for without sleep,
repeated, timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tflgpu.backend_kit.waiting import manner
from tflgpu.checks.overdue import give_up
from tflgpu.contract.device import Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors import RunTimeoutError
from tflgpu.options import WaitType
from tflgpu.values import frozen


class Awake:
    """A run that is waited for without sleep."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def done(self) -> bool:
        """Whether the run is over."""
        return self._pending.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds; False where the run is not over then."""
        with _awake():
            return self._pending.wait(timeout)


@contextmanager
def _awake() -> Iterator[None]:
    """This thread asks its device again and again, and never sleeps."""
    manner.awake = True
    try:
        yield
    finally:
        manner.awake = False


@frozen
class RunPolicy:
    """How the runs of a loaded part are made; a part without one has `Recording.run` called.

    Attributes:
        wait: How the end of a run is waited for.
        loops: Runs of each part in a run of the session. They read the same inputs, so that the
            outputs are those of one.
        timeout: Seconds after which a run has failed; None is no limit.
    """

    wait: WaitType = WaitType.PASSIVE
    loops: int = 1
    timeout: float | None = None

    def run(self, recording: Recording) -> None:
        """Run a recording to its end.

        Raises:
            RunTimeoutError: it takes longer than it may. The recording is given up then.
            StateError, DeviceError: as `Recording.run`.
        """
        with _awake() if self.wait is WaitType.ACTIVE else nullcontext():
            for _ in range(self.loops):
                if self.timeout is not None:
                    self.finish(recording, recording.submit())
                else:
                    recording.run()

    @property
    def submits(self) -> bool:
        """Whether a run goes on by itself: not where the host has work meanwhile, to watch a
        timeout or to begin the next of several runs."""
        return self.loops == 1 and self.timeout is None

    def submit(self, recording: Recording) -> Pending:
        """Submit a run, to be waited for later."""
        pending = recording.submit()
        return Awake(pending) if self.wait is WaitType.ACTIVE else pending

    def finish(self, recording: Recording, pending: Pending) -> None:
        """Wait for a run that was submitted, as long as it may take.

        Raises:
            RunTimeoutError: it takes longer. The recording is given up then.
            DeviceError: it failed.
        """
        if self.timeout is None:
            pending.wait()
            return
        if not pending.wait(self.timeout):
            give_up(recording, pending)
            raise RunTimeoutError(
                f"a run was not over after {self.timeout:g} seconds (run_timeout); the device may "
                "still be at it. Allow it more time, or look for what else keeps the device busy"
            )
