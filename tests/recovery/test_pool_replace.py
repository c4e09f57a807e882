"""`Pool.replace` under load, and a queue that has a limit: every request is answered, or refused by
name."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import BusyError, QueueFullError, SignatureError, StateError
from tflgpu.interpreter.model import Model
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

LONG = 60.0


def times(factor: int, name: str = "x", width: int = 4, dtype: DType = DType.F32) -> bytes:
    """``y`` is ``factor`` times its input."""
    tensors = [
        TensorSpec(name, (1, width), dtype), TensorSpec("y", (1, width), dtype),
        TensorSpec("factor", (), dtype, data=np.array(factor, dtype.numpy)),
    ]  # fmt: skip
    return write_model(ModelSpec(tensors, [OperatorSpec("MUL", {}, [0, 2], [1])], [0], [1]))


def pool_of(factor: int = 2, **options: Any) -> tflgpu.Pool:
    return tflgpu.Pool(times(factor), **{"backend": "cpu_ref", **options})


def number(n: int) -> Any:
    return np.full((1, 4), n, np.float32)


class Brake:
    """Runs wait until `go_on` is set; `inside` is set by the first."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go_on, self.inside = threading.Event(), threading.Event()
        for name in ("__call__", "_begin", "_together"):
            patch.setattr(Model, name, self._slow(getattr(Model, name)))

    def _slow(self, method: Any) -> Any:
        def call(model: Any, *given: Any, **named: Any) -> Any:
            self.inside.set()
            assert self.go_on.wait(LONG)
            return method(model, *given, **named)

        return call


@pytest.fixture
def brake(monkeypatch: pytest.MonkeyPatch) -> Brake:
    return Brake(monkeypatch)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("by", ["call", "submit"])
def test_every_request_is_answered_by_the_old_or_the_new_model(batch: int, by: str) -> None:
    current, wrong = 1, []
    with pool_of(1, size=2, batch=batch, deadline=0) as pool:
        done = threading.Event()

        def ask(caller: int) -> int:
            count = 0
            while not done.is_set() or not count:
                before, n = current, caller + 1
                x = number(n)
                (found,) = pool(x) if by == "call" else pool.submit(x).result(LONG)
                factor = found[0, 0] / n
                # A request that came after a replacement is not answered by what was before it.
                if not before <= factor <= current + 1 or factor != int(factor):
                    wrong.append((before, factor, current))
                count += 1
            return count

        with ThreadPoolExecutor(6) as threads:
            counts = [threads.submit(ask, n) for n in range(6)]
            try:
                for factor in range(2, 8):
                    pool.replace(times(factor))
                    current = factor
            finally:
                done.set()
            assert all(each.result(LONG) for each in counts)
        assert not wrong
        np.testing.assert_array_equal(pool(number(1))[0], number(7))
        assert len(pool._models) == 2 * (1 if batch == 1 else 3)


@pytest.mark.parametrize("batch", [1, 4])
def test_requests_that_wait_are_answered(brake: Brake, batch: int) -> None:
    """What is being run meanwhile has the old model to its end."""
    with pool_of(2, size=1, batch=batch, deadline=0) as pool:
        running = pool.submit(number(1))
        assert brake.inside.wait(LONG)
        waiting = [pool.submit(number(n)) for n in range(3)]
        replacing = threading.Thread(target=pool.replace, args=(times(3),))
        replacing.start()
        while not pool._gather.copies[0].next_models:
            replacing.join(0.001)
        waiting.append(pool.submit(number(3)))
        brake.go_on.set()
        replacing.join(LONG)
        assert not replacing.is_alive()
        np.testing.assert_array_equal(running.result(LONG)[0], number(2))
        for n, future in enumerate(waiting):
            np.testing.assert_array_equal(future.result(LONG)[0], number(3 * n))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (times(3, name="z"), "inputs 'z'"),
        (times(3, width=5), r"float32\[1, 5\]"),
        (times(3, dtype=DType.I32), "int32"),
    ],
)
def test_another_signature_is_an_error_before_anything_changes(other: bytes, said: str) -> None:
    with pool_of(2, size=2) as pool:
        models = list(pool._models)
        with pytest.raises(SignatureError, match=said):
            pool.replace(other)
        with pytest.raises(tflgpu.ModelError):
            pool.replace(b"no model")
        assert pool._models == models
        np.testing.assert_array_equal(pool(number(1))[0], number(2))


