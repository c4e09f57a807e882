"""What the recordings of backends share."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from tflgpu.backend_kit.output_sets import NoRoomError, OutputSet, OutputSets
from tflgpu.backend_kit.recording import BaseRecording
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError, StateError


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


class Slow(Counter):
    """Goes on by itself, until ``ticks`` questions were asked."""

    def __init__(self, ticks: int = 2) -> None:
        super().__init__(4)
        self.ticks = self.left = ticks
        self.asking: BaseException | None = None

    def _begin(self) -> None:
        self.left = self.ticks

    def _is_over(self) -> bool:
        if self.asking is not None:
            error, self.asking = self.asking, None
            raise error
        self.left -= 1
        return self.left <= 0

    def _end(self) -> None:
        assert self.left <= 0
        super()._run()

    def _run(self) -> None:
        self._begin()
        self.left = 0
        self._end()


def test_a_submission_is_waited_for_and_its_end_remembered() -> None:
    recording = Slow(ticks=50)
    pending = recording.submit()
    assert not pending.done()
    assert not pending.wait(0)
    assert pending.wait()
    assert recording.runs == 1
    assert pending.done()
    assert pending.wait(0)
    assert (recording.outputs[0] == 1).all()


@pytest.mark.parametrize("what", ["run", "profile", "submit", "settle", "lend"])
def test_whatever_is_asked_waits_for_the_run_in_flight(what: str) -> None:
    recording = Slow(ticks=5)
    pending = recording.submit()
    if what == "lend":
        assert recording.lend(0) is not None
    else:
        getattr(recording, what)()
    assert pending.done()
    assert pending.wait()
    assert recording.runs == (1 if what in ("submit", "settle", "lend") else 2)


def test_an_interrupted_wait_leaves_the_run_in_flight() -> None:
    recording = Slow(ticks=5)
    pending = recording.submit()
    recording.asking = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        pending.wait()
    assert pending.wait()
    recording.run()
    assert recording.runs == 2


@pytest.mark.parametrize("problem", [DeviceError("lost"), KeyboardInterrupt()])
def test_what_ends_the_taking_of_results_ends_the_recording(problem: BaseException) -> None:
    recording = Slow()
    pending = recording.submit()
    recording.problem = problem
    with pytest.raises(type(problem)):
        pending.wait()
    assert pending.done()
    for action in (pending.wait, recording.run, recording.submit):
        with pytest.raises(DeviceError, match=r"lost|interrupted"):
            action()


def test_a_device_that_fails_while_asked_is_told_by_wait() -> None:
    recording = Slow()
    pending = recording.submit()
    recording.asking = DeviceError("gone")
    assert pending.done()  # the question failed; whoever waits is told
    recording.asking = DeviceError("gone")
    for _ in range(2):
        with pytest.raises(DeviceError, match="gone"):
            pending.wait()


def test_a_closed_recording_has_nothing_in_flight() -> None:
    recording = Slow()
    pending, over = recording.submit(), recording.submit()
    assert pending.wait()
    assert not over.done()
    recording.close()
    assert over.done()
    assert pending.wait()  # that one was over before
    with pytest.raises(StateError, match="closed before its run"):
        over.wait()
    with pytest.raises(StateError, match="is closed"):
        recording.submit()


def test_a_run_in_flight_keeps_its_recording() -> None:
    recording = Slow()
    recording.submit()
    kept = weakref.ref(recording)
    del recording
    gc.collect()
    found = kept()
    assert found is not None  # the device may still write to its memory
    found.close()
    del found
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("problem", [DeviceError("lost"), KeyboardInterrupt()])
def test_a_run_that_ended_early_keeps_its_recording(problem: BaseException) -> None:
    recording = Counter(1)
    recording.problem = problem
    with pytest.raises(type(problem)):
        recording.run()
    recording.problem = None
    problem.__traceback__ = None  # whose frames hold it too
    kept = weakref.ref(recording)
    del recording
    gc.collect()
    found = kept()
    assert found is not None  # the device may still write to its memory
    found.close()
    del found
    gc.collect()
    assert kept() is None


class Watched(Counter):
    """Its runs go on until ``over``; ``asked`` is how often the device was asked."""

    def __init__(self) -> None:
        super().__init__(1)
        self.over, self.asked, self.waited = False, 0, 0

    def _begin(self) -> None:
        self.runs += 1

    def _is_over(self) -> bool:
        return self.over

    def _end(self) -> None:
        self._fill(self._outputs.for_run())

    def _is_idle(self) -> bool:
        self.asked += 1
        return self.over

    def _wait_idle(self) -> None:
        self.waited += 1

    def __del__(self) -> None:
        self.close()


class Stopped(Watched):
    """A signal ends its runs."""

    def _run(self) -> None:
        raise KeyboardInterrupt


def test_an_interrupted_run_that_is_over_lets_its_recording_go() -> None:
    recording = Stopped()
    with pytest.raises(KeyboardInterrupt):
        recording.run()
    gone = weakref.ref(recording)
    recording.let_go_if_idle()
    del recording
    gc.collect()
    kept = gone()
    assert kept is not None  # the device may be at work in its memory
    kept.over = True
    kept.let_go_if_idle()
    assert kept.asked == 2
    with pytest.raises(DeviceError, match="an earlier run of this recording failed"):
        kept.run()
    waited: list[int] = []
    kept._release = lambda: waited.append(0)  # type: ignore[method-assign]
    del kept
    gc.collect()
    assert gone() is None
    assert waited == [0]


def test_a_dropped_recording_that_is_idle_is_not_waited_for() -> None:
    recording = Stopped()
    with pytest.raises(KeyboardInterrupt):
        recording.run()
    recording.over = True
    recording.let_go_if_idle()
    recording.close()
    assert (recording.waited, recording.released) == (0, 1)


def test_a_run_that_nobody_waited_for_is_taken_when_it_is_over() -> None:
    recording = Watched()
    pending = recording.submit()
    recording.let_go_if_idle()
    assert not pending.done()
    recording.over = True
    recording.let_go_if_idle()
    assert pending.wait()
    assert (recording.outputs[0] == 1).all()
    recording.run()
    assert (recording.outputs[0] == 2).all()


def test_one_that_is_in_use_elsewhere_is_left_alone() -> None:
    recording = Stopped()
    with pytest.raises(KeyboardInterrupt):
        recording.run()
    recording.over = True
    with recording._lock:
        recording.let_go_if_idle()
    assert recording.asked == 0
    recording.close()


@pytest.mark.parametrize("kind", [Watched, Stopped])
def test_closing_waits_for_the_device_before_it_frees(kind: type[Watched]) -> None:
    recording = kind()
    if kind is Stopped:
        with pytest.raises(KeyboardInterrupt):
            recording.run()
    else:
        recording.submit()
    recording._wait_idle = lambda: done.append("waited")  # type: ignore[method-assign]
    recording._release = lambda: done.append("freed")  # type: ignore[method-assign]
    done: list[str] = []
    recording.close()
    assert done == ["waited", "freed"]
