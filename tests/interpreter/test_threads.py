"""Threads that use or close one interpreter."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tflgpu.errors import StateError
from tflgpu.interpreter import Interpreter
from tflgpu.runtime.session import Session

from tests.interpreter import interpreter_models as models
from tests.running import allocated

X = np.array([[1.0, 2.0, 3.0]], np.float32)
Y = (X + models.C) * models.C


def ready(content: bytes | None = None) -> Interpreter:
    return allocated(Interpreter(model_content=content or models.chain()))


def slow_runs(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Runs tell by the first event that they are there, and wait for the second."""
    running, go_on = threading.Event(), threading.Event()
    original = Session.run

    def slow(self: Session) -> None:
        running.set()
        assert go_on.wait(30)
        original(self)

    monkeypatch.setattr(Session, "run", slow)
    return running, go_on


def test_a_second_thread_is_refused_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    running, go_on = slow_runs(monkeypatch)
    interpreter = ready()
    interpreter.set_tensor(0, X)
    runner = interpreter.get_signature_runner()
    thread = threading.Thread(target=interpreter.invoke)
    thread.start()
    try:
        assert running.wait(30)
        for use in (
            interpreter.invoke,
            lambda: interpreter.set_tensor(0, X),
            lambda: interpreter.get_tensor(3),
            lambda: interpreter.resize_tensor_input(0, [2, 3]),
            lambda: runner(image=X),
        ):
            with pytest.raises(StateError, match="another thread is using this interpreter"):
                use()
    finally:
        go_on.set()
        thread.join()
    np.testing.assert_array_equal(interpreter.get_tensor(3), Y)
    interpreter.invoke()


def test_closing_waits_for_the_run_and_lets_nobody_else_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, go_on = slow_runs(monkeypatch)
    interpreter = ready()
    interpreter.set_tensor(0, X)
    threads = [threading.Thread(target=f) for f in (interpreter.invoke, interpreter.close)]
    threads[0].start()
    assert running.wait(30)
    threads[1].start()
    try:
        said, end = "", time.monotonic() + 30
        while "being closed" not in said and time.monotonic() < end:
            with pytest.raises(StateError) as caught:
                interpreter.invoke()
            said = str(caught.value)
        assert said == "this interpreter is being closed by another thread"
        assert threads[1].is_alive()
    finally:
        go_on.set()
        for thread in threads:
            thread.join(30)
    with pytest.raises(StateError, match="this interpreter is closed"):
        interpreter.invoke()


def test_closing_beside_a_loop_of_calls() -> None:
    """The loop leaves no more than an instant between two calls; whoever closes is not kept waiting
    until it ends."""
    interpreter = ready()
    running, stopped = threading.Event(), []

    def loop() -> None:
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                interpreter.invoke()
                running.set()
        except StateError as error:
            stopped.append(str(error))

    thread = threading.Thread(target=loop)
    thread.start()
    assert running.wait(30)
    start = time.monotonic()
    interpreter.close()
    thread.join(30)
    assert time.monotonic() - start < 10
    (said,) = stopped
    assert "closed" in said


def test_threads_may_take_turns() -> None:
    interpreter = ready()
    results: list[np.ndarray] = []

    def work(scale: float) -> None:
        results.append(interpreter.get_signature_runner()(image=X * np.float32(scale))["scores"])

    for scale in (1, 2, 3):
        thread = threading.Thread(target=work, args=(scale,))
        thread.start()
        thread.join()
    for scale, result in zip((1, 2, 3), results, strict=True):
        np.testing.assert_array_equal(result, (X * scale + models.C) * models.C)
