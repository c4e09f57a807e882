"""Checks what a submission returns (see `tflgpu.checks.device`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.checks.plugin_caller import PluginCaller
from tflgpu.errors.blame import shown


class CheckedPending:
    """A `Pending` around another's."""

    def __init__(self, inner: Any, party: PluginCaller, after: Callable[[], object]) -> None:
        """``after`` looks at the recording once the run is over."""
        self._inner, self._party, self._after = inner, party, after

    def done(self) -> bool:
        """As `Pending.done`.

        Raises:
            DeviceError: it failed on the question, or did not answer it.
        """
        return self._answer("done", self._party.call("done", self._inner.done))

    def wait(self, timeout: float | None = None) -> bool:
        """As `Pending.wait`.

        Raises:
            StateError: the recording was closed.
            DeviceError: the run failed, or broke the contract; names the plugin.
        """
        over = self._answer("wait", self._party.call("wait", self._inner.wait, timeout))
        if timeout is None and not over:
            raise self._party.broke(
                "wait without a timeout gave False; it returns when all is over"
            )
        if over:
            self._after()
        return over

    def _answer(self, what: str, answer: object) -> bool:
        if not isinstance(answer, (bool, np.bool_)):
            raise self._party.broke(f"{what} gave {shown(answer)}, neither True nor False")
        return bool(answer)
