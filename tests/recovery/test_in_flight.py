"""Runs in flight: several at a time, each with its own inputs and results; state in order."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, InputError, NotAllocatedError, OptionError, StateError
from tflgpu.runtime.reference import ReferenceRecording

from tests.recovery import recovery_models as models
from tests.running import allocated, raising, set_and_run

BACKENDS = ("cpu_ref", "opencl", "vulkan", "wgpu")
ROWS = 70  # 280 KiB: results that are lent where a device can


def expected(x: Any) -> Any:
    return x * np.float32(2)


def number(n: int) -> Any:
    return np.full((ROWS, 1024), n, np.float32)


@pytest.fixture(params=BACKENDS)
def delegate(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Any]:
    require_backend(request.param)
    index = 1 if request.param == "cpu_ref" else 0
    with tflgpu.GpuDelegate(backend=request.param, device=index) as made:
        yield made


def ready(delegate: Any, content: bytes | None = None, most: int = 3) -> Any:
    return allocated(tflgpu.Interpreter(
        model_content=models.large(ROWS) if content is None else content,
        experimental_delegates=[] if delegate is None else [delegate], max_in_flight=most,
    ))  # fmt: skip


@pytest.mark.parametrize("wait", ["active", "passive"])
@pytest.mark.needs("vulkan")
def test_no_thread_is_needed_however_runs_are_waited_for(wait: str) -> None:
    before = set(threading.enumerate())  # those of lanes that were just closed may not have ended
    with (
        tflgpu.GpuDelegate(backend="vulkan", wait_type=wait) as made,
        ready(made) as interpreter,
    ):
        runs = [interpreter.invoke_async({0: number(n)}) for n in range(5)]
        assert not runs[-1].wait(0) or runs[-1].done()
        for n, run in enumerate(runs):
            assert run.wait(30)
            np.testing.assert_array_equal(run.results()[0], expected(number(n)))
        begun = set(threading.enumerate()) - before
        assert not [t for t in begun if t.name.startswith("tflgpu-invoke")]


def test_each_has_inputs_and_results_of_its_own(delegate: Any) -> None:
    with ready(delegate) as interpreter:
        set_and_run(interpreter, {0: number(100)})
        runs = [interpreter.invoke_async({0: number(n)}) for n in range(8)]
        runs.append(interpreter.invoke_async())  # what set_tensor left
        held = [run.results()[0] for run in reversed(runs)][::-1]
        for n, found in enumerate([*held[:8]]):
            np.testing.assert_array_equal(found, expected(number(n)))
        np.testing.assert_array_equal(held[8], expected(number(100)))
        np.testing.assert_array_equal(interpreter.get_tensor(2), expected(number(100)))
        assert all(run.done() and run.wait(0) for run in runs)
        assert runs[3].get_tensor(2) is runs[3].results()[0]
        with pytest.raises(InputError, match="tensor 0 is no output; outputs are 2"):
            runs[3].get_tensor(0)
        held[0][...] = -1  # the caller's
        again = interpreter.invoke_async({0: number(5)}).results()[0]
        np.testing.assert_array_equal(again, expected(number(5)))
        assert len(interpreter._lanes._lanes) <= 3


def test_a_tensor_that_is_two_outputs_is_two_results() -> None:
    """One would move what follows to the places of others. `invoke` gives both."""
    content = models.large(1, outputs=(2, 0, 2))
    with allocated(
        tflgpu.Interpreter(model_content=content, experimental_delegates=[])
    ) as interpreter:
        x = np.arange(1024, dtype=np.float32).reshape(1, 1024)
        run = interpreter.invoke_async({0: x})
        first, copied, last = run.results()
        first[...] = -1  # the caller's, and no other result's
        for got, wanted in ((copied, x), (last, 2 * x), (run.get_tensor(0), x)):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.needs("vulkan")
def test_they_are_in_flight_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device comes to no end before three runs were submitted."""
    from tflgpu_vulkan.recording import VulkanRecording

    is_over, go_on = VulkanRecording._is_over, threading.Event()
    monkeypatch.setattr(VulkanRecording, "_is_over", lambda r: go_on.is_set() and is_over(r))
    with tflgpu.GpuDelegate(backend="vulkan") as delegate, ready(delegate) as interpreter:
        runs = [interpreter.invoke_async({0: number(n)}) for n in range(3)]
        assert [run.done() for run in runs] == [False] * 3
        assert not runs[0].wait(0.01)
        go_on.set()
        for n, run in enumerate(runs):
            np.testing.assert_array_equal(run.results()[0], expected(number(n)))


