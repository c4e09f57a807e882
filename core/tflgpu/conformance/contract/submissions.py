"""Runs that are submitted and waited for, several at a time, and signals that come meanwhile.

Whether a device goes on by itself is its own business: where it cannot, a run is over when `submit`
returns, and every check here holds all the same.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from tflgpu.compiler.plan import OutputRef
from tflgpu.conformance.contract.tools import (
    fill,
    gives,
    loaded,
    own,
    refused,
    same,
    says,
    shared,
    small,
    whole,
    works,
)
from tflgpu.conformance.plans import backwards, chain, chain_expected, dispatch, io, plan, stray
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device, Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors import DeviceError, StateError

_COUNT = 257
_MANY = 1 << 18  # elements of a run that a signal is to meet
#: Seconds that such a run should take, the least that will do, and its most dispatches.
_LONG, _LEAST, _STEPS = 0.3, 0.02, 4000
#: How often that is tried: on a machine with much else to do a signal may come late.
_TRIES = 4


def submission_checks() -> list[Check]:
    """One run, several, runs without a wait, and runs that are ended early."""
    return [
        shared("submit/outputs", _outputs),
        shared("submit/in_turn", _in_turn),
        shared("submit/several_in_flight", _several_in_flight),
        shared("submit/timeout", _timeout),
        shared("submit/a_failure", _a_failure),
        shared("submit/a_closed_recording", _a_closed_recording),
        own("submit/a_closed_device", _a_closed_device),
        shared("submit/interrupted_wait", _interrupted_wait),
        shared("submit/interrupted_run", _interrupted_run),
    ]


def _submitted(recording: Recording) -> Pending:
    pending = recording.submit()
    assert isinstance(pending, Pending), f"submit gave a {type(pending).__name__}, not a Pending"
    return pending


def _ends(pending: Pending, what: str) -> None:
    """Wait, and hear the same as often as one asks."""
    for turn in range(2):
        over = pending.wait()
        assert over is True, f"{what}: wait number {turn + 1} gave {over!r}"
        done = pending.done()
        assert done is True, f"{what}: done gave {done!r} after wait"
    assert pending.wait(0) is True, f"{what}: wait(0) gave no True after wait"


def _outputs(device: Device) -> None:
    """Outputs are there after the wait, at the same address, also where `done` was asked before."""
    with loaded(device, chain(_COUNT, device.alignment)) as recording:
        kept = recording.outputs[0]
        for seed in range(3):
            x = whole(_COUNT, seed)
            fill(recording, x)
            pending = _submitted(recording)
            if seed == 1:
                while not pending.done():
                    time.sleep(0.001)
            _ends(pending, f"submission {seed}")
            same(np.array(kept), chain_expected(x), f"what submission {seed} left")
            same(np.array(recording.inputs[0]), x, f"an input after submission {seed}")


def _in_turn(device: Device) -> None:
    """A recording has one run in flight: what else is asked of it comes after that."""
    with loaded(device, chain(_COUNT, device.alignment, steps=5)) as recording:
        x = whole(_COUNT)
        fill(recording, x)
        first, second = _submitted(recording), _submitted(recording)
        assert first.done() is True, "a run is in flight after another one was submitted"
        _ends(second, "the second submission")
        _ends(first, "the first submission, after the second")
        third = _submitted(recording)
        gives(recording, chain_expected(x, 5), "a run after a submission")
        _ends(third, "a submission that nobody waited for before the next run")
        fourth = _submitted(recording)
        recording.profile()
        same(np.array(recording.outputs[0]), chain_expected(x, 5), "a profile after a submission")
        _ends(fourth, "a submission that nobody waited for before a profile")


def _several_in_flight(device: Device) -> None:
    """Recordings of one device, waited for in another order than they were submitted."""
    steps = (3, 6, 2, 5)
    recordings = [device.load(chain(_COUNT, device.alignment, steps=n)) for n in steps]
    try:
        for turn in range(3):
            inputs = [whole(_COUNT, 10 * turn + i) for i in range(len(steps))]
            pending = []
            for recording, x in zip(recordings, inputs, strict=True):
                fill(recording, x)
                pending.append(_submitted(recording))
            for i in (2, 0, 3, 1):
                _ends(pending[i], f"submission {i} of four")
                got = np.array(recordings[i].outputs[0])
                want = chain_expected(inputs[i], steps[i])
                same(got, want, f"what submission {i} of four left, turn {turn}")
    finally:
        for recording in recordings:
            recording.close()


def _timeout(device: Device) -> None:
    """A wait that ends before the run leaves it as it was."""
    count, steps = _MANY, 8
    x = whole(count)
    with loaded(device, backwards(count, device.alignment, steps)) as recording:
        fill(recording, x)
        pending = _submitted(recording)
        for timeout in (0, 1e-4):
            over = pending.wait(timeout)
            assert isinstance(over, bool), f"wait({timeout}) gave {over!r}"
        _ends(pending, "a submission whose first wait ended early")
        same(np.array(recording.outputs[0]), x + np.float32(steps), "what it left")


def _a_failure(device: Device) -> None:
    """Told by `submit` or by every wait, and by the recording from then on."""
    made = plan(
        [dispatch(stray(_COUNT, -1), _COUNT, [OutputRef(0)], "culprit")],
        outputs=[io("y", (_COUNT,))],
        alignment=device.alignment,
    )
    with loaded(device, made, guard_bands=True) as recording:
        submitted: list[Pending] = []

        def run() -> None:
            submitted.append(recording.submit())
            submitted[0].wait()

        what = "submitting a run that writes outside its buffer"
        says(refused(run, what, DeviceError), what, "culprit")
        for pending in submitted:
            says(refused(pending.wait, "waiting again", DeviceError), what, "culprit")
        refused(recording.submit, "submitting to a recording that failed", DeviceError)
    works(device, "a plan after a submission that failed")


def _after_close(pending: Pending, what: str) -> None:
    """It was over before the close, or the wait is refused; either at once."""
    assert pending.done() is True, f"{what}: done says that it goes on"
    with suppress(StateError):
        assert pending.wait() is True, f"{what}: wait gave no True"


def _a_closed_recording(device: Device) -> None:
    """Closing waits for what is in flight, which uses what is freed then."""
    for _ in range(3):
        recording = device.load(backwards(_MANY, device.alignment, 6))
        held = recording.outputs[0]
        pending = _submitted(recording)
        recording.close()
        _after_close(pending, "a run whose recording was closed")
        refused(recording.submit, "submitting to a closed recording", StateError)
        held[...] = 7
        works(device, "a plan after a recording was closed in flight")
        assert (held == 7).all(), "a run went on writing after its recording was closed"


def _a_closed_device(device: Device) -> None:
    recordings = [device.load(small(device, _COUNT)) for _ in range(2)]
    pending = [_submitted(recording) for recording in recordings]
    device.close()
    for each in pending:
        _after_close(each, "a run whose device was closed")


# Signals


class _Stop(BaseException):
    """What the handler raises."""


@contextmanager
def _signal_after(seconds: float) -> Iterator[list[float]]:
    """A signal is sent after ``seconds``, not after the block; its handler notes how many seconds
    later it is called, and raises `_Stop`. Where Python's collector was at work and the handler was
    called in a finalizer, Python drops what it raises, on any device: that is as if no signal had
    come."""
    came: list[float] = []
    sent = time.perf_counter() + seconds
    dropped = sys.unraisablehook

    def handler(number: int, frame: Any) -> None:
        came.append(time.perf_counter() - sent)
        raise _Stop

    def in_finalizer(what: Any) -> None:
        if isinstance(what.exc_value, _Stop):
            came.clear()
        else:
            dropped(what)

    before = signal.signal(signal.SIGALRM, handler)
    sys.unraisablehook = in_finalizer
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield came
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = dropped


def _long_run(device: Device) -> tuple[Recording, float, int] | NotApplicable:
    """A recording that a signal can meet, the seconds that a run takes, and its steps."""
    if not hasattr(signal, "setitimer"):
        return NotApplicable("this system sends no signal after a time")
    if threading.current_thread() is not threading.main_thread():
        return NotApplicable("Python handles signals in its main thread only")
    steps = 12
    while True:
        recording = device.load(backwards(_MANY, device.alignment, steps))
        # The first run may compile, and later ones may be faster, on a machine with much else to
        # do now: the fastest counts, of which one that is too short is enough.
        seconds = _seconds_of(recording)
        if seconds >= _LONG / 2 or steps == 12:
            seconds = min(seconds, *(_seconds_of(recording) for _ in range(2)))
        if seconds >= _LONG / 2 or steps == _STEPS:
            break
        recording.close()
        # An even number, after which the elements are in their first order.
        steps = min(_STEPS, 2 * int(steps / 2 * max(1.5, _LONG / seconds)))
    if seconds < _LEAST:
        recording.close()
        return NotApplicable(f"a run of {steps} steps takes {seconds} seconds: too short")
    return recording, seconds, steps


def _seconds_of(recording: Recording) -> float:
    start = time.perf_counter()
    recording.run()
    return time.perf_counter() - start


def _asked_early(recording: Recording, seconds: float, steps: int) -> None:
    """Of a run that has just begun nothing says that it is over, and a short wait is short. Where
    something else has the processor one may come late, but not every time."""
    hasty = late = True
    for turn in range(_TRIES):
        x = whole(_MANY, turn)
        fill(recording, x)
        begun = time.perf_counter()
        pending = _submitted(recording)
        asked = time.perf_counter()
        over = pending.wait(seconds / 20)
        waited = time.perf_counter()
        said = over or pending.done()
        _ends(pending, "a run that was asked for early")
        # Where it is over when `submit` returns, neither takes long.
        late = late and waited - asked > seconds / 2
        hasty = hasty and said and time.perf_counter() - waited > seconds / 4
        same(
            np.array(recording.outputs[0]), x + np.float32(steps), "what a run left that was asked"
        )
        if asked - begun > seconds / 2 or not (hasty or late):
            return
    assert not late, f"wait({seconds / 20}) took as long as the run, {seconds} seconds"
    assert not hasty, f"a run of {seconds} seconds that had just begun was said to be over"


def _interrupted_wait(device: Device) -> Outcome:
    """`wait` and `done` tell how far a run is. What a handler raises goes through at once, and the
    run can be waited for again."""
    found = _long_run(device)
    if isinstance(found, NotApplicable):
        return found
    recording, seconds, steps = found
    x = whole(_MANY, 3)
    soon = False
    try:
        _asked_early(recording, seconds, steps)
        for _ in range(_TRIES):
            if soon:
                break
            fill(recording, x)
            pending = None
            try:
                with _signal_after(seconds / 4) as came:
                    pending = _submitted(recording)
                    pending.wait()
            except _Stop:
                soon = came[0] < seconds / 2
            else:
                assert not came, "what a signal's handler raised in a wait was lost"
                continue
            if pending is None:  # the run is over when `submit` returns, or as here ended in it
                recording.close()
                recording = device.load(backwards(_MANY, device.alignment, steps))
                fill(recording, x)
                pending = _submitted(recording)
            _ends(pending, "a run whose wait was interrupted")
            got = np.array(recording.outputs[0])
            same(got, x + np.float32(steps), "what a run left whose wait was interrupted")
        assert soon, f"a signal was heard of only at the end of a run of {seconds} seconds"
    finally:
        recording.close()
    works(device, "a plan after a wait was interrupted")
    return None


def _interrupted_run(device: Device) -> Outcome:
    """The same in `run`, after which the recording is closed and another one loaded."""
    found = _long_run(device)
    if isinstance(found, NotApplicable):
        return found
    recording, seconds, steps = found
    x = whole(_MANY, 4)
    soon = False
    try:
        for _ in range(_TRIES):
            if soon:
                break
            try:
                with _signal_after(seconds / 4) as came:
                    recording.run()
            except _Stop:
                soon = came[0] < seconds / 2
            else:
                assert not came, "what a signal's handler raised in a run was lost"
            recording.close()
            recording = device.load(backwards(_MANY, device.alignment, steps))
            recording.run()  # a driver may finish loading in a first run, in one call
        gives(recording, x + np.float32(steps), "a run after others were interrupted", x)
        assert soon, f"a signal was heard of only at the end of a run of {seconds} seconds"
    finally:
        recording.close()
    return None
