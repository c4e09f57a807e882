"""What follows a run that failed on the device, by the option ``on_error``.

    run -> DeviceError -> RAISE: the error. The next run is recorded anew.
                          CPU:   the same inputs and state on the CPU, which goes on from then on.
                          RETRY: recorded anew, and run once more; then the error, or the CPU where
                                 tflgpu chose the device.

Inputs stay where they were set. State is kept from before the run, since a part that had run may
have changed it. What a session is recorded anew on is the device as it is, or, where that is lost,
the device opened anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tflgpu.contract.pending import Finished
from tflgpu.errors import DeviceError, DeviceLostError
from tflgpu.errors.blame import LOG, in_a_line
from tflgpu.interpreter.session_opener import SessionOpener
from tflgpu.ir.dtypes import Array
from tflgpu.options import OnError
from tflgpu.runtime.session import Session

#: So many failures in a row to load what was loaded before, and the device counts as lost.
_STRIKES = 2
#: A run that failed when it was submitted, and was made again there and then.
MADE_AGAIN = Finished()

T = TypeVar("T")
#: Opens a session in the place of one that is broken, with its inputs and state.
Again = Callable[[], Session]


class Recovery:
    """What follows a failed run of one subgraph. One thread at a time."""

    def __init__(self, opener: SessionOpener) -> None:
        self._opener = opener
        self._before: dict[int, Array] = {}
        self._strikes = 0

    def keep_state(self, session: Session) -> None:
        """Keep what a run may have to be made again with."""
        self._before = {key: array.copy() for key, array in session.at_hand.items()}

    def failed(self, session: Session, error: DeviceError, policy: OnError, again: Again) -> None:
        """Recover from an error of a run by the policy of its session; returns where the run was
        repeated.

        Raises:
            DeviceError: that error, or what came of trying again.
        """
        if isinstance(error, DeviceLostError):
            self._strikes = _STRIKES
        if policy is OnError.RAISE or not session.is_broken:
            raise error
        if policy is OnError.RETRY:
            try:
                self._retry(error, again)
            except DeviceError as second:
                if not self._opener.is_default:
                    raise
                error = second
            else:
                return
        self._opener.give_way(error)
        self._run_on_old_state(again())

    def reopened(self, session: Session, opened: Callable[[], T]) -> T:
        """What ``opened`` gives in the place of a session, on a device opened anew where the one it
        was on is lost.

        Raises:
            DeviceError: there is no device any more, or it could not load it.
        """
        if self._strikes >= _STRIKES:
            self._opener.provider.renew(session)
        try:
            made = opened()
        except DeviceError as error:
            self._strikes += _STRIKES if isinstance(error, DeviceLostError) else 1
            raise
        self._strikes = 0
        return made

    # Inside

    def _retry(self, error: DeviceError, again: Again) -> None:
        try:
            new = again()
        except DeviceError:
            self._strikes = _STRIKES  # it was loaded before: the device is to blame
            new = again()
        said = in_a_line(error)
        LOG.warning("tflgpu: a run failed, and is made again: %s", said)
        new.note(f"on_error: a run failed and was made again ({said})")
        self._run_on_old_state(new)

    def _run_on_old_state(self, session: Session) -> None:
        variables = session.variables
        for key, before in self._before.items():
            np.copyto(variables[key], before)
        session.run()
