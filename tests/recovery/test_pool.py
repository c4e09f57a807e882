"""Many callers: every call is answered with its own results; a pool ends without leaving anybody
waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import BusyError, DeviceError, InputError, OptionError, StateError
from tflgpu.interpreter.model import Model

from tests.recovery import recovery_models as models

MODEL = models.large(2)
CALLERS, EACH = 24, 6


def number(n: int) -> Any:
    return np.full((2, 1024), n, np.float32)


def check(found: Any, n: int) -> None:
    np.testing.assert_array_equal(found[0], number(2 * n))


@pytest.mark.parametrize("backend", ["vulkan", "opencl", "wgpu"])
def test_many_threads(backend: str) -> None:
    with tflgpu.Pool(MODEL, devices=[0], backend=backend, size=3) as pool:
        answered = []

        def call(caller: int) -> None:
            for i in range(EACH):
                n = caller * EACH + i
                check(pool(number(n)), n)
                answered.append(n)

        with ThreadPoolExecutor(CALLERS) as threads:
            list(threads.map(call, range(CALLERS)))
        assert sorted(answered) == list(range(CALLERS * EACH))
        assert len(pool.reports) == 3
        futures = [pool.submit(number(n)) for n in range(CALLERS)]
        for n, future in enumerate(futures):
            check(future.result(60), n)

        async def all_of_them() -> list[Any]:
            return await asyncio.gather(*(pool.run(number(n)) for n in range(CALLERS)))

        for n, found in enumerate(asyncio.run(all_of_them())):
            check(found, n)
        with pytest.raises(InputError):
            pool(np.zeros((3, 3), np.float32))
        check(pool(number(1)), 1)


def test_devices_take_turns(require_backend: Callable[[str], Any]) -> None:
    """Several delegates, of which one fails: its calls are told, or answered elsewhere."""
    require_backend("vulkan")
    require_backend("opencl")
    given = [tflgpu.GpuDelegate(backend=b, on_error="cpu") for b in ("vulkan", "opencl")]
    with tflgpu.Pool(MODEL, delegates=given, size=1) as pool:
        for n in range(4):
            check(pool(number(n)), n)
        texts = {report.backend for report in pool.reports}
        assert texts == {"vulkan", "opencl"}
    for delegate in given:
        delegate.close()


def test_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, served = threading.Event(), []
    call = Model.__call__

    def slow(self: Any, *arrays: Any) -> Any:
        assert go_on.wait(30)
        served.append(int(arrays[0][0, 0]))
        return call(self, *arrays)

    monkeypatch.setattr(Model, "__call__", slow)
    with tflgpu.Pool(MODEL, size=1) as pool:
        threads = []
        for n in range(6):
            threads.append(threading.Thread(target=pool, args=(number(n),)))
            threads[-1].start()
            end = time.monotonic() + 30
            while (
                len(pool._gather._queue) + 1 - len(pool._gather.free) <= n
                and time.monotonic() < end
            ):
                time.sleep(0.001)
        with pytest.raises(BusyError, match=r"free in 0\.01 seconds"):
            pool(number(9), timeout=0.01)
        go_on.set()
        for thread in threads:
            thread.join(30)
        check(pool(number(3), timeout=30), 3)
    assert served == [*range(6), 3]


def test_closing_waits_for_those_inside_and_refuses_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on, inside = threading.Event(), threading.Event()
    call = Model.__call__

    def slow(self: Any, *arrays: Any) -> Any:
        inside.set()
        assert go_on.wait(30)
        return call(self, *arrays)

    monkeypatch.setattr(Model, "__call__", slow)
    pool, told = tflgpu.Pool(MODEL, size=1), {}

    def use(n: int) -> None:
        try:
            check(pool(number(n)), n)
            told[n] = "answered"
        except StateError as error:
            told[n] = str(error)

    callers = [threading.Thread(target=use, args=(n,)) for n in range(3)]
    callers[0].start()
    assert inside.wait(30)
    for thread in callers[1:]:
        thread.start()
    closer = threading.Thread(target=pool.close)
    while len(pool._gather._queue) < 2:
        time.sleep(0.001)
    closer.start()
    for thread in callers[1:]:
        thread.join(30)
    assert closer.is_alive()
    go_on.set()
    closer.join(30)
    callers[0].join(30)
    assert told == {0: "answered", 1: "this pool is closed", 2: "this pool is closed"}
    pool.close()
    for use_it in (pool, pool.submit):
        with pytest.raises(StateError, match="closed"):
            use_it(number(1))


def test_an_error_is_its_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    call, failing = Model.__call__, {7}

    def some(self: Any, *arrays: Any) -> Any:
        if int(arrays[0][0, 0]) in failing:
            raise DeviceError("planted")
        return call(self, *arrays)

    monkeypatch.setattr(Model, "__call__", some)
    with tflgpu.Pool(MODEL, size=2) as pool:
        futures = [pool.submit(number(n)) for n in range(16)]
        for n, future in enumerate(futures):
            if n in failing:
                with pytest.raises(DeviceError, match="planted"):
                    future.result(60)
            else:
                check(future.result(60), n)


def test_mistakes() -> None:
    with pytest.raises(tflgpu.UnsupportedError, match="keeps state"):
        tflgpu.Pool(models.keeps_state())
    with pytest.raises(OptionError, match="at least one device"):
        tflgpu.Pool(MODEL, devices=[])
    with pytest.raises(OptionError, match="not both"):
        tflgpu.Pool(MODEL, devices=[0], delegates=[])
    with pytest.raises(OptionError, match="size"):
        tflgpu.Pool(MODEL, size=0)


@pytest.mark.parametrize("backend", ["vulkan", "opencl"])
def test_as_many_runs_are_in_flight_as_there_are_copies(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is answered by one thread, which begins the next before it waits for the last."""
    begin, finish, seen = Model._begin, Model._finish, []
    # What is submitted late would find nobody at work, and another thread would answer it.
    submitted = threading.Event()

    def spy(method: Any, change: int) -> Any:
        def call(self: Any, *given: Any) -> Any:
            assert submitted.wait(60)
            seen.append((change, threading.get_ident()))
            return method(self, *given)

        return call

    monkeypatch.setattr(Model, "_begin", spy(begin, 1))
    monkeypatch.setattr(Model, "_finish", spy(finish, -1))
    with tflgpu.Pool(MODEL, devices=[0], backend=backend, size=2) as pool:
        futures = [pool.submit(number(n)) for n in range(9)]
        futures.insert(5, pool.submit(np.zeros((3, 3), np.float32)))
        submitted.set()
        for n, future in enumerate(futures):
            if n == 5:
                with pytest.raises(InputError):
                    future.result(60)
            else:
                check(future.result(60), n - (n > 5))
        check(pool(number(1)), 1)
        end = time.monotonic() + 30
        while len(pool.reports) < 2 and time.monotonic() < end:
            time.sleep(0.001)
        assert len(pool.reports) == 2
    flying = np.cumsum([change for change, _ in seen])
    assert 2 <= flying.max() <= 3  # the wrong one was not begun
    assert len({thread for _, thread in seen}) == 1
