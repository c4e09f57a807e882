"""Which copies of a `Pool` answer requests, where devices were lost.

a device is lost    -> its copies are left out, if there is another device
the CPU took over   -> that copy is left out (the option ``on_error``), likewise
no device is left   -> copies that the CPU took over are back; otherwise a request gets the
                       error, and the next one opens the last device anew
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tflgpu.errors import DeviceLostError
from tflgpu.errors.blame import in_a_line
from tflgpu.interpreter.requests import ModelCopy

_LOG = logging.getLogger("tflgpu")


class LostDevices:
    """Leaves copies out. All of it is called under the lock of the pool.

    Args:
        copies: All copies of the pool.
    """

    def __init__(self, copies: Sequence[ModelCopy]) -> None:
        self._copies = copies
        self._has_several = len({each.device for each in copies}) > 1

    def leave_out(self, lost: ModelCopy, error: DeviceLostError) -> bool:
        """Leave all copies on the device of one of them out; False where there is no other."""
        if not self._has_others(lost):
            return False
        for each in self._copies:
            if each.device == lost.device:
                each.is_left_out = True
        _LOG.warning(
            "tflgpu: device %d of a pool is lost, and the others answer its requests: %s",
            lost.device,
            in_a_line(error),
        )
        return True

    def free_after_run(self, mine: ModelCopy) -> Sequence[ModelCopy]:
        """The copies that are free after a run of one of them: that one, as a rule."""
        if not self._has_several:
            return (mine,)
        if mine.is_left_out:
            return ()
        if not mine.gave_way:
            return (mine,)
        if self._has_others(mine):
            mine.is_left_out = True
            return ()
        back = [each for each in self._copies if each.is_left_out and each.gave_way]
        for each in back:
            each.is_left_out = False
        return (mine, *(each for each in back if each.batch is None))

    def _has_others(self, mine: ModelCopy) -> bool:
        return any(
            each.device != mine.device and not (each.is_left_out or each.gave_way)
            for each in self._copies
        )
