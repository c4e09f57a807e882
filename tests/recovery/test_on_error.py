"""What follows when a run fails on the device: the error, the CPU, or another try; and on what
state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit.output_sets import OutputSets
from tflgpu.errors import (
    DeviceError,
    DeviceLostError,
    OptionError,
    StateError,
)
from tflgpu.lowering.reason import ReasonCode

from tests.recovery import recovery_models as models
from tests.recovery.recovery_models import step
from tests.running import allocated, raising, set_and_run
from tests.watched_device import WatchedDevice

INPUTS = models.INPUTS


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> WatchedDevice:
    return WatchedDevice(monkeypatch)


@pytest.fixture
def interpreter_with() -> Iterator[Callable[..., Any]]:
    """Makes an interpreter of `recovery_models.keeps_state` with a delegate of these options."""
    held: list[Any] = []

    def make(**options: Any) -> Any:
        delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1, **options)
        held.append(delegate)
        interpreter = tflgpu.Interpreter(
            model_content=models.keeps_state(), experimental_delegates=[delegate]
        )
        held.append(interpreter)
        interpreter.own_delegate = delegate
        interpreter.allocate_tensors()
        return interpreter

    yield make
    while held:
        held.pop().close()


def check(found: list[Any], inputs: list[Any] = INPUTS) -> None:
    np.testing.assert_allclose(found, models.state_results(*inputs), atol=1e-5)


def refusals(interpreter: Any) -> Any:
    return interpreter.report.refusals


def test_raise_is_the_default_of_a_delegate_that_was_given(
    faults: WatchedDevice, interpreter_with: Callable[..., Any]
) -> None:
    interpreter = interpreter_with()
    first = step(interpreter, INPUTS[0])
    faults.fails = [DeviceError("no")]
    loaded = faults.loads
    with pytest.raises(DeviceError, match="no"):
        step(interpreter, INPUTS[1])
    np.testing.assert_array_equal(interpreter.get_tensor(0), INPUTS[1])
    with pytest.raises(StateError, match="no results"):
        interpreter.get_tensor(1)
    interpreter.allocate_tensors()  # and has none after it was made ready anew
    with pytest.raises(StateError, match="no results"):
        interpreter.get_tensor(1)
    interpreter.reset_all_variables()
    np.testing.assert_allclose(step(interpreter, INPUTS[0]), first, atol=1e-6)
    assert faults.loads == loaded + 1  # it costs one recording
    assert faults.opened == 1


def test_the_cpu_goes_on_with_inputs_and_state(
    faults: WatchedDevice, interpreter_with: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    interpreter = interpreter_with(on_error="cpu")
    found = [step(interpreter, INPUTS[0])]
    faults.fails = [DeviceError("the driver\nsaid no")]
    found += [step(interpreter, x) for x in INPUTS[1:]]
    check(found)
    assert all(r.code is ReasonCode.DEVICE_FAILED for r in refusals(interpreter))
    assert {r.node for r in refusals(interpreter)} == {0, 1}
    assert "a run failed: the driver" in refusals(interpreter)[0].reason
    assert "runs on the CPU from now on" in caplog.text
    interpreter.resize_tensor_input(0, [1, 2, models.SIZE])  # and stays there
    interpreter.allocate_tensors()
    assert refusals(interpreter)[0].code is ReasonCode.DEVICE_FAILED


@pytest.mark.parametrize("on_cpu", [(), (0,)], ids=["state on the device", "state on the CPU"])
def test_a_run_is_made_again(
    on_cpu: tuple[int, ...],
    faults: WatchedDevice,
    interpreter_with: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    interpreter = interpreter_with(on_error="retry", exclude=on_cpu)
    found = [step(interpreter, INPUTS[0])]
    for x in INPUTS[1:]:
        faults.fails = [DeviceError("not now")]
        loaded = faults.loads
        found.append(step(interpreter, x))
        assert faults.loads == loaded + 1
    check(found)
    assert faults.opened == 1
    assert {r.node for r in refusals(interpreter)} == set(on_cpu)
    assert any("not now" in reason for reason in interpreter.report.choice)
    assert caplog.text.count("is made again") == len(INPUTS) - 1


def test_a_run_is_made_again_once(
    faults: WatchedDevice, interpreter_with: Callable[..., Any]
) -> None:
    """And what had changed meanwhile, before the device's part, is as it was."""
    interpreter = interpreter_with(on_error="retry")
    found = [step(interpreter, INPUTS[0])]
    faults.fails = [DeviceError("second"), DeviceError("first")]
    with pytest.raises(DeviceError, match="second"):
        step(interpreter, INPUTS[1])
    assert not faults.fails
    interpreter.reset_all_variables()
    found = [step(interpreter, x) for x in INPUTS]
    check(found)


@pytest.mark.parametrize("on_error", ["retry", None])
def test_a_lost_device_is_opened_anew(
    on_error: str | None, faults: WatchedDevice, interpreter_with: Callable[..., Any]
) -> None:
    interpreter = interpreter_with(on_error=on_error)
    other = tflgpu.Interpreter(
        model_content=models.keeps_state(),
        experimental_delegates=[interpreter.own_delegate],
    )
    with other:
        other.allocate_tensors()
        both = [[step(i, INPUTS[0])] for i in (interpreter, other)]
        old = interpreter._opener.provider.device
        for one, found in zip((interpreter, other), both, strict=True):
            faults.fails = [DeviceLostError("gone")]
            if on_error is None:
                with pytest.raises(DeviceLostError, match="gone"):
                    step(one, INPUTS[1])
                one.reset_all_variables()
                found.clear()
                found.append(step(one, INPUTS[0]))
            found += [step(one, x) for x in INPUTS[1:]]
            check(found)
        assert faults.opened == 2  # once for both of them
        assert interpreter._opener.provider.device is not old
        # The old one is closed when nobody has anything on it, and something is loaded.
        interpreter.resize_tensor_input(0, [1, 2, models.SIZE])
        interpreter.allocate_tensors()
        assert old.inner._released


