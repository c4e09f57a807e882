"""What goes wrong inside LiteRT comes out of the call that was made, with a message; nothing is
lost."""

from __future__ import annotations

import gc
import logging
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.contract.leaks import leak
from tflgpu.hosts import callbacks
from tflgpu.hosts.kernel import SubsetKernel
from tflgpu.hosts.litert import LiteRtHost
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.hosts.host_models import chain, host, litert, plain, run
from tests.running import allocated, raising

pytestmark = pytest.mark.usefixtures("left_out")
X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
MODEL = chain("ABS", "NEG")


@pytest.fixture
def delegate() -> Any:
    with tflgpu.GpuDelegate(backend="cpu_ref") as made:
        yield made


def broken(*_: Any) -> Any:
    raise ZeroDivisionError("100 %s of the numbers")


SAYS = "tflgpu: ZeroDivisionError: 100 %s of the numbers"


def test_an_exception_while_choosing(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiteRtHost, "choose", broken)
    with pytest.raises(RuntimeError, match=SAYS):
        host(MODEL, delegate)
    assert callbacks.live_kernels() == 0


def test_an_exception_in_init(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    host(MODEL, delegate)  # a process's first delegate finds out how LiteRT lays out its data
    monkeypatch.setattr(callbacks, "_kernels", None)
    with pytest.raises(RuntimeError, match=r"tflgpu: .*NoneType"):
        host(MODEL, delegate)


def test_an_exception_in_prepare(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SubsetKernel, "prepare", broken)
    with pytest.raises(RuntimeError, match=SAYS):
        host(MODEL, delegate)
    gc.collect()
    assert callbacks.live_kernels() == 0


def test_an_exception_in_invoke(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = host(MODEL, delegate)
    monkeypatch.setattr(SubsetKernel, "invoke", broken)
    with pytest.raises(RuntimeError, match=SAYS):
        run(interpreter, X)
    monkeypatch.undo()
    np.testing.assert_array_equal(run(interpreter, X), [-np.abs(X)])


def test_an_exception_in_free(
    delegate: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LiteRT's function for it has no way to say so; the log does."""
    interpreter = host(MODEL, delegate)
    monkeypatch.setattr(SubsetKernel, "close", broken)
    with caplog.at_level(logging.ERROR, "tflgpu"):
        del interpreter
    assert "could not be released" in caplog.text
    assert "100 %s of the numbers" in caplog.text
    assert callbacks.live_kernels() == 0


def test_ctrl_c_in_a_run_is_asked_again(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = host(MODEL, delegate)

    monkeypatch.setattr(SubsetKernel, "invoke", raising(KeyboardInterrupt))
    # A shell lets what it starts in the background ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def attempt() -> None:
        try:
            interpreter.invoke()
        except RuntimeError as error:
            assert "KeyboardInterrupt" in str(error)
        end = time.monotonic() + 60
        while time.monotonic() < end:  # until it is asked again
            pass

    try:
        with pytest.raises(KeyboardInterrupt):
            attempt()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_long_message_is_cut(delegate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = host(MODEL, delegate)
    monkeypatch.setattr(SubsetKernel, "invoke", raising(tflgpu.DeviceError("é" * 5000)))
    with pytest.raises(RuntimeError, match="tflgpu: éééé"):
        interpreter.invoke()


def test_a_closed_delegate() -> None:
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
    interpreter = host(MODEL, delegate)
    run(interpreter, X)
    delegate.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            run(interpreter, X)
    with pytest.raises(tflgpu.StateError, match="this delegate is closed"):
        host(MODEL, delegate)


def test_a_run_that_ended_in_the_middle() -> None:
    """By a signal, say. The session cannot run again, so the next run opens another."""
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        interpreter = host(MODEL, delegate)
        run(interpreter, X)
        (kernel,) = [k for k, _ in callbacks._kernels.values() if isinstance(k, SubsetKernel)]
        session = kernel._session
        session._running = session.parts[0]
        assert session.is_broken
        np.testing.assert_array_equal(run(interpreter, X), [-np.abs(X)])
        assert kernel._session is not session
        assert session.is_closed
        assert len(kernel._sessions) == 1
        del interpreter, kernel


def test_refusals_where_nothing_may_fall_back() -> None:
    fields = {"FAKE_QUANT": {"min": 0.0, "max": 4.0, "num_bits": 8}}
    model = chain("ABS", "FAKE_QUANT", fields=fields)
    with tflgpu.GpuDelegate(backend="cpu_ref", allow_fallback=False) as delegate:
        with pytest.raises(RuntimeError, match=r"#1 FAKE_QUANT: op FAKE_QUANT is not defined"):
            host(model, delegate)
        run(host(MODEL, delegate), X)
    gc.collect()
    assert callbacks.live_kernels() == 0


def test_limits_on_parts() -> None:
    fields = {"FAKE_QUANT": {"min": 0.0, "max": 4.0, "num_bits": 8}}
    model = chain("ABS", "EXP", "FAKE_QUANT", "NEG", fields=fields)
    for options, taken, says in (
        ({"min_nodes_per_partition": 2}, 2, "has 1 nodes, fewer than 2"),
        ({"max_delegated_partitions": 1}, 2, "at most 1 parts are delegated"),
    ):
        with tflgpu.GpuDelegate(backend="cpu_ref", **options) as delegate:
            got = run(host(model, delegate), X)
            (report,) = delegate.reports
            assert (report.delegated_nodes, report.partitions) == (taken, 1)
            assert says in report.refusals[-1].reason
            np.testing.assert_allclose(got, run(plain(model), X), atol=4 / 255)


def test_a_device_that_fails_to_load_leaves_the_nodes(
    delegate: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise tflgpu.DeviceError("out of memory")

    monkeypatch.setattr(type(delegate.device), "load_nodes", refuse, raising=False)
    monkeypatch.setattr("tflgpu.hosts.subsets.open_whole", refuse)
    with caplog.at_level(logging.WARNING, "tflgpu"):
        interpreter = host(MODEL, delegate)
    np.testing.assert_array_equal(run(interpreter, X), [-np.abs(X)])
    assert {r.reason for r in delegate.reports[0].refusals} == {"out of memory"}
    assert "stay with LiteRT" in caplog.text


def test_new_shapes_that_the_device_refuses(
    delegate: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LiteRT takes no node back, so NumPy runs them, with a warning."""
    interpreter = host(MODEL, delegate)
    run(interpreter, X)

    monkeypatch.setattr("tflgpu.hosts.subsets.open_whole", raising(tflgpu.DeviceError("too large")))
    interpreter.resize_tensor_input(0, (3, 5))
    with caplog.at_level(logging.WARNING, "tflgpu"):
        interpreter.allocate_tensors()
    assert "by NumPy" in caplog.text
    x = np.vstack([X, X[:1]])
    np.testing.assert_array_equal(run(interpreter, x), [-np.abs(x)])


def test_several_interpreters_and_delegates() -> None:
    fields = {"FAKE_QUANT": {"min": 0.0, "max": 4.0, "num_bits": 8}}
    model = chain("ABS", "EXP", "FAKE_QUANT", "NEG", fields=fields)
    expected = run(plain(model), X)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", max_delegated_partitions=1) as first,
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as second,
    ):
        both = host(model, first, second)
        assert [r.delegated_nodes for r in (*first.reports, *second.reports)] == [2, 1]
        assert second.reports[0].refusals[0].reason == "another delegate has taken it"
        again = host(model, first)
        for _ in range(2):
            for interpreter in (both, again):
                np.testing.assert_allclose(run(interpreter, X), expected, atol=4 / 255)


def test_threads_with_interpreters_of_their_own() -> None:
    failures: list[BaseException] = []
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:

        def work(seed: int) -> None:
            try:
                interpreter = host(MODEL, delegate)
                rng = np.random.default_rng(seed)
                for _ in range(20):
                    x = rng.standard_normal((2, 5)).astype(np.float32)
                    np.testing.assert_array_equal(run(interpreter, x), [-np.abs(x)])
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    gc.collect()
    assert callbacks.live_kernels() == 0


WHILE_PYTHON_RUNS = """
delegate, interpreter = made(); del delegate, interpreter
delegate, interpreter = made(); del interpreter, delegate
delegate, interpreter = made()
delegates.clear(); del delegate; gc.collect(); check(interpreter); del interpreter
delegate, interpreter = made(); delegate.close(); del interpreter
delegate, interpreter = made(); cycle = [interpreter, delegate]; cycle.append(cycle)
del cycle, interpreter, delegate; gc.collect()
delegate, interpreter = made(); delegates.clear(); del delegate; gc.collect()
interpreter.resize_tensor_input(0, (4, 5)); interpreter.allocate_tensors(); interpreter.invoke()
del interpreter
from tflgpu.hosts.callbacks import live_kernels
assert live_kernels() == 0
"""
FIRST_IN_THREADS = """
import sys, threading
sys.path[:] = {path!r}
import numpy as np, tflgpu
from ai_edge_litert.interpreter import Interpreter
at_once, results = threading.Barrier(6), []
shared = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
def work(own):
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1) if own else shared
    at_once.wait()
    interpreter = Interpreter(model_content={model!r}, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.full((2, 5), -3, np.float32))
    interpreter.invoke()
    results.append(interpreter.get_tensor(2).ravel().tolist())
threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert results == [[-3.0] * 10] * 6
"""


def test_the_first_delegates_of_a_process_in_threads() -> None:
    """What is made once a process is made once."""
    program = FIRST_IN_THREADS.format(path=sys.path, model=MODEL)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


ORDERS = {
    "while_python_runs": WHILE_PYTHON_RUNS,
    "never": "delegate, interpreter = made()",
    "kept_by_a_module": "import string; string.kept = made()",
    "in_a_thread": (
        "delegate, interpreter = made(); threading.Thread(target=check, "
        "args=(interpreter,)).start()"
    ),
}
PROGRAM = """
import gc, sys, threading
sys.path[:] = {path!r}
import numpy as np, tflgpu
from ai_edge_litert.interpreter import Interpreter
delegates = []
def check(interpreter):
    interpreter.set_tensor(0, np.full((2, 5), -3, np.float32))
    interpreter.invoke()
    assert interpreter.get_tensor(2).ravel().tolist() == [-3] * 10
def made():
    delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1)
    delegates[:] = [delegate]
    interpreter = Interpreter(model_content={model!r}, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    check(interpreter)
    return delegate, interpreter
{order}
print("done")
"""


@pytest.mark.parametrize("order", ORDERS)
def test_teardown_in_any_order(order: str) -> None:
    program = PROGRAM.format(path=sys.path, model=MODEL, order=ORDERS[order])
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
    assert "Traceback" not in done.stderr


def test_delegates_are_released_with_their_interpreters() -> None:
    delegate = tflgpu.GpuDelegate(backend="cpu_ref")
    gone = weakref.ref(delegate.provider)
    delegates = [delegate]
    interpreter = allocated(
        litert.Interpreter(model_content=MODEL, experimental_delegates=delegates)
    )
    delegates.clear()
    del delegate
    assert gone() is not None
    assert callbacks.live_kernels() == 1
    np.testing.assert_array_equal(run(interpreter, X), [-np.abs(X)])
    del interpreter
    assert gone() is None  # at once, without the collector of cycles
    assert callbacks.live_kernels() == 0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")
@pytest.mark.parametrize("new_delegates", [False, True])
def test_interpreters_come_and_go(new_delegates: bool) -> None:
    """Each has 1 MiB of constants, which must not stay."""
    table = np.ones((1 << 18,), np.float32)
    shapes = [TensorSpec("x", table.shape), TensorSpec("c", table.shape, data=table)]
    model = write_model(
        ModelSpec(
            [*shapes, TensorSpec("y", table.shape)], [OperatorSpec("ADD", {}, (0, 1), (2,))],
            (0,), (2,),
        )
    )  # fmt: skip
    kept = tflgpu.GpuDelegate(backend="cpu_ref", device=1)

    def turn() -> None:
        delegate = tflgpu.GpuDelegate(backend="cpu_ref", device=1) if new_delegates else kept
        interpreter = host(model, delegate)
        interpreter.invoke()
        del interpreter
        if new_delegates:
            delegate.close()

    assert leak(turn, "interpreters", 8, 12, 6 << 20) is None
    assert callbacks.live_kernels() == 0
    kept.close()