def test_a_pool_that_is_closed_meanwhile(brake: Brake) -> None:
    pool = pool_of(2, size=1)
    running = pool.submit(number(1))
    assert brake.inside.wait(LONG)
    errors: list[Exception] = []

    def replace() -> None:
        try:
            pool.replace(times(3))
        except StateError as error:
            errors.append(error)

    replacing, closing = threading.Thread(target=replace), threading.Thread(target=pool.close)
    replacing.start()
    while not pool._gather.copies[0].next_models:
        replacing.join(0.001)
    closing.start()
    replacing.join(LONG)
    assert "this pool is closed" in str(errors[0])
    brake.go_on.set()
    closing.join(LONG)
    np.testing.assert_array_equal(running.result(LONG)[0], number(2))
    with pytest.raises(StateError, match="closed"):
        pool.replace(times(3))
    assert not pool._models


def test_not_from_inside_a_call() -> None:
    errors: list[Exception] = []

    def replace(_: Any) -> None:
        try:
            pool.replace(times(3))
        except StateError as error:
            errors.append(error)

    class Array:
        def __array__(self, *_: Any, **__: Any) -> Any:
            replace(None)
            return number(1)

    with pool_of(2, size=1) as pool:
        np.testing.assert_array_equal(pool(Array())[0], number(2))
        assert len(errors) == 1
        np.testing.assert_array_equal(pool(number(1))[0], number(2))


def test_inputs_and_outputs_by_name() -> None:
    for batch, first in ((1, 1), (4, -1)):
        with pool_of(2, batch=batch) as pool:
            assert (pool.input_names, pool.output_names) == (("x",), ("y",))
            (given,), (made,) = pool.inputs, pool.outputs
            assert (given.name, given.dtype, given.open_shape) == ("x", np.float32, (first, 4))
            assert (made.name, made.dtype, made.open_shape) == ("y", np.float32, (first, 4))
    with pytest.raises(StateError, match="closed"):
        print(pool.input_names)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_queue_that_is_full_refuses(brake: Brake, batch: int) -> None:
    """By name, at once, and nothing of what waits already is lost."""
    with pool_of(2, size=1, batch=batch, deadline=0, queue_limit=3) as pool:
        running = pool.submit(number(9))
        assert brake.inside.wait(LONG)
        waiting = [pool.submit(number(n)) for n in range(3)]
        for ask in (pool, pool.submit):
            with pytest.raises(QueueFullError, match="3 requests wait"):
                ask(number(4))
        with pytest.raises(BusyError, match="queue_limit"):
            asyncio.run(pool.run(number(4)))
        with pytest.raises(QueueFullError):
            pool.submit(number(4), timeout=LONG).result(LONG)
        brake.go_on.set()
        for n, future in zip((9, 0, 1, 2), (running, *waiting), strict=True):
            np.testing.assert_array_equal(future.result(LONG)[0], number(2 * n))
        np.testing.assert_array_equal(pool(number(4))[0], number(8))


def test_under_load_each_is_answered_or_refused_by_name() -> None:
    with pool_of(2, size=1, queue_limit=2) as pool, ThreadPoolExecutor(8) as threads:

        def ask(n: int) -> bool:
            try:
                np.testing.assert_array_equal(pool(number(n))[0], number(2 * n))
            except QueueFullError:
                return False
            return True

        answered = list(threads.map(ask, range(400)))
        assert any(answered)
        np.testing.assert_array_equal(pool(number(1))[0], number(2))


def test_a_limit_is_a_whole_number() -> None:
    with pytest.raises(tflgpu.OptionError, match="queue_limit"):
        pool_of(queue_limit=0)
