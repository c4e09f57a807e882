"""A signal at any step of the interpreter's own code leaves nobody shut out.

The signal is planted at each bytecode in turn. It is handled where Python handles signals, which is
at the next of the places that it has for that, and not where it is planted.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import tflgpu
from tflgpu.interpreter import api
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="knows where CPython handles signals"
)

FOLDER = api.__file__.rsplit("api.py", 1)[0]


class _Signal:
    """``planted[SIGINT]`` has a signal come without handling it: a subscript, unlike a call, is no
    place at which Python does."""

    __getitem__ = staticmethod(_thread.interrupt_main)


_planted = _Signal()


def _interrupted(action: Callable[[], object], at: int) -> tuple[bool, bool]:
    """Run ``action`` with a signal at the ``at``-th bytecode of the interpreter's package.

    Returns:
        Whether there are as many, and whether KeyboardInterrupt came out of the action.
    """
    seen = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes = True
        if event != "opcode":
            return trace
        seen += 1
        if seen <= at:
            return trace
        # No calls from here on: they would handle the signal here.
        sys.settrace(None)
        outer: FrameType | None = frame
        while outer is not None:
            outer.f_trace = None
            outer = outer.f_back
        _planted[signal.SIGINT]
        return None

    before = sys.gettrace()
    came = False
    try:
        sys.settrace(trace)
        try:
            action()
        except tflgpu.errors.StateError:
            pass
        finally:
            sys.settrace(before)
        for _ in range(10):  # one that came at the very end is handled here
            pass
    except KeyboardInterrupt:
        came = True
    return seen > at, came


def _from_another_thread(action: Callable[[], object]) -> str:
    said = []

    def call() -> None:
        try:
            action()
            said.append("")
        except Exception as error:  # noqa: BLE001
            said.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return said[0]


@pytest.fixture
def interpreter() -> Any:
    operators = [OperatorSpec("RELU", {}, [0], [1])]
    content = write_model(
        ModelSpec([TensorSpec("x", (3,)), TensorSpec("y", (3,))], operators, [0], [1])
    )
    made = tflgpu.Interpreter(model_content=content)
    made.allocate_tensors()
    return made


ACTIONS: dict[str, Callable[[tflgpu.Interpreter], object]] = {
    "invoke": lambda i: i.invoke(),
    "get_tensor": lambda i: i.get_tensor(1),
    "tensor": lambda i: i.tensor(0)(),
    "allocate": lambda i: i.allocate_tensors(),
    "details": lambda i: i.get_input_details(),
    "with": lambda i: i.__enter__(),
    "an error inside": lambda i: i.resize_tensor_input(0, [-1]),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("what", ACTIONS)
def test_others_get_in(interpreter: Any, what: str) -> None:
    if what == "an error inside" and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 handles signals between an exception and the end of its `with`")

    def action() -> None:
        try:
            ACTIONS[what](interpreter)
        except tflgpu.errors.InputError:
            assert what == "an error inside"

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        at, came = 0, 0
        while True:
            reached, raised = _interrupted(action, at)
            said = _from_another_thread(interpreter.get_input_details)
            assert not said, f"after a signal at bytecode {at}: {said}"
            if not reached:
                break
            came += raised
            at += 1
        assert at > 8
        assert came >= 0.95 * at  # Python drops what is raised while it removes a weak reference
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_call_of_another_thread_is_refused_and_shuts_nobody_out(interpreter: Any) -> None:
    busy = interpreter._busy
    with busy, busy:
        for at in range(100):
            said = _from_another_thread(interpreter.get_input_details)
            assert said.startswith("StateError: another thread is using this interpreter"), at
            with busy:
                pass
    assert not _from_another_thread(interpreter.get_input_details)


def test_closing_is_interrupted(interpreter: Any) -> None:
    """Once it is closed all threads are told so; before, it can be closed again."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for at in range(10_000):
            reached, _ = _interrupted(interpreter.close, at)
            said = _from_another_thread(interpreter.get_input_details)
            if interpreter._busy.closed:
                assert said == "StateError: this interpreter is closed; make a new one", at
                break
            assert not said, at
            assert reached
        # Whatever comes while somebody is refused: the next one is told the same.
        for at in range(10_000):
            reached, _ = _interrupted(interpreter.invoke, at)
            said = _from_another_thread(interpreter.get_input_details)
            assert said == "StateError: this interpreter is closed; make a new one", at
            if not reached:
                break
    finally:
        signal.signal(signal.SIGINT, handler)
