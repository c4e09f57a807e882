"""Requests that are gathered: each is answered as if it had come alone, and what goes wrong is its
own."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import BusyError, DeviceError, InputError, OptionError, StateError
from tflgpu.interpreter.model import Model
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import raising
from tests.small_models import small_model, tensor_of

TABLE = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
LONG = 60  # seconds that nothing here takes


def doubled(signature: tuple[int, ...] | None = None) -> bytes:
    """``y`` = x + x, by way of a RESHAPE to [1, 6]; or of any width, without it."""
    six = TensorSpec("six", (2,), DType.I32, data=np.array([1, 6], np.int32))
    tensors = [
        TensorSpec("x", (1, 2, 3), shape_signature=signature), six,
        TensorSpec("flat", (1, 6)), TensorSpec("y", (1, 6)),
    ]  # fmt: skip
    steps = [OperatorSpec("RESHAPE", {}, [0, 1], [2]), OperatorSpec("ADD", {}, [2, 2], [3])]
    if signature is not None:
        tensors[3] = TensorSpec("y", (1, 2, 3), shape_signature=signature)
        steps = [OperatorSpec("ADD", {}, [0, 0], [3])]
    return write_model(ModelSpec(tensors, steps, [0], [3]))


def lookup() -> bytes:
    """Rows of a table; NumPy refuses numbers of rows that there are not."""
    return small_model(
        {
            "words": tensor_of((1, 2), DType.I32),
            "table": tensor_of((5, 4), data=TABLE),
            "rows": (1, 2, 4),
        },
        ("rows = GATHER(table, words)", {"axis": 0}),
    )


MODEL = doubled()


def image(n: int, count: int = 1) -> Any:
    return np.arange(n, n + count, dtype=np.float32)[:, None, None] + np.zeros((2, 3), np.float32)


def check(found: Any, n: int, count: int = 1) -> None:
    np.testing.assert_array_equal(found[0], 2 * image(n, count).reshape(count, 6))


def pool_of(content: bytes = MODEL, **options: Any) -> tflgpu.Pool:
    return tflgpu.Pool(content, **{"backend": "cpu_ref", "size": 1, **options})


def at_once(pool: tflgpu.Pool, arrays: Sequence[Any]) -> list[Future[Any]]:
    """Requests that have all come before any thread of the pool looks at one."""
    with pool._gather._lock:
        return [pool.submit(array) for array in arrays]


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event, list[Any]]:
    """Runs wait for the first event, set the second, and leave what they were given."""
    go_on, inside, seen = threading.Event(), threading.Event(), []
    together = Model._together

    def slow(self: Model, parts: Sequence[Any], placed: Sequence[bool]) -> Any:
        inside.set()
        assert go_on.wait(30)
        seen.append([float(a.reshape(-1)[0]) for part in parts for a in part[0]])
        return together(self, parts, placed)

    monkeypatch.setattr(Model, "_together", slow)
    return go_on, inside, seen


def test_a_full_batch_goes_at_once() -> None:
    with pool_of(batch=4, deadline=LONG) as pool:
        start = time.monotonic()
        futures = [pool.submit(image(n)) for n in range(4)]
        for n, future in enumerate(futures):
            check(future.result(30), n)
        assert time.monotonic() - start < LONG / 2
        assert pool.runs == {4: 1}


@pytest.mark.parametrize(("sizes", "used"), [(None, 4), ((1, 8), 8), ((2, 3, 8), 3)])
def test_after_the_deadline_what_has_come(
    sizes: Sequence[int] | None, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the smallest batch that was compiled."""
    taken, rows = [], Model._run_rows

    def spy(self: Model, parts: Any, placed: Any) -> Any:
        taken.append(self._size)
        return rows(self, parts, placed)

    monkeypatch.setattr(Model, "_run_rows", spy)
    with pool_of(batch=8, sizes=sizes, deadline=0.05) as pool:
        futures = at_once(pool, [image(n) for n in range(3)])
        for n, future in enumerate(futures):
            check(future.result(30), n)
        assert pool.runs == {3: 1}
        check(pool(image(9)), 9)
        check(pool(image(20, 19)), 20, 19)  # larger than any batch: by itself
    assert taken[0] == used
    assert taken[2:] == [8, 8, 8]


