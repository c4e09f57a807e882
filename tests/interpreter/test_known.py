"""Tensors set or read before take a short way; whatever has a say since is still heard."""

from __future__ import annotations

import math
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ArgumentError, InputError, OptionError
from tflgpu.interpreter.arguments import timeout_of
from tflgpu.interpreter.copies import ResultPool, TensorCache

from tests.interpreter.interpreter_models import chain
from tests.running import allocate_and_run, allocated, set_and_run
from tests.small_models import small_model

X = np.array([[1, 2, 3]], np.float32)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which short ways were taken."""
    taken: list[str] = []
    for name in ("put", "copied"):
        inner = getattr(TensorCache, name)

        def spy(
            self: TensorCache, *args: Any, inner: Any = inner, name: str = name, **more: Any
        ) -> Any:
            found = inner(self, *args, **more)
            if found is not None and found is not False:
                taken.append(name)
            return found

        monkeypatch.setattr(TensorCache, name, spy)
    return taken


@pytest.fixture(params=[{"backend": "cpu_ref"}, {"backend": "cpu_ref", "device": 1}])
def interpreter(request: pytest.FixtureRequest) -> Any:
    with (
        tflgpu.GpuDelegate(**request.param) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=chain(), experimental_delegates=[delegate])
        ) as made,
    ):
        yield made


def negated(shape: tuple[int, ...]) -> bytes:
    return small_model({"x": shape, "y": shape}, "y = NEG(x)")


def wanted(x: Any) -> Any:
    c = np.array([1, -2, 3], np.float32)
    return (x + c) * c


def once(interpreter: Any, x: Any) -> Any:
    set_and_run(interpreter, {0: x})
    return interpreter.get_tensor(3)


def test_the_second_time_is_short_and_right(interpreter: Any, ways: list[str]) -> None:
    first = once(interpreter, X)
    assert ways == []
    second = once(interpreter, 2 * X)
    assert ways == ["put", "copied"]
    np.testing.assert_array_equal(first, wanted(X))  # and still its own
    np.testing.assert_array_equal(second, wanted(2 * X))
    np.testing.assert_array_equal(interpreter.get_tensor(0), 2 * X)


def test_mistakes_are_told_as_before(interpreter: Any) -> None:
    once(interpreter, X)
    for wrong, why in (
        (X[0], "shape"), (X.astype(np.float64), "float64"), (np.ones((2, 3), np.float32), "shape"),
    ):  # fmt: skip
        with pytest.raises(tflgpu.InputError, match=why):
            interpreter.set_tensor(0, wrong)
    with pytest.raises((tflgpu.ArgumentError, tflgpu.InputError)):
        interpreter.set_tensor(0.0, X)
    np.testing.assert_array_equal(once(interpreter, np.asfortranarray(X)), wanted(X))


def test_other_shapes_and_memory_are_heard(interpreter: Any, ways: list[str]) -> None:
    once(interpreter, X)
    interpreter.resize_tensor_input(0, (2, 3))
    with pytest.raises(tflgpu.StateError):
        interpreter.set_tensor(0, X)
    interpreter.allocate_tensors()
    two = np.concatenate([X, 3 * X])
    np.testing.assert_array_equal(once(interpreter, two), wanted(two))
    assert ways == []


def test_a_failed_run_has_no_results(
    interpreter: Any, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    once(interpreter, X)
    session = interpreter._main.session

    def fail() -> None:
        session.complete = False
        raise tflgpu.DeviceError("it does not answer")

    monkeypatch.setattr(session, "run", fail)
    with pytest.raises(tflgpu.DeviceError, match="does not answer"):
        interpreter.invoke()
    with pytest.raises(tflgpu.StateError, match="no results"):
        interpreter.get_tensor(3)
    assert ways == []


def test_a_result_that_was_read_is_not_written_to(delegate: tflgpu.GpuDelegate) -> None:
    x = np.ones((1, 300, 300), np.float32)
    with allocated(
        tflgpu.Interpreter(model_content=negated(x.shape), experimental_delegates=[delegate])
    ) as one:
        one.set_tensor(0, x)
        for _ in range(2):
            one.invoke()
            read = one.get_tensor(1)  # a device may have let go of its memory
            for value in (5, 6):
                one.set_tensor(1, value * x)
                for _ in range(2):
                    np.testing.assert_array_equal(one.get_tensor(1), value * x)
            one.tensor(1)()[...] = 7
            kept = [one.get_tensor(1) for _ in range(2)]
            np.testing.assert_array_equal(kept, [7 * x] * 2)
            np.testing.assert_array_equal(read, -x)


def test_what_unbinding_leaves_goes_into_no_result_that_was_read(
    delegate: tflgpu.GpuDelegate,
) -> None:
    x = np.ones((1, 300, 300), np.float32)
    with tflgpu.Interpreter(
        model_content=negated(x.shape), experimental_delegates=[delegate]
    ) as one:
        allocate_and_run(one, {0: x})
        read = one.get_tensor(1)
        with one.allocate_buffer(1) as buffer:
            buffer.write(3 * x)
            one.bind_output(1, buffer)
            one.unbind()
        for _ in range(2):
            np.testing.assert_array_equal(one.get_tensor(1), 3 * x)
        np.testing.assert_array_equal(read, -x)


# Large results reuse memory that nobody holds, and only that.


SHAPE = (512, 1024)


def _address(array: np.ndarray[object, np.dtype[np.float32]]) -> int:
    return int(array.ctypes.data)


def test_a_dropped_result_is_used_again() -> None:
    pool = ResultPool()
    first = pool.empty(SHAPE, np.float32)
    at = _address(first)
    del first
    assert _address(pool.empty(SHAPE, np.float32)) == at


def test_a_held_result_is_not() -> None:
    pool = ResultPool()
    held = [pool.empty(SHAPE, np.float32) for _ in range(10)]
    for i, array in enumerate(held):
        array[...] = i
    assert len({_address(a) for a in held}) == 10
    assert [float(a[5, 5]) for a in held] == list(range(10))


def test_a_view_of_a_result_holds_it() -> None:
    pool = ResultPool()
    corner = pool.empty(SHAPE, np.float32)[3:4, ::2].T
    corner[...] = 7
    other = pool.empty(SHAPE, np.float32)
    other[...] = 1
    assert (corner == 7).all()


def test_another_size_or_type_gets_memory_that_fits() -> None:
    pool = ResultPool()
    del (first := {"x": pool.empty(SHAPE, np.float32)})["x"]
    assert pool.empty((511, 1024), np.float32).nbytes == 511 * 1024 * 4
    assert pool.empty((1024, 1024), np.float16).shape == (1024, 1024)
    assert not first


def test_small_results_are_plain_arrays() -> None:
    assert ResultPool().empty((3,), np.float32).base is None


def test_no_memory_for_a_result() -> None:
    with pytest.raises(tflgpu.AllocationError, match="not enough memory for a copy of a result"):
        ResultPool().empty((1 << 40, 1 << 15), np.uint8)


# What callers may say of waiting, of runs' inputs and of pools; anything else is refused in
# words.


MODEL = str(Path(tflgpu.__file__).parent / "demo" / "digits.tflite")
IMAGE = np.zeros((1, 8, 8, 1), np.float32)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), (0, 0.0), (np.float32(0.5), 0.5), (-1, 0.0), (-(10**400), 0.0), (math.inf, None),
    (10**400, None),
     (1e300, None)],
    ids=str,
)  # fmt: skip
def test_timeouts(given: Any, seconds: float | None) -> None:
    assert timeout_of(given) == seconds


@pytest.mark.parametrize("given", ["1", b"1", math.nan, [1], IMAGE], ids=str)
def test_what_is_no_timeout(given: Any) -> None:
    with pytest.raises(ArgumentError, match="a number of seconds or None"):
        timeout_of(given)


def test_runs_and_pools_go_by_it() -> None:
    with allocated(tflgpu.Interpreter(MODEL, experimental_delegates=[])) as interpreter:
        run = interpreter.invoke_async({0: IMAGE})
        with pytest.raises(ArgumentError, match="timeout"):
            run.wait("soon")  # type: ignore[arg-type]
        assert run.wait(math.inf)
        with pytest.raises(InputError, match="values by tensor index"):
            interpreter.invoke_async([IMAGE])  # type: ignore[arg-type]
    with tflgpu.Pool(MODEL, size=1) as pool:
        with pytest.raises(ArgumentError, match="timeout"):
            pool(IMAGE, timeout="soon")  # type: ignore[arg-type]
        assert pool(IMAGE, timeout=math.inf)[0].shape == (1, 10)


def test_pools_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="at most 1024 copies"):
        tflgpu.Pool(MODEL, size=10**9)
    with pytest.raises(OptionError, match="either devices, or the option device"):
        tflgpu.Pool(MODEL, devices=[0], backend="cpu_ref", device=1)


def test_the_shortcut_ends_with_whatever_has_a_say(interpreter: Any) -> None:
    """After a plain run nothing is asked again, until anything but setting and reading comes."""
    busy = interpreter._busy

    def is_armed() -> bool:
        once(interpreter, X)
        once(interpreter, X)
        return busy.shortcut is not None

    assert is_armed()
    view = interpreter.tensor(0)()
    assert busy.shortcut is None
    with pytest.raises(tflgpu.StateError, match="reference to internal data"):
        interpreter.invoke()
    del view
    assert is_armed()
    interpreter.resize_tensor_input(0, [2, 3])
    assert busy.shortcut is None
    with pytest.raises(tflgpu.NotAllocatedError):
        interpreter.invoke()
    interpreter.resize_tensor_input(0, X.shape)
    interpreter.allocate_tensors()
    assert is_armed()
    memory = X.copy()
    interpreter.bind_input(0, memory)
    assert busy.shortcut is None
    memory[...] = 7
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), wanted(memory))
    assert busy.shortcut is None
    interpreter.unbind(0)
    assert is_armed()
    interpreter.close()
    assert busy.shortcut is None
    for call in (interpreter.invoke, partial(interpreter.set_tensor, 0, X)):
        with pytest.raises(tflgpu.StateError, match="closed"):
            call()


def test_a_call_while_a_model_runs_is_refused_by_the_short_way_too(
    interpreter: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(interpreter, X)
    once(interpreter, X)
    session, refused = interpreter._main.session, []
    run = session.run

    def handler() -> None:
        """What a signal's handler may do in the middle of a run."""
        for call in (interpreter.invoke, partial(interpreter.set_tensor, 0, X),
                     partial(interpreter.get_tensor, 3)):  # fmt: skip
            with pytest.raises(tflgpu.StateError) as error:
                call()
            refused.append(str(error.value))
        run()

    monkeypatch.setattr(session, "run", handler)
    interpreter.invoke()
    assert len(refused) == 3
    assert all("inside its own call" in text for text in refused)
    thread_refused = list[str]()

    def other() -> None:
        def by_thread() -> None:
            try:
                interpreter.set_tensor(0, X)
            except tflgpu.StateError as error:
                thread_refused.append(str(error))

        thread = threading.Thread(target=by_thread)
        thread.start()
        thread.join()
        run()

    monkeypatch.setattr(session, "run", other)
    interpreter.invoke()
    assert thread_refused
    assert "another thread" in thread_refused[0]
