"""One recording of a session, and how it is run."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tflgpu.contract.device import Device, Recording
from tflgpu.contract.pending import Pending
from tflgpu.ir.graph import Value
from tflgpu.runtime.state import Keeper


@attrs.frozen
class Step:
    """One recording and the values at its edges, aligned with its arrays. Those ``on_cpu`` can run
    again after an error, and in a forked child. ``run`` is what runs the recording to its end, so
    many ``times``; ``submit`` begins a run that goes on by itself, None where none can. ``device`` makes buffers that the recording can be bound to.

    ``keeper`` is the recording where that keeps state, which changes when all of a run is over, so that
    an error in the middle leaves it as it was."""

    recording: Recording
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    label: str
    on_cpu: bool = False
    keeper: Keeper | None = None
    run: Callable[[], None] = attrs.field()
    times: int = 1
    device: Device | None = None
    submit: Callable[[], Pending] | None = attrs.field()

    @run.default
    def _plainly(self) -> Callable[[], None]:
        return self.recording.run

    @submit.default
    def _by_itself(self) -> Callable[[], Pending] | None:
        is_plain = not self.on_cpu and self.run == self.recording.run
        return self.recording.submit if is_plain else None
