"""How recordings of a device are run: waited for, repeated, tried out."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tflgpu.contract.device import Recording
from tflgpu.options import DelegateOptions, InferencePreference, WaitType


@attrs.frozen
class Running:
    """What options say of it.

    Attributes:
        wait: How the end of a run is waited for.
        loops: Runs of each part in a run of the session.
        warm_up: Whether a part is run once, on zeros, when it is loaded.
    """

    wait: WaitType = WaitType.PASSIVE
    loops: int = 1
    warm_up: bool = False

    @classmethod
    def of(cls, options: DelegateOptions) -> Running:
        """As options ask for it."""
        is_single = options.inference_preference is InferencePreference.FAST_SINGLE_ANSWER
        return cls(options.wait_type, options.invoke_loop_times, not is_single)

    def of_recording(self, recording: Recording) -> Callable[[], None]:
        """What runs a recording, to its end.

        The repeated runs read the same inputs, so that the outputs are those of one.
        """

        def spin() -> None:
            pending = recording.submit()
            while not pending.done():
                pass
            pending.wait()

        once = spin if self.wait is WaitType.ACTIVE else recording.run

        def repeat() -> None:
            for _ in range(self.loops):
                once()

        return once if self.loops == 1 else repeat
