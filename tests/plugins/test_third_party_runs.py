"""What a third party's recording does when it runs: an error that names it. Both kinds of device,
every member of the contract, every fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError
from tflgpu.lowering.rule import Unsupported
from tflgpu.tflite.write import write_model

from tests.plugins import third_party_toys as toys
from tests.plugins.third_party_toys import (
    ERRORS,
    KINDS,
    LOAD,
    WANTED,
    WHO,
    device,
    install,
    run,
    with_methods,
    with_recording,
)
from tests.running import allocated, raising
from tests.small_models import small_spec

# Running


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("at", [1, 2])
def test_running_raises(kind: str, error: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []

    def fail(self: Any) -> None:
        runs.append(self)
        if len(runs) >= at:
            raise ERRORS[error]
        self._inner.run()

    install(monkeypatch, toys.hooks(with_recording(kind, run=fail)))
    with pytest.raises(DeviceError, match=WHO):
        run()
    assert len(runs) >= at


def test_an_interrupt_goes_through(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in (
        {LOAD[kind]: raising(KeyboardInterrupt())},
        {"recording": with_methods(KINDS[kind].recording, run=raising(KeyboardInterrupt()))},
    ):
        install(monkeypatch, toys.hooks(device(kind, **changes)))
        with pytest.raises(KeyboardInterrupt):
            run()
    install(monkeypatch, toys.hooks(raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        run()


def _moves(self: Any) -> None:
    self._inner.run()
    self.outputs = [a.copy() for a in self._inner.outputs]


def _reshapes(self: Any) -> None:
    self._inner.run()
    self.outputs[0].shape = (3, 2)


def _retypes(self: Any) -> None:
    self._inner.run()
    self.outputs[0].dtype = np.int32


def _loses(self: Any) -> None:
    self._inner.run()
    self.outputs = []


RUNS = {
    "outputs that move": (_moves, r"outputs\[0\] .*is somewhere else"),
    "outputs of another shape": (_reshapes, r"float32\[3, 2\]"),
    "outputs of another type": (_retypes, "int32"),
    "outputs that are gone": (_loses, "outputs has 0 arrays"),
}


@pytest.mark.parametrize("fault", RUNS)
def test_a_run_that_breaks_the_contract(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    action, match = RUNS[fault]
    install(monkeypatch, toys.hooks(with_recording(kind, run=action)))
    with pytest.raises(DeviceError, match=f"{WHO}: .*{match}"):
        run(runs=1)


# Submitting


class _Waits:
    """A run that is over, and answers so."""

    def __init__(self, done: Any = True, wait: Any = True) -> None:
        self._done, self._wait = done, wait

    def done(self) -> Any:
        return self._done() if callable(self._done) else self._done

    def wait(self, timeout: float | None = None) -> Any:
        return self._wait() if callable(self._wait) else self._wait


def _submits(pending: Any) -> Callable[[Any], Any]:
    def submit(self: Any) -> Any:
        self._inner.run()
        return pending

    return submit


def _submits_and(action: Callable[[Any], None]) -> Callable[[Any], Any]:
    def submit(self: Any) -> Any:
        action(self)
        return _Waits()

    return submit


SUBMITS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (_submits(None), "submit gave None, which is no Pending: it has no done, wait"),
    "a number": (_submits(3), "submit gave 3, which is no Pending"),
    "done: text": (_submits(_Waits(done="yes")), "done gave 'yes', neither True nor False"),
    "done: raises": (_submits(_Waits(done=raising(KeyError("x")))), "done raised KeyError"),
    "wait: None": (_submits(_Waits(wait=None)), "wait gave None, neither True nor False"),
    "wait: False": (_submits(_Waits(wait=False)), "wait without a timeout gave False"),
    "wait: raises": (
        _submits(_Waits(wait=raising(OSError(5, "lost")))),
        "wait raised OSError",
    ),
    **{name: (_submits_and(action), match) for name, (action, match) in RUNS.items()},
}


@pytest.mark.parametrize("fault", SUBMITS)
def test_a_submission_that_breaks_the_contract(
    kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, match = SUBMITS[fault]
    delegate, opened = _recording(kind, monkeypatch, submit=submit)
    (step,) = opened._main._memory.session.parts
    with pytest.raises(DeviceError, match=f"{WHO}: .*{match}"):
        pending = step.recording.submit()
        pending.done()
        pending.wait()
    opened.close()
    delegate.close()


def test_a_good_submission_works(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, opened = _recording(kind, monkeypatch)
    (step,) = opened._main._memory.session.parts
    for _ in range(2):
        step.recording.inputs[0][...] = toys.X
        pending = step.recording.submit()
        assert pending.wait()
        assert pending.wait(0)
        assert pending.done()
        np.testing.assert_allclose(step.recording.outputs[0], WANTED, rtol=1e-6)
    opened.close()
    delegate.close()


# Buffers


class _Buffer:
    """A good buffer of 16 bytes."""

    nbytes: Any = 16

    def write(self, data: Any) -> Any:
        return None

    read = write

    def export(self) -> Any:
        return self

    def close(self) -> None:
        pass


def _buffer(**changes: Any) -> Any:
    return with_methods(_Buffer, **changes)()


ALLOCATED: dict[str, tuple[Any, str]] = {
    "nothing": (None, "gave None, neither a Buffer"),
    "an array": (np.zeros(4), r"neither a Buffer \(it has no write, read, export, close\)"),
    "no reason": (Unsupported(""), "which is no Unsupported with a reason"),
    "too small": (_buffer(nbytes=15), "gave a buffer of 15 bytes; 16 were due"),
    "no size": (_buffer(nbytes="16"), "gave a buffer of '16' bytes"),
}


@pytest.mark.parametrize("fault", ALLOCATED)
def test_buffers_that_are_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, match = ALLOCATED[fault]
    install(monkeypatch, toys.hooks(device("plans", allocate=lambda self, nbytes: given)))
    with tflgpu.GpuDelegate(backend="toy") as delegate:
        found: Any = delegate.device
        with pytest.raises(DeviceError, match=f"{WHO}: .*{match}"):
            found.allocate(16)


@pytest.mark.parametrize("error", ERRORS)
def test_buffers_that_raise(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = raising(ERRORS[error])
    made = _buffer(write=fails, read=fails, export=fails, close=fails)
    methods = {"allocate": lambda self, nbytes: made, "import_buffer": fails}
    install(monkeypatch, toys.hooks(device("plans", **methods)))
    with tflgpu.GpuDelegate(backend="toy") as delegate:
        found: Any = delegate.device
        buffer = found.allocate(16)
        array = np.zeros(4, np.float32)
        for action in (
            lambda: buffer.write(array), lambda: buffer.read(array), buffer.export, buffer.close,
            lambda: found.import_buffer(array),
        ):  # fmt: skip
            with pytest.raises(DeviceError, match=WHO):
                action()


@pytest.mark.parametrize("answer", [False, "no", Unsupported("")], ids=repr)
def test_bindings_without_a_reason(kind: str, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, opened = _recording(kind, monkeypatch, bind=lambda self, i, o: answer)
    (step,) = opened._main._memory.session.parts
    with pytest.raises(DeviceError, match=f"{WHO}: bind gave"):
        step.recording.bind()
    opened.close()
    delegate.close()


def test_good_buffers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, opened = _recording("plans", monkeypatch)
    (step,) = opened._main._memory.session.parts
    buffer = delegate.device.allocate(24)
    assert step.recording.bind(outputs={0: buffer}) is None
    step.recording.inputs[0][...] = toys.X
    step.recording.run()
    found = np.zeros((2, 3), np.float32)
    buffer.read(found)
    np.testing.assert_allclose(found, WANTED, rtol=1e-6)
    with pytest.raises(DeviceError, match="an array of 28 bytes for a buffer of 24"):
        buffer.write(np.zeros(7, np.float32))
    opened.close()
    delegate.close()


# Times


def _recording(kind: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    install(monkeypatch, toys.hooks(with_recording(kind, **changes)))
    delegate = tflgpu.GpuDelegate(backend="toy")
    opened = allocated(
        tflgpu.Interpreter(model_content=toys.model(), experimental_delegates=[delegate])
    )
    return delegate, opened


def _time(seconds: Any) -> DispatchTime:
    return DispatchTime("#0 RELU", "relu", seconds)


TIMES: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "numbers": [1e-3],
    "NaN": [_time(float("nan"))],
    "negative": [_time(-1e-9)],
    "infinite": [_time(float("inf"))],
    "bool": [_time(True)],
    "text": [_time("fast")],
    "no names": [DispatchTime(1, None, 1e-3)],  # type: ignore[arg-type]
    "a start before the first": [DispatchTime("#0 RELU", "relu", 1e-3, -1e-9)],
    "a reason without words": Unsupported(""),
}


@pytest.mark.parametrize("fault", TIMES)
def test_times_that_are_none(kind: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    delegate, opened = _recording(kind, monkeypatch, profile=lambda self: TIMES[fault])
    (step,) = opened._main._memory.session.parts
    with pytest.raises(DeviceError, match=f"{WHO}: profile gave"):
        step.recording.profile()
    opened.close()
    delegate.close()


# Closing


@pytest.mark.parametrize("error", ERRORS)
def test_closing_raises(kind: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = raising(ERRORS[error])
    install(monkeypatch, toys.hooks(with_recording(kind, close=fails)))
    with pytest.raises(DeviceError, match=f"{WHO}"):
        run()
    install(monkeypatch, toys.hooks(device(kind, close=fails)))
    with pytest.raises(DeviceError, match=f"{WHO}"):
        run()


# Lending


class Lending(toys.PlanRecording):
    """Lends what ``lent`` makes of its output."""

    lent: Callable[[Any], Any] = staticmethod(np.copy)

    def lend(self, index: int) -> Any:
        return self.lent(self._inner.outputs[index])

    def settle(self) -> None:
        """Nothing moves."""


LENT: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda a: a.reshape(-1).copy(), r"float32\[90000\], not float32\[300, 300\]"),
    "type": (lambda a: a.astype(np.float64), r"float64\[300, 300\], not float32"),
    "a list": (lambda a: a.tolist(), "is a list"),
    "read-only": (lambda a: toys.read_only([a.copy()])[0], "cannot be written"),
    "strided": (lambda a: np.zeros((*a.shape, 2), a.dtype)[..., 0], "not packed row-major"),
} | {f"raises {n}": (raising(e), "(lend raised|lend: |lost)") for n, e in ERRORS.items()}
SIDE = 300  # what is smaller is copied


def _get(lent: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    made = with_methods(Lending, lent=staticmethod(lent))
    install(monkeypatch, toys.hooks(device("plans", recording=made)))
    spec = small_spec(dict.fromkeys("xy", (SIDE, SIDE)), "y = RELU(x)")
    with (
        tflgpu.GpuDelegate(backend="toy") as delegate,
        allocated(
            tflgpu.Interpreter(model_content=write_model(spec), experimental_delegates=[delegate])
        ) as opened,
    ):
        opened.invoke()
        return opened.get_tensor(1)


def test_lending_works(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _get(np.copy, monkeypatch).shape == (SIDE, SIDE)
    assert _get(lambda array: None, monkeypatch).shape == (SIDE, SIDE)


@pytest.mark.parametrize("fault", LENT)
def test_what_is_lent_is_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lent, match = LENT[fault]
    with pytest.raises(DeviceError, match=f"{WHO}: .*{match}"):
        _get(lent, monkeypatch)
