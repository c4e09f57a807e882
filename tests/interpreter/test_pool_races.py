"""Two threads of a pool meet in the middle of a step; each meeting is made to happen."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.interpreter import batch_queue, gather
from tflgpu.interpreter.copies import copy
from tflgpu.interpreter.model import Model
from tflgpu.interpreter.requests import Batch, Request

from tests.small_models import small_model

X = np.arange(4, dtype=np.float32)[None]
#: Seconds after which a thread is taken to wait for ever.
LONG = 60.0


@pytest.fixture
def pool() -> Iterator[tflgpu.Pool]:
    model = small_model({"x": (1, 4), "y": (1, 4)}, "y = ADD(x, x)")
    with tflgpu.Pool(model, size=1, backend="cpu_ref") as made:
        yield made


def called(pool: tflgpu.Pool) -> np.ndarray:
    """What a call in a thread of its own gives: one that hangs fails the test."""
    results: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: results.extend(pool(X)), daemon=True)
    thread.start()
    thread.join(LONG)
    assert results, "the pool does not answer"
    return results[0]


def test_a_copy_is_free_before_its_caller_is_out_of_the_queue(pool: tflgpu.Pool) -> None:
    """The pool's thread is told to answer the request, so its caller leaves it alone."""
    gatherer = pool._gather
    first = Request((X,), {}, 1, None, 0.0, None)
    gatherer._add(first)
    assert first.batch is not None
    assert first.batch.runner is first

    class Queue(deque[Request]):
        def append(self, request: Request) -> None:
            super().append(request)
            gatherer._give_back(first.batch)

    gatherer._queue = Queue()
    second = Request((X,), {}, 1, None, 0.0, None)
    gatherer._add(second)
    assert second.gate.acquire(timeout=LONG)
    np.testing.assert_array_equal(second.results()[0], 2 * X)
    gatherer._queue = deque()
    np.testing.assert_array_equal(called(pool), 2 * X)
    np.testing.assert_array_equal(called(pool), 2 * X)


def test_the_pools_thread_is_quicker_than_the_caller(
    pool: tflgpu.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that the pool's thread has run is not run again by the request's own thread."""
    gatherer = pool._gather

    class Slow(set[Request]):
        batch: Batch

        def discard(self, request: Request) -> None:
            super().discard(request)
            with gatherer._lock:
                self.batch.copy.notify()
            until = time.monotonic() + LONG
            while not self.batch.done and time.monotonic() < until:
                time.sleep(1e-3)

    def made(*args: object) -> Batch:
        batch = Batch(*args)  # type: ignore[arg-type]
        batch.copying = Slow()
        batch.copying.batch = batch
        return batch

    monkeypatch.setattr(batch_queue, "Batch", made)
    for _ in range(2):
        np.testing.assert_array_equal(called(pool), 2 * X)
    assert list(gatherer.free) == gatherer._copies


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Iterator[tflgpu.Pool]:
    """A pool that gathers; `runners` has the threads of its runs."""
    model = small_model({"x": (1, 4), "y": (1, 4)}, "y = ADD(x, x)")
    runners.clear()
    together = Model._together

    def noted(self: Model, *given: Any) -> Any:
        runners.append(threading.current_thread())
        return together(self, *given)

    monkeypatch.setattr(Model, "_together", noted)
    with tflgpu.Pool(model, size=1, batch=4, sizes=[4], deadline=0.01, backend="cpu_ref") as made:
        yield made


runners: list[threading.Thread] = []


def test_a_batch_that_is_due_is_run_by_its_first_caller(batches: tflgpu.Pool) -> None:
    """No thread of the pool is woken for it."""
    for _ in range(3):
        np.testing.assert_array_equal(batches(X)[0], 2 * X)
    assert runners == [threading.current_thread()] * 3


def test_a_batch_is_due_while_rows_are_copied(
    batches: tflgpu.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one who copies runs it then."""
    gatherer = batches._gather
    first, second = (gatherer._checks.request((X,), {}, LONG, None) for _ in range(2))
    first.keeps_time = True
    gatherer._add(first)
    batch = first.batch
    assert batch is not None

    def copied_late(*given: Any) -> None:
        first.due = 0.0
        gatherer._wait_until_due(batch, first)
        assert batch.closed
        assert batch.runner is None
        copy(*given)

    monkeypatch.setattr(gather, "copy", copied_late)
    gatherer._add(second)
    assert batch.runner is second
    gatherer._run(batch)
    for request in (first, second):
        np.testing.assert_array_equal(request.results()[0], 2 * X)


def test_a_first_caller_that_goes_leaves_its_batch_to_the_pool(
    batches: tflgpu.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal's handler makes it go: the others are answered when they are due."""
    futures = []

    def gone(*_: object) -> None:
        futures.append(batches._gather.submit((X,), {}))
        raise KeyboardInterrupt

    monkeypatch.setattr(batches._gather, "_wait_until_due", gone)
    with pytest.raises(KeyboardInterrupt):
        batches(X)
    np.testing.assert_array_equal(futures[0].result(LONG)[0], 2 * X)
    assert runners == batches._gather._threads