@pytest.mark.parametrize("backend", ["cpu_ref", "vulkan"])
def test_many_callers(backend: str) -> None:
    with pool_of(backend=backend, batch=8, size=2, deadline=0.002) as pool:

        def call(caller: int) -> None:
            for i in range(3):
                n, count = caller * 50 + i * 7, 1 + (caller + i) % 3
                check(pool(image(n, count)), n, count)

        with ThreadPoolExecutor(24) as threads:
            list(threads.map(call, range(24)))

        async def all_of_them() -> list[Any]:
            with pool._gather._lock:  # all have come before the first is answered
                runs = [asyncio.ensure_future(pool.run(image(n))) for n in range(12)]
                await asyncio.sleep(0)
            return await asyncio.gather(*runs)

        for n, found in enumerate(asyncio.run(all_of_them())):
            check(found, n)
        assert max(pool.runs) == 8
        asked = sum(1 + (c + i) % 3 for c in range(24) for i in range(3)) + 12
        assert sum(items * runs for items, runs in pool.runs.items()) == asked
        assert len(pool.reports) == 2 * 4


def test_a_wrong_request_is_its_callers_before_it_is_gathered() -> None:
    with pool_of(batch=2, deadline=LONG) as pool:
        first = pool.submit(image(1))
        for wrong in (np.zeros((1, 2, 4), np.float32), np.zeros(6, np.float32), "image"):
            with pytest.raises(InputError):
                pool(wrong)
        second = pool.submit(image(2))
        check(first.result(30), 1)
        check(second.result(30), 2)
        assert pool.runs == {2: 1}


def test_wrong_numbers_are_their_callers() -> None:
    """Found by the run only; the others of the batch are run again without them."""
    with pool_of(lookup(), batch=4, deadline=LONG) as pool:
        words = [np.array([[n, 1]], np.int32) for n in (0, 7, 2, 3)]
        futures = [pool.submit(w) for w in words]
        for n, future in zip((0, 7, 2, 3), futures, strict=True):
            if n == 7:
                with pytest.raises(InputError, match="7"):
                    future.result(30)
            else:
                np.testing.assert_array_equal(future.result(30)[0], TABLE[[[n, 1]]])


def test_a_failed_device_is_told_to_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Model._together

    def some(self: Model, parts: Sequence[Any], placed: Sequence[bool]) -> Any:
        if any(part[0].reshape(-1)[0] == 5 for part in parts):
            raise DeviceError("planted")
        return together(self, parts, placed)

    monkeypatch.setattr(Model, "_together", some)
    with pool_of(batch=4, deadline=LONG) as pool:
        futures = [pool.submit(image(n)) for n in range(12)]
        errors = []
        for n, future in enumerate(futures):
            if 4 <= n < 8:
                with pytest.raises(DeviceError, match="planted") as caught:
                    future.result(30)
                errors.append(caught.value)
            else:
                check(future.result(30), n)
        assert len(set(map(id, errors))) == 4  # tracebacks do not mix


def test_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, inside, seen = held(monkeypatch)
    with pool_of(batch=4, deadline=0) as pool:
        futures = [pool.submit(image(0))]
        assert inside.wait(30)
        futures += [pool.submit(image(n)) for n in range(1, 11)]
        with pytest.raises(BusyError, match=r"free in 0\.01 seconds"):
            pool(image(99), timeout=0.01)
        assert futures[2].cancel()
        go_on.set()
        for n, future in enumerate(futures):
            if n != 2:
                check(future.result(30), n)
    assert seen == [[0], [1, 3, 4, 5], [6, 7, 8, 9], [10]]


def test_only_equal_shapes_are_run_together() -> None:
    with pool_of(doubled((1, 2, -1)), batch=4, deadline=0.05) as pool:
        widths = (3, 3, 5, 3)
        arrays = [np.full((1, 2, w), n, np.float32) for n, w in enumerate(widths)]
        futures = at_once(pool, arrays)
        for array, future in zip(arrays, futures, strict=True):
            np.testing.assert_array_equal(future.result(30)[0], 2 * array)
        assert pool.runs == {1: 2, 2: 1}


def test_closing_refuses_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, inside, seen = held(monkeypatch)
    pool = pool_of(batch=2, deadline=LONG)
    running: list[Future[Any]] = [pool.submit(image(n)) for n in (1, 2)]
    assert inside.wait(30)
    waiting = pool.submit(image(3))
    closer = threading.Thread(target=pool.close)
    closer.start()
    with pytest.raises(StateError, match="closed"):
        waiting.result(30)
    assert closer.is_alive()
    go_on.set()
    closer.join(30)
    for n, future in zip((1, 2), running, strict=True):
        check(future.result(30), n)
    assert seen == [[1, 2]]
    pool.close()
    for use_it in (pool, pool.submit):
        with pytest.raises(StateError, match="closed"):
            use_it(image(1))