def test_awaiting(delegate: Any) -> None:
    async def many(interpreter: Any) -> list[Any]:
        async def one(n: int) -> Any:
            (found,) = await interpreter.invoke_async({0: number(n)})
            return found

        return await asyncio.gather(*(one(n) for n in range(6)))

    with ready(delegate) as interpreter:
        for n, found in enumerate(asyncio.run(many(interpreter))):
            np.testing.assert_array_equal(found, expected(number(n)))


def test_a_coroutine_leaves_the_waiting_to_the_driver(
    monkeypatch: pytest.MonkeyPatch, require_backend: Callable[[str], Any]
) -> None:
    """It does not ask again and again, others go on meanwhile, and ending the wait ends no run."""
    require_backend("vulkan")
    from tflgpu_vulkan.recording import VulkanRecording

    go_on, asked, sleep = threading.Event(), [], VulkanRecording._sleep

    def wait_and_sleep(recording: Any) -> None:
        assert go_on.wait(60)
        sleep(recording)

    def ask(_: Any) -> bool:
        asked.append(1)
        return go_on.is_set()

    async def main(interpreter: Any) -> Any:
        runs = [interpreter.invoke_async({0: number(n)}) for n in range(2)]
        waiting = [asyncio.ensure_future(run) for run in runs]
        await asyncio.sleep(0)
        assert asked
        for _ in range(100):
            await asyncio.sleep(0)
            assert not any(run.done() for run in runs)
        count = len(asked)
        await asyncio.sleep(0.05)
        assert len(asked) == count
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        go_on.set()
        return runs[0].results()[0], (await waiting[1])[0]

    monkeypatch.setattr(VulkanRecording, "_is_over", ask)
    monkeypatch.setattr(VulkanRecording, "_sleep", wait_and_sleep)
    with tflgpu.GpuDelegate(backend="vulkan") as delegate, ready(delegate) as interpreter:
        for n, found in enumerate(asyncio.run(main(interpreter))):
            np.testing.assert_array_equal(found, expected(number(n)))


@pytest.mark.parametrize("way", ["cpu", "divided"])
@pytest.mark.needs("vulkan")
def test_where_the_cpu_takes_part(way: str) -> None:
    if way == "cpu":
        with ready(None) as interpreter:
            runs = [interpreter.invoke_async({0: number(n)}) for n in range(5)]
            for n, run in enumerate(runs):
                np.testing.assert_array_equal(run.results()[0], expected(number(n)))
        return
    state = models.keeps_state()
    with tflgpu.GpuDelegate(backend="vulkan") as delegate, ready(delegate, state) as interpreter:
        runs = [interpreter.invoke_async({0: x}) for x in models.INPUTS[:2]]
        interpreter.set_tensor(0, models.INPUTS[2])
        interpreter.invoke()  # behind them
        found = [runs[0].results()[0], runs[1].results()[0], interpreter.get_tensor(1)]
        runs.append(interpreter.invoke_async({0: models.INPUTS[3]}))
        found.append(runs[2].results()[0])
        np.testing.assert_allclose(found, models.state_results(*models.INPUTS), atol=1e-5)
        interpreter.invoke_async({0: models.INPUTS[0]})
        interpreter.reset_all_variables()
        again = interpreter.invoke_async({0: models.INPUTS[0]}).results()[0]
        np.testing.assert_allclose(again, found[0], atol=1e-6)


def test_state_that_is_set_counts_after_the_runs_in_flight() -> None:
    with ready(None, models.keeps_state()) as interpreter:
        for _ in range(2):
            run = interpreter.invoke_async({0: models.X})
            for state in (15, 16):
                interpreter.set_tensor(state, np.zeros((1, models.UNITS), np.float32))
            np.testing.assert_allclose(run.results(), models.state_results(models.X), atol=1e-5)


