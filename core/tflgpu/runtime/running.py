"""How recordings of a device are run: waited for, repeated, tried out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from tflgpu.checks.overdue import give_up
from tflgpu.contract.device import Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors import RunTimeoutError
from tflgpu.options import DelegateOptions, InferencePreference, OnError, WaitType
from tflgpu.values import frozen


class Spinning:
    """A run that is waited for by asking again and again."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending

    def done(self) -> bool:
        """Whether the run is over."""
        return self._pending.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most ``timeout`` seconds; False where the run is not over then."""
        done = self._pending.done
        end = math.inf if timeout is None else time.perf_counter() + timeout
        while not done():
            if time.perf_counter() >= end:
                return False
        return self._pending.wait()


@frozen
class Running:
    """How options have recordings run.

    Attributes:
        wait: How the end of a run is waited for.
        loops: Runs of each part in a run of the session.
        warm_up: Whether a part is run once, on zeros, when it is loaded.
        timeout: Seconds after which a run has failed; None is no limit.
        state_may_leave: Whether state may lie on the device only, which may never give it back: not
            where the CPU, or a device opened anew, is to go on with it.
    """

    wait: WaitType = WaitType.PASSIVE
    loops: int = 1
    warm_up: bool = False
    timeout: float | None = None
    state_may_leave: bool = True

    @classmethod
    def of(cls, options: DelegateOptions) -> Running:
        """The settings that delegate options ask for."""
        is_single = options.inference_preference is InferencePreference.FAST_SINGLE_ANSWER
        return cls(
            options.wait_type,
            options.invoke_loop_times,
            not is_single,
            options.run_timeout,
            options.run_timeout is None and options.on_error in (None, OnError.RAISE),
        )

    def of_recording(self, recording: Recording) -> Callable[[], None]:
        """What runs a recording, to its end.

        The repeated runs read the same inputs, so that the outputs are those of one.
        """

        def spin() -> None:
            Spinning(recording.submit()).wait()

        def in_time() -> None:
            pending = recording.submit()
            self.finish(recording, pending)

        is_active = self.wait is WaitType.ACTIVE
        once = spin if is_active else recording.run
        if self.timeout is not None:
            once = in_time

        def repeat() -> None:
            for _ in range(self.loops):
                once()

        return once if self.loops == 1 else repeat

    def submission(self, recording: Recording) -> Callable[[], Pending] | None:
        """A function that submits a run, to be waited for later; None where the host has work
        meanwhile: to watch a timeout, or to begin the next of several runs."""
        if self.loops > 1 or self.timeout is not None:
            return None
        if self.wait is WaitType.ACTIVE:
            return lambda: Spinning(recording.submit())
        return recording.submit

    def finish(self, recording: Recording, pending: Pending) -> None:
        """Wait for a run that was submitted, as long as it may take.

        Raises:
            RunTimeoutError: it takes longer. The recording is given up then.
            DeviceError: it failed.
        """
        if self.timeout is None:
            pending.wait()
            return
        if self.wait is WaitType.ACTIVE:
            end = time.perf_counter() + self.timeout
            while not pending.done() and time.perf_counter() < end:
                pass
        left = 0.0 if self.wait is WaitType.ACTIVE else self.timeout
        if not pending.wait(left):
            give_up(recording, pending)
            raise RunTimeoutError(
                f"a run was not over after {self.timeout:g} seconds (run_timeout); the device may "
                "still be at it. Allow it more time, or look for what else keeps the device busy"
            )
