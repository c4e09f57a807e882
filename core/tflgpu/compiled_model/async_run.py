"""`AsyncRun`: a run that goes on while its caller does something else."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.contract.pending import Pending
from tflgpu.interpreter.arguments import timeout_of


class AsyncRun:
    """A run that `CompiledModel.run_async` began."""

    def __init__(
        self, guard: RunGuard, pending: Pending, finish: Callable[[float | None], bool]
    ) -> None:
        """The run of a model that is guarded; ``finish`` ends it."""
        self._guard, self._pending, self._finish = guard, pending, finish
        self._error: BaseException | None = None
        self._is_over = False

    def done(self) -> bool:
        """Whether `wait` would return, or raise, without waiting for the device."""
        return self._is_over or self._pending.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Return when the output buffers are written: True; or after ``timeout`` seconds: False.

        Raises:
            ArgumentError: ``timeout`` is neither a number nor None.
            DeviceError: the run failed.
            StateError: the model is closed or in use.
        """
        seconds = timeout_of(timeout)
        if not self._is_over:
            with self._guard:
                if not self.finish(seconds):
                    return False
        if self._error is not None:
            raise self._error
        return True

    def finish(self, timeout: float | None = None) -> bool:
        """As `wait`, inside of a call; keeps an error for it."""
        if not self._is_over:
            try:
                self._is_over = self._finish(timeout)
            except Exception as error:  # noqa: BLE001  (it is raised by `wait`)
                self._error, self._is_over = error, True
        return self._is_over
