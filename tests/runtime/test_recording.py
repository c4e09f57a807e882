"""What the recordings of backends share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tflgpu.errors import DeviceError
from tflgpu.runtime.lending import NoRoomError, OutputSet, OutputSets
from tflgpu.runtime.protocols import DispatchTime
from tflgpu.runtime.recording import BaseRecording


class Counter(BaseRecording[OutputSet]):
    """Writes how often it ran; ``room`` is how many sets of outputs there can be."""

    def __init__(self, room: int, error: type[Exception] = MemoryError) -> None:
        super().__init__()
        self.runs = 0
        self.room = room
        self.problem: BaseException | None = None
        self.released = 0

        def make() -> OutputSet:
            self.room -= 1
            if self.room <= 0:
                raise error("all taken")
            return OutputSet([np.zeros(3, np.int32)])

        self._sets = OutputSets(OutputSet([np.zeros(3, np.int32)]), [0], make, self._fill)

    def _fill(self, outputs: OutputSet) -> None:
        if self.problem is not None:
            raise self.problem
        outputs.arrays[0][...] = self.runs

    def _run(self) -> None:
        self.runs += 1
        self._fill(self._outputs.for_run())

    def _profile(self) -> Sequence[DispatchTime]:
        self._run()
        return ()

    def _release(self) -> None:
        self.released += 1


@pytest.mark.parametrize("error", [MemoryError, DeviceError])
def test_no_room_for_another_set_is_no_failure(error: type[Exception]) -> None:
    recording = Counter(2, error)
    recording.run()
    first = recording.lend(0)
    recording.run()
    assert recording.lend(0) is None  # there is no third
    assert first is not None
    recording.room = 2
    assert recording.lend(0) is not None
    recording.room = 0
    kept = []
    while (lent := recording.lend(0)) is not None:
        kept.append(lent)
        recording.run()
    recording.run()
    assert (recording.outputs[0] == recording.runs).all()
    assert (first == 1).all()


def test_settling_without_room_says_so_and_the_recording_goes_on() -> None:
    recording = Counter(2)
    recording.run()
    first = recording.lend(0)
    assert first is not None
    assert recording.lend(0) is None  # the results are in the second set, and there is no third
    assert (recording.outputs[0] == 1).all()
    keep = recording._outputs.current.lend(0)  # as if it had been lent all the same
    with pytest.raises(NoRoomError, match="all taken"):
        recording.settle()
    del keep
    recording.run()
    assert (recording.outputs[0] == 2).all()
    assert (first == 1).all()


@pytest.mark.parametrize("problem", [DeviceError("lost"), KeyboardInterrupt()])
def test_a_failure_lasts(problem: BaseException) -> None:
    recording = Counter(4)
    recording.run()
    recording.problem = problem
    with pytest.raises(type(problem)):
        recording.run()
    recording.problem = None
    for action in (recording.run, recording.profile, recording.settle):
        with pytest.raises(DeviceError, match="earlier run"):
            action()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.lend(0)
    recording.close()
    recording.close()
    assert recording.released == 1
    assert recording.outputs == ()