def test_closing_does_not_wait_for_the_deadline() -> None:
    pool = pool_of(batch=2, deadline=LONG)
    waiting, start = pool.submit(image(1)), time.monotonic()
    time.sleep(0.05)  # so that its turn is in it
    pool.close()
    assert time.monotonic() - start < LONG / 2
    with pytest.raises(StateError, match="closed"):
        waiting.result(30)


@pytest.mark.needs("vulkan")
def test_several_devices_share() -> None:
    """Each of two devices has a batch while the other one is at work."""
    used, together, both = set(), Model._together, threading.Barrier(2)

    def spy(self: Model, parts: Sequence[Any], placed: Sequence[bool]) -> Any:
        both.wait(30)
        used.add(self.report.backend)
        return together(self, parts, placed)

    given = [tflgpu.GpuDelegate(backend=b) for b in ("vulkan", "cpu_ref")]
    with (
        pytest.MonkeyPatch.context() as patch,
        tflgpu.Pool(MODEL, delegates=given, size=1, batch=2, sizes=[2], deadline=LONG) as pool,
    ):
        patch.setattr(Model, "_together", spy)
        for n, future in enumerate([pool.submit(image(n)) for n in range(4)]):
            check(future.result(30), n)
    for delegate in given:
        delegate.close()
    assert used == {"vulkan", "cpu_ref"}


def test_mistakes() -> None:
    for wrong, why in (
        ({"batch": 0}, "batch"), ({"batch": 4, "sizes": [1, 2]}, "largest has to be the batch, 4"),
        ({"batch": 4, "sizes": []}, "largest"), ({"batch": 2, "deadline": -1}, "deadline is -1"),
        ({"batch": 2, "deadline": float("nan")}, "deadline is nan"),
        ({"batch": 2, "deadline": True}, "deadline is True"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=why):
            pool_of(**wrong)
    flat = small_model({"x": (3,), "y": (3,)}, "y = RELU(x)")
    with pytest.raises(tflgpu.UnsupportedError, match="without a leading dimension of 1"):
        pool_of(flat, batch=2)


@pytest.mark.parametrize("timeout", [0, 0.001])
def test_who_has_less_time_than_the_deadline_is_served_where_a_copy_is_free(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for others no longer than it can, and takes those along that came before it."""
    go_on, inside, seen = held(monkeypatch)
    with pool_of(batch=4, deadline=LONG) as pool:
        earlier, start = pool.submit(image(1)), time.monotonic()
        go_on.set()
        check(pool(image(2), timeout=timeout), 2)
        check(earlier.result(30), 1)
        go_on.clear()
        inside.clear()
        running = [pool.submit(image(n)) for n in range(3, 7)]
        assert inside.wait(30)
        with pytest.raises(BusyError, match="no copy of the model was free"):
            pool(image(9), timeout=timeout)
        go_on.set()
        wait(running, 30)
        assert time.monotonic() - start < LONG / 2
    assert seen == [[1, 2], [3, 4, 5, 6]]


def test_threads_that_close_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comes back when all is released, and no copy is closed twice."""
    closed, close, together = [], Model._close, threading.Barrier(4)

    def slow(self: Model) -> None:
        closed.append(self)
        time.sleep(0.005)
        close(self)

    monkeypatch.setattr(Model, "_close", slow)
    pool = pool_of(batch=4)

    def end() -> int:
        together.wait(30)
        pool.close()
        return len(closed)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: end(), range(4))) == [3] * 4
    assert len(set(map(id, closed))) == 3


def test_the_largest_batch_is_made_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that one that is too large is refused before memory was taken for the others."""
    made, make = [], Model.__init__

    def spy(self: Model, *given: Any, batch: int = 1, **options: Any) -> None:
        made.append(batch)
        if batch == 8:
            raise DeviceError("too large")
        make(self, *given, batch=batch, **options)

    monkeypatch.setattr(Model, "__init__", spy)
    with pytest.raises(DeviceError, match="too large"):
        pool_of(batch=8)
    assert made == [8]


class Interrupted(BaseException):
    """What a signal's handler raises here."""