@pytest.mark.parametrize("begun", [True, False])
def test_a_signal_while_one_is_begun(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes when a thread has the run already, and then the run counts; or before that."""
    submit = ThreadPoolExecutor.submit

    def interrupted(*args: Any) -> Any:
        if begun:
            submit(*args).result()
        raise KeyboardInterrupt

    first, second = models.INPUTS[:2]
    with ready(None, models.keeps_state()) as interpreter:
        with monkeypatch.context() as patch:
            patch.setattr(ThreadPoolExecutor, "submit", interrupted)
            with pytest.raises(KeyboardInterrupt):
                interpreter.invoke_async({0: first})
        wanted = models.state_results(*([first, second] if begun else [second]))[-1]
        found = interpreter.invoke_async({0: second}).results()[0]
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_other_shapes(delegate: Any) -> None:
    if delegate.device.info.backend == "cpu_ref":
        pytest.skip("one device more shows nothing more, and the interpreter of kernels is slow")
    with ready(delegate) as interpreter:
        first = interpreter.invoke_async({0: number(1)})
        interpreter.resize_tensor_input(0, [3, 1024])
        with pytest.raises(NotAllocatedError):
            interpreter.invoke_async()
        interpreter.allocate_tensors()
        small = number(2)[:3]
        second = interpreter.invoke_async({0: small})
        np.testing.assert_array_equal(second.results()[0], expected(small))
        np.testing.assert_array_equal(first.results()[0], expected(number(1)))


@pytest.mark.parametrize("on_error", ["raise", "cpu", "retry"])
@pytest.mark.needs("vulkan")
def test_a_run_fails(on_error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that failed says so, or is made again; the others have their results."""
    from tflgpu_vulkan.recording import VulkanRecording

    end, fails = VulkanRecording._end, {3}
    count = iter(range(1000))

    def failing(recording: Any) -> None:
        if next(count) in fails:
            raise DeviceError("planted")
        end(recording)

    monkeypatch.setattr(VulkanRecording, "_end", failing)
    with (
        tflgpu.GpuDelegate(backend="vulkan", on_error=on_error) as delegate,
        ready(delegate) as interpreter,
    ):
        runs = [interpreter.invoke_async({0: number(n)}) for n in range(8)]
        failed = 0
        for n, run in enumerate(runs):
            try:
                np.testing.assert_array_equal(run.results()[0], expected(number(n)))
            except DeviceError as error:
                assert "planted" in str(error)
                with pytest.raises(DeviceError, match="planted"):
                    run.wait()
                failed += 1
        assert failed == (on_error == "raise")


def test_closing_gives_results_to_who_has_the_runs(delegate: Any) -> None:
    interpreter = ready(delegate)
    runs = [interpreter.invoke_async({0: number(n)}) for n in range(3)]
    interpreter.close()
    for n, run in enumerate(runs):
        np.testing.assert_array_equal(run.results()[0], expected(number(n)))
    with pytest.raises(StateError, match="closed"):
        interpreter.invoke_async()


def test_an_error_of_a_plugin_s_is_told_and_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with allocated(
        tflgpu.Interpreter(
            model_content=models.large(ROWS), experimental_delegates=[], cpu_backend="cpu_ref"
        )
    ) as interpreter:
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceRecording, "_compute", raising(AttributeError("oops")))
            run = interpreter.invoke_async({0: number(1)})
            for _ in range(2):
                with pytest.raises(AttributeError, match="oops"):
                    run.wait()
            for _ in range(2):
                interpreter.invoke_async({0: number(2)})  # which nobody waits for
            with pytest.raises(AttributeError, match="oops"):
                interpreter.invoke()
        found = interpreter.invoke_async({0: number(3)}).results()
        np.testing.assert_array_equal(found[0], expected(number(3)))


def test_mistakes() -> None:
    with pytest.raises(OptionError, match="max_in_flight"):
        tflgpu.Interpreter(model_content=models.large(1), max_in_flight=0)
    with tflgpu.Interpreter(model_content=models.large(1)) as interpreter:
        with pytest.raises(NotAllocatedError):
            interpreter.invoke_async()
        interpreter.allocate_tensors()
        with pytest.raises(InputError, match="tensor 2 is no input"):
            interpreter.invoke_async({2: 1})
        with pytest.raises(InputError, match="shape"):
            interpreter.invoke_async({0: np.zeros((2, 2), np.float32)})
        found = interpreter.invoke_async({0: np.ones((1, 1024), np.float32)}).results()
        np.testing.assert_array_equal(found[0], np.full((1, 1024), 2, np.float32))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_none_of_them() -> None:
    with ready(None) as interpreter:
        run = interpreter.invoke_async({0: number(1)})
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            said = "nothing"
            try:
                run.wait()
            except StateError as error:
                said = str(error)
            own = interpreter.invoke_async({0: number(3)}).results()[0]
            os.write(writing, f"{own[0, 0]:g} {said}".encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            told = pipe.read()
        assert told.startswith("6 ")
        assert "forked" in told or told == "6 nothing"  # it was over before
        np.testing.assert_array_equal(run.results()[0], expected(number(1)))
