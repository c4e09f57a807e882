"""What a driver's error leaves: one DeviceError, and an interpreter that runs again."""

from __future__ import annotations

import functools
import importlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, StateError

from tests.lifetimes import child
from tests.running import allocated, raising

FAILED_BACKENDS = ("opencl", "vulkan", "wgpu")
USED = getattr(signal, "SIGUSR1", signal.SIGTERM)


def _raise(kind: type[BaseException], number: int, frame: Any) -> None:
    raise kind("a handler's")


#: What ends a run: an error of the driver's, or what a signal's handler raises meanwhile.
ERRORS: dict[str, type[BaseException]] = {
    "driver": DeviceError,
    "ctrl-c": KeyboardInterrupt,
    "terminate": SystemExit,
}


@contextmanager
def ending(error: str) -> Iterator[Callable[[], None]]:
    """A function that lets a run end so."""

    if error == "driver":
        yield failing("the driver refused it once")
        return
    before = signal.signal(USED, functools.partial(_raise, ERRORS[error]))
    try:
        yield lambda: signal.raise_signal(USED)
    finally:
        signal.signal(USED, before)


def failing(text: str) -> Callable[[], None]:
    """A driver that refuses."""

    return raising(DeviceError(text))


class Once:
    """Fails at the first call, before or after what it stands for."""

    def __init__(
        self, function: Callable[..., Any], fail: Callable[[], None], *, after: bool
    ) -> None:
        self.function, self.fail, self.after, self.calls = function, fail, after, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            return self.function(*args, **kwargs)
        if self.after:
            self.function(*args, **kwargs)
        self.fail()
        raise AssertionError("it did not fail")


#: Where a run can fail, by backend: module and name.
PLACES = {
    "opencl": [("tflgpu_opencl.commands.Commands", "submit"), ("tflgpu_opencl.recording",
    "finish")],
    "vulkan": [("tflgpu_vulkan.context.Context", "start"), ("tflgpu_vulkan.context.Context",
    "_wait")],
    "wgpu": [("tflgpu_wgpu.native.Commands", "submit"), ("tflgpu_wgpu.mapping.Mapping", "finish")],
}  # fmt: skip


#: What preparing a model does, by backend: allocating, reading back or binding, and loading.
LOADING = {
    "opencl": [("tflgpu_opencl.memory.Memory", "_buffer"), ("tflgpu_opencl.device", "finish"),
               ("tflgpu_opencl.device.OpenCLDevice", "load")],
    "vulkan": [("tflgpu_vulkan.blocks.Allocation", "bind"), ("tflgpu_vulkan.record.Writer", "end"),
               ("tflgpu_vulkan.device.VulkanDevice", "load")],
    "wgpu": [("tflgpu_wgpu.memory.Memory", "_buffer"), ("tflgpu_wgpu.memory", "Mapping"),
             ("tflgpu_wgpu.device.WgpuDevice", "load")],
}  # fmt: skip


def found(place: tuple[str, str]) -> tuple[Any, str]:
    """A module or a class, and the name of what is in it."""
    owner, name = place
    before, last = owner.rsplit(".", 1)
    try:
        return importlib.import_module(owner), name
    except ModuleNotFoundError:
        return getattr(importlib.import_module(before), last), name


def fail_once(
    patched: pytest.MonkeyPatch, target: Any, name: str, fail: Callable[[], None], *, after: bool
) -> Once:
    """Let something fail the first time."""
    once = Once(getattr(target, name), fail, after=after)
    bound = not isinstance(target, type(sys))  # a function is given what it is a method of
    patched.setattr(target, name, (lambda *a, **k: once(*a, **k)) if bound else once)  # noqa: PLW0108
    return once


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("backend", FAILED_BACKENDS)
def test_the_next_run_works(
    backend: str, error: str, place: int, after: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    delegate, interpreter = child.opened(backend)
    with delegate, interpreter:
        child.check(interpreter)
        target, name = found(PLACES[backend][place])
        interpreter.set_tensor(0, child.X)
        with monkeypatch.context() as patched, ending(error) as fail:
            fail_once(patched, target, name, fail, after=after)
            with pytest.raises(ERRORS[error]) as caught:
                interpreter.invoke()
            assert type(caught.value) is ERRORS[error]
            output = interpreter.get_output_details()[0]["index"]
            with pytest.raises(StateError, match="has no results"):
                interpreter.get_tensor(output)
            np.testing.assert_array_equal(interpreter.get_tensor(0), child.X)
            interpreter.invoke()  # on the inputs that were set
            got = interpreter.get_tensor(output)
            np.testing.assert_allclose(got, child.expected(child.X), atol=1e-5)
        child.check(interpreter, scale=2.0)


@pytest.mark.needs("cpu_ref")
def test_a_failure_of_loading_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not load the part again is an error each time, and no end of it."""

    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
    interpreter = allocated(
        tflgpu.Interpreter(model_content=child.model(), experimental_delegates=[delegate])
    )
    step: Any = interpreter._main._memory.session.parts[0]
    step.recording.run = failing("no")  # what a session calls
    with pytest.raises(DeviceError, match="no"):
        interpreter.invoke()
    with monkeypatch.context() as patched:
        patched.setattr(type(delegate.device), "load", Once(None, failing("lost"), after=False))
        with pytest.raises(DeviceError, match="lost"):
            interpreter.invoke()
    child.check(interpreter)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["memory", "binding", "load"])
@pytest.mark.parametrize("error", ["driver", "ctrl-c"])
@pytest.mark.parametrize("backend", FAILED_BACKENDS)
def test_preparing_works_after_it_failed(
    backend: str, error: str, place: int, after: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """At first, and again where it takes the place of a run that failed."""

    with tflgpu.GpuDelegate(backend=backend, allow_fallback=False) as delegate:
        interpreter = tflgpu.Interpreter(
            model_content=child.model(), experimental_delegates=[delegate]
        )
        target, name = found(LOADING[backend][place])

        def fails(action: Callable[[], object]) -> None:
            with monkeypatch.context() as patched, ending(error) as fail:
                once = fail_once(patched, target, name, fail, after=after)
                with pytest.raises(ERRORS[error]) as caught:
                    action()
                assert type(caught.value) is ERRORS[error]
                assert once.calls == 1

        fails(interpreter.allocate_tensors)
        interpreter.allocate_tensors()
        child.check(interpreter)
        with monkeypatch.context() as patched:
            fail_once(patched, *found(PLACES[backend][0]), failing("gone"), after=False)
            with pytest.raises(DeviceError, match="gone"):
                interpreter.invoke()
        fails(interpreter.invoke)
        child.check(interpreter)
        interpreter.close()