@pytest.fixture
def interrupt_main() -> Iterator[Callable[[], None]]:
    """Lets a signal's handler raise in the main thread."""
    before = signal.signal(signal.SIGUSR1, raising(Interrupted))
    main = threading.get_ident()
    yield lambda: signal.pthread_kill(main, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def no_waiting(pool: tflgpu.Pool) -> Iterator[None]:
    """Where something went wrong the pool's threads are not waited for."""
    try:
        yield
    except BaseException:
        pool._gather._threads.clear()
        raise


def test_who_is_interrupted_keeps_no_others_waiting(interrupt_main: Callable[[], None]) -> None:
    """One caller of a batch goes before it is full; each of the others is answered."""
    answered = []

    def call(n: int) -> None:
        check(pool(image(n)), n)
        answered.append(n)

    def others() -> None:
        while pool._gather._open is None or not pool._gather._open.items:
            time.sleep(0.001)
        time.sleep(0.05)  # so that it waits
        interrupt_main()

    with pool_of(batch=8, sizes=[8], deadline=LONG) as pool:
        thread = threading.Thread(target=others)
        thread.start()
        with pytest.raises(Interrupted):
            pool(image(0))
        thread.join(30)
        callers = [threading.Thread(target=call, args=(n,), daemon=True) for n in range(1, 7)]
        for caller in callers:
            caller.start()
        end = time.monotonic() + 30
        while pool._gather._open.items < 7 and time.monotonic() < end:
            time.sleep(0.001)
        check(pool.submit(image(7)).result(30), 7)
        for caller in callers:
            caller.join(5)
        assert sorted(answered) == list(range(1, 7))


def test_a_run_of_who_is_interrupted_is_made_for_the_others(
    interrupt_main: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of a batch runs it in its own thread, which a signal may end."""
    go_on, together, threads = threading.Event(), Model._together, []

    def slow(self: Model, parts: Any, placed: Any) -> Any:
        threads.append(threading.current_thread())
        if len(threads) == 1:
            assert go_on.wait(30)
        return together(self, parts, placed)

    def send() -> None:
        while not threads:
            time.sleep(0.001)
        interrupt_main()

    monkeypatch.setattr(Model, "_together", slow)
    with pool_of(batch=3, sizes=[3], deadline=LONG) as pool, no_waiting(pool):
        futures = [pool.submit(image(n)) for n in range(2)]
        sender = threading.Thread(target=send)
        sender.start()
        with pytest.raises(Interrupted):
            pool(image(2))
        sender.join(30)
        for n, future in enumerate(futures):
            check(future.result(30), n)
        check(pool(image(5, 3)), 5, 3)
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threads[0]


def test_rows_that_nothing_fills_are_no_reason_to_fail() -> None:
    """They keep what earlier runs had there, but for what a run refused; none has been run, or
    refused, in vain."""
    with pool_of(lookup(), batch=4, sizes=[4], deadline=LONG) as pool:
        words = [np.array([[n, 1]], np.int32) for n in (0, 2, 3, 7)]
        for given in (words, words[:1], words[:3], words[1:2], words, words[2:3]):
            futures = [pool.submit(w) for w in given]
            if len(given) < 4:  # what is shorter than the deadline makes it go
                np.testing.assert_array_equal(pool(words[0], timeout=0)[0], TABLE[words[0]])
            for w, future in zip(given, futures, strict=True):
                if w[0, 0] == 7:
                    with pytest.raises(InputError, match="7"):
                        future.result(30)
                else:
                    np.testing.assert_array_equal(future.result(30)[0], TABLE[w])


@pytest.mark.parametrize("batch", [1, 4])
def test_results_are_not_kept_by_the_pool(batch: int) -> None:
    """Nor by a cycle: memory that a device lent goes back when its holder lets go of it."""
    gc.collect()
    gc.disable()
    try:
        with pool_of(batch=batch) as pool:
            for found in (pool(image(1)), pool.submit(image(2)).result(30)):
                last = weakref.ref(found[0])
                assert last() is not None
            given = image(3)
            seen = weakref.ref(given)
            check(pool(given), 3)
            del given, found
            end = time.monotonic() + 30
            while (seen() or last()) is not None and time.monotonic() < end:
                time.sleep(0.001)
            assert seen() is None
            assert last() is None
    finally:
        gc.enable()
