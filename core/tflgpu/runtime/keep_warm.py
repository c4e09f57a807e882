"""Keeps a device from falling asleep between runs, where the option ``keep_warm`` asks for it.

run                             run     its clocks have fallen: tens of runs are slow
run  .  .  .  .  .  .  .  .  .  run     small runs of its own keep them up
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

from tflgpu.contract.device import Device, Recording
from tflgpu.devices.measure import small_recording
from tflgpu.errors.blame import LOG, Failed, attempt

#: Seconds between two small runs.
_EVERY = 0.1


class Warmth:
    """What is known of the use of a device, and the small runs that follow from it.

    Args:
        seconds: How long after the last run of a model they go on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._runs = 0
        self._until = 0.0
        self._device: Device | None = None
        self._recording: Recording | None = None

    def tick(self, device: Device, runs: int, now: float) -> None:
        """A moment has passed: make a small run where models made some lately, and none since the
        last moment.

        Args:
            device: To be kept warm.
            runs: Of all models that are on it, until now; fewer where one was closed.
            now: Seconds of a clock.
        """
        before, self._runs = self._runs, runs
        if runs > before:
            self._until = now + self._seconds
        elif now < self._until:
            made = attempt(self._run, device)
            if isinstance(made, Failed):  # it may be lost: the next run of a model says so
                LOG.info("tflgpu: keep_warm: %s", str(made))
                self._until = now
                self.close()

    def close(self) -> None:
        """Release what is on the device."""
        if self._recording is not None:
            attempt(self._recording.close)
        self._device = self._recording = None

    def _run(self, device: Device) -> None:
        if self._recording is None or self._device is not device:
            self.close()
            self._device, self._recording = device, small_recording(device)
        self._recording.run()


class KeepWarm:
    """A thread that keeps a device warm until `close`, or until the device's owner is gone.

    Args:
        use: The owner's method that gives the device, and how many runs there were on it.
        seconds: As `Warmth`.
    """

    def __init__(self, use: Callable[[], tuple[object, int]], seconds: float) -> None:
        self._use, self._warmth = weakref.WeakMethod(use), Warmth(seconds)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tflgpu-warm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Return when nothing of it is on the device any more."""
        self._end.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._end.wait(_EVERY):
            use = self._use()
            if use is None:
                break
            used = attempt(use)  # sessions may be opened meanwhile, by another thread
            del use
            if not isinstance(used, Failed) and isinstance(used[0], Device):
                self._warmth.tick(used[0], used[1], time.monotonic())
            del used
        self._warmth.close()
