"""The checks of submissions notice every promise that is broken, and accept who keeps them all: a
device that computes in a thread of its own."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import pytest
from tflgpu.conformance.contract import submissions
from tflgpu.conformance.contract.submissions import _signal_after, _Stop, submission_checks
from tflgpu.conformance.target import DeviceUnderTest, NotApplicable
from tflgpu.contract.pending import FINISHED
from tflgpu.errors import DeviceError, StateError
from tflgpu.plugins.registry import registry

from tests.conformance.test_contract_meta import Spoilt, Wrapped, spoilt


class Threaded(Wrapped):
    """A run goes on in a thread. Keeps every promise."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pending: Any = None
        self.closed = False

    def submit(self) -> Any:
        self.settle()
        if self.closed:
            raise StateError("closed")
        if self.inner._failure:
            raise DeviceError(self.inner._failure)
        self.pending = self.begun()
        return self.pending

    def begun(self) -> Any:
        return Begun(self)

    def settle(self) -> None:
        if self.pending is not None:
            self.pending.over.wait()
            self.pending = None

    def run(self) -> None:
        self.settle()
        super().run()

    def profile(self) -> Any:
        self.settle()
        return super().profile()

    def close(self) -> None:
        self.settle()
        self.closed = True
        super().close()


class Begun:
    """Its `Pending`."""

    def __init__(self, recording: Threaded) -> None:
        self.error: BaseException | None = None
        self.inner = recording.inner
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        try:
            self.inner.run()
        except BaseException as error:  # noqa: BLE001
            self.error = error
        self.over.set()

    def done(self) -> Any:
        return self.over.is_set()

    def wait(self, timeout: float | None = None) -> Any:
        end = None if timeout is None else time.monotonic() + timeout
        # Not the thread's own join: one that a signal ends may say later that the thread has ended.
        while not self.over.wait(0.001):
            if end is not None and time.monotonic() >= end:
                return False
        if self.error is not None:
            raise self.error
        return True


class _Once(Begun):
    asked = False

    def wait(self, timeout: float | None = None) -> Any:
        if self.asked:
            raise KeyError("waited for already")
        self.asked = True
        return super().wait(timeout)


class _Silent(Begun):
    def wait(self, timeout: float | None = None) -> Any:
        super().wait(timeout)


class _Mute(Begun):
    def wait(self, timeout: float | None = None) -> Any:
        try:
            return super().wait(timeout)
        except DeviceError:
            return True


class Hanging(Threaded):
    """Closes over a run that goes on."""

    def close(self) -> None:
        self.closed = True


class Swallows(Wrapped):
    """Takes what a signal's handler raises for the end of a run."""

    def run(self) -> None:
        try:
            self.inner.run()
        except BaseException as error:
            if isinstance(error, DeviceError):
                raise


class Deaf(Wrapped):
    """Hears of signals when a run is over, as where a driver waits in one call."""

    def run(self) -> None:
        came: list[int] = []
        handler: Any = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
        try:
            self.inner.run()
        finally:
            signal.signal(signal.SIGALRM, handler)
        if came:
            handler(came[0], sys._getframe())


class _Broken(Begun):
    def wait(self, timeout: float | None = None) -> Any:
        try:
            return super().wait(timeout)
        except DeviceError:
            raise
        except BaseException:
            self.over.wait()
            self.error = DeviceError("a signal came")
            raise


def begun_as(kind: type[Begun] = Begun, **changes: Any) -> type[Threaded]:
    """A device of such runs, of which some methods are others."""
    made = spoilt(kind, **changes)
    return spoilt(Threaded, begun=lambda recording: made(recording))  # noqa: PLW0108 (a method)