def test_a_device_that_loads_nothing_any_more_counts_as_lost(
    faults: WatchedDevice, interpreter_with: Callable[..., Any]
) -> None:
    interpreter = interpreter_with(on_error="retry")
    found = [step(interpreter, INPUTS[0])]
    faults.fails, faults.fails_to_load = [DeviceError("no")], [DeviceError("invalid queue")]
    found += [step(interpreter, x) for x in INPUTS[1:]]
    check(found)
    assert faults.opened == 2
    faults.fails, faults.fails_to_load = [DeviceError("no")], [DeviceError("a"), DeviceError("b")]
    with pytest.raises(DeviceError, match="a"):
        step(interpreter, INPUTS[0])
    interpreter.reset_all_variables()
    check([step(interpreter, x) for x in INPUTS])


@pytest.mark.parametrize("on_error", [None, "retry", "cpu", "raise"])
def test_the_default_delegate(
    on_error: str | None, faults: WatchedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it goes on by the CPU; where that is asked for, after another try, or not."""
    monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    if on_error is not None:
        monkeypatch.setenv("TFLGPU_ON_ERROR", on_error)
    with allocated(tflgpu.Interpreter(model_content=models.keeps_state())) as interpreter:
        assert not refusals(interpreter)
        found = [step(interpreter, INPUTS[0])]
        faults.fails = [DeviceError("first")]
        if on_error == "raise":
            with pytest.raises(DeviceError, match="first"):
                step(interpreter, INPUTS[1])
            return
        found.append(step(interpreter, INPUTS[1]))
        assert len(refusals(interpreter)) == (0 if on_error == "retry" else 2)
        if on_error == "retry":
            faults.fails = [DeviceError("twice"), DeviceError("again")]
        found += [step(interpreter, x) for x in INPUTS[2:]]
        check(found)
        assert len(refusals(interpreter)) == 2
        assert not faults.fails


@pytest.mark.parametrize("way", ["given", "default"])
@pytest.mark.needs("wgpu")
def test_reading_results_fails(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large result was lent, and is asked for again: the device is to fetch it once more and
    fails. The run is made again where its inputs are still there. (Drivers of the other APIs that
    compute on a CPU have results in host memory, where nothing is to be fetched.)"""
    monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
    monkeypatch.setenv("TFLGPU_BACKEND", "wgpu")

    x = np.random.default_rng(1).normal(size=(300, 1024)).astype(np.float32)
    given = [tflgpu.GpuDelegate(backend="wgpu")] if way == "given" else None
    with allocated(
        tflgpu.Interpreter(model_content=models.large(), experimental_delegates=given)
    ) as interpreter:

        def results() -> Any:
            set_and_run(interpreter, {0: x})
            return interpreter.get_tensor(2)

        for change in (False, True):
            if change and way == "default":
                break  # there is no device any more
            first = results()
            first[...] = 0
            with monkeypatch.context() as patched:
                patched.setattr(OutputSets, "settle", raising(DeviceError("gone")))
                if change:
                    interpreter.set_tensor(0, x + 1)
                if way == "given":
                    with pytest.raises(DeviceError, match="gone"):
                        interpreter.get_tensor(2)
                else:
                    np.testing.assert_array_equal(interpreter.get_tensor(2), x * 2)
            np.testing.assert_array_equal(results(), x * 2)
        if way == "default":
            assert len(refusals(interpreter)) == 1
    for delegate in given or ():
        delegate.close()


@pytest.mark.parametrize("way", ["set", "bound"])
@pytest.mark.needs("wgpu")
def test_results_of_other_inputs_are_never_given(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs were set since, or changed where they are bound: the run cannot be made again, so its
    results are lost."""
    x = np.ones((300, 1024), np.float32)
    with tflgpu.GpuDelegate(backend="wgpu", on_error="cpu") as delegate:
        interpreter = tflgpu.Interpreter(
            model_content=models.large(), experimental_delegates=[delegate]
        )
        with interpreter:
            interpreter.allocate_tensors()
            mine = x.copy()
            if way == "bound":
                interpreter.bind_input(0, mine)
            else:
                interpreter.set_tensor(0, x)
            interpreter.invoke()
            held = interpreter.get_tensor(2)
            if way == "bound":
                mine *= 5
            else:
                interpreter.set_tensor(0, x * 5)
            with monkeypatch.context() as patched:
                patched.setattr(OutputSets, "settle", raising(DeviceError("gone")))
                with pytest.raises(DeviceError, match="gone"):
                    interpreter.get_tensor(2)
            with pytest.raises(StateError, match="no results"):
                interpreter.get_tensor(2)
            interpreter.invoke()
            np.testing.assert_array_equal(interpreter.get_tensor(2), x * 10)
            np.testing.assert_array_equal(held, x * 2)


def test_what_clashes() -> None:
    with pytest.raises(OptionError, match="on_error=CPU"):
        tflgpu.DelegateOptions(on_error="cpu", allow_fallback=False)
    for wrong in (0, -1, "soon", float("nan"), float("inf"), True):
        with pytest.raises(OptionError, match="run_timeout is a number of seconds"):
            tflgpu.DelegateOptions(run_timeout=wrong)
    assert tflgpu.DelegateOptions.from_text({"run_timeout": "1.5"}).run_timeout == 1.5