#: What is spoilt, which checks have to say so, and what they say.
SPOILT: dict[str, tuple[type[Wrapped], Sequence[str], str]] = {
    "not begun": (
        spoilt(submit=lambda self: FINISHED),
        ["outputs", "several_in_flight", "timeout"],
        "element 0 is",
    ),
    "nothing to wait for": (
        spoilt(submit=lambda self: self.run()),
        ["outputs", "in_turn"],
        "submit gave a NoneType",
    ),
    "one wait": (begun_as(_Once), ["outputs", "in_turn"], "waited for already"),
    "never done": (
        begun_as(done=lambda self: False),
        ["in_turn", "several_in_flight"],
        "in flight after|done gave False",
    ),
    "silent": (begun_as(_Silent), ["in_turn", "timeout"], "gave None"),
    "hasty": (
        begun_as(wait=lambda self, timeout=None: True),
        ["timeout"],
        "done gave False after wait|what it left: element",
    ),
    "hopeful": (
        begun_as(done=lambda self: True),
        ["interrupted_wait"],
        "that had just begun was said to be over",
    ),
    "patient": (
        begun_as(wait=lambda self, timeout=None: Begun.wait(self)),
        ["interrupted_wait"],
        "took as long as the run",
    ),
    "failures kept": (begun_as(_Mute), ["a_failure"], "raised nothing"),
    "closes over a run": (
        Hanging,
        ["a_closed_recording"],
        "goes on|went on writing|raised nothing",
    ),
    "swallows signals": (Swallows, ["interrupted_run", "interrupted_wait"], "raised .* was lost"),
    "deaf": (Deaf, ["interrupted_run", "interrupted_wait"], "heard of only at the end"),
    "broken by a signal": (begun_as(_Broken), ["interrupted_wait"], "a signal came"),
}


class Slow:
    """A recording whose runs take 0.3 seconds each, of which they compute a few milliseconds: the
    checks of signals tell what comes late from what comes soon by the time of earlier runs, and a
    busy machine makes these no longer."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self) -> None:
        over = time.monotonic() + 0.3
        self._inner.run()
        while (left := over - time.monotonic()) > 0:
            time.sleep(left)


def target_of(
    kind: Callable[..., Any], checks: str, monkeypatch: pytest.MonkeyPatch
) -> DeviceUnderTest:
    def spoil(inner: Any, *rest: Any) -> Any:
        return kind(Slow(inner) if "interrupted" in checks else inner, *rest)

    if "interrupted" in checks:
        monkeypatch.setattr(submissions, "_MANY", 1 << 12)
    return DeviceUnderTest(registry(), "cpu_ref", 1, Spoilt(spoil), opener=lambda: Spoilt(spoil))


@pytest.mark.parametrize("name", SPOILT)
def test_a_broken_promise_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, wanted, message = SPOILT[name]
    checks = [
        c for c in submission_checks() if any(fnmatchcase(c.id, f"0/submit/{w}") for w in wanted)
    ]
    assert len(checks) == len(wanted)
    target = target_of(kind, " ".join(wanted), monkeypatch)
    try:
        for check in checks:
            found = ""
            for _ in range(3):  # on a busy machine what comes late is excused, or blamed, at first
                try:
                    check.run(target)
                except (AssertionError, KeyError, DeviceError) as error:
                    found = str(error)
                if re.search(message, found):
                    break
            assert re.search(message, found), found or "nothing was noticed"
    finally:
        target.close()


@pytest.mark.parametrize("check", submission_checks(), ids=lambda check: check.id)
def test_a_device_that_goes_on_by_itself_keeps_every_promise(
    check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(Threaded, check.id, monkeypatch)
    try:
        outcome = check.run(target)
        assert outcome is None or isinstance(outcome, NotApplicable)
    finally:
        target.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signals after a time")
def test_what_python_drops_in_a_finalizer_is_no_fault_of_a_device() -> None:
    steps: list[str] = []

    class Ends:
        def __del__(self) -> None:
            steps.append("before")
            signal.raise_signal(signal.SIGALRM)
            while not came:
                pass
            steps.append("after")

    with _signal_after(3600) as came:
        Ends()
    assert came == []
    assert steps == ["before"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signals after a time")
def test_what_a_handler_raises_elsewhere_comes_out() -> None:
    with pytest.raises(_Stop), _signal_after(3600) as came:
        signal.raise_signal(signal.SIGALRM)
    assert len(came) == 1
