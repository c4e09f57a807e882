"""A signal at any step of the interpreter's own code: the next call of its thread works, and then
others do.

The signal is planted at each bytecode in turn. It is handled where Python handles signals, which is
at the next of the places that it has for that, and not where it is planted.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import tflgpu
from tflgpu.conformance.contract.signals import Interruption, SignalResult, handled, interrupted
from tflgpu.errors import StateError
from tflgpu.interpreter import api
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

pytestmark = pytest.mark.skipif(
    sys.implementation.name != "cpython", reason="knows where CPython handles signals"
)

FOLDER = api.__file__.rsplit("api.py", 1)[0]


def _interrupted(action: Callable[[], object], at: int) -> SignalResult:
    """With a signal at the ``at``-th bytecode of the interpreter's package."""
    planted = interrupted(action, at, within=FOLDER, event="opcode")
    assert isinstance(planted.error, (Interruption, StateError, type(None))), planted.error
    return planted


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
    # Python 3.12 tells the first trace function of a process of no bytecodes.
    _interrupted(made.get_input_details, sys.maxsize)
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

    with handled():
        at, came = 0, 0
        while True:
            planted = _interrupted(action, at)
            interpreter.get_input_details()
            said = _from_another_thread(interpreter.get_input_details)
            assert not said, f"after a signal at bytecode {at}: {said}"
            if not planted.reached:
                break
            came += isinstance(planted.error, Interruption)
            at += 1
        assert at > 8
        assert came >= 0.95 * at  # Python drops what is raised while it removes a weak reference


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
    with handled():
        for at in range(10_000):
            planted = _interrupted(interpreter.close, at)
            said = _from_another_thread(interpreter.get_input_details)
            if interpreter._busy.closed:
                assert said == "StateError: this interpreter is closed; make a new one", at
                break
            assert not said, at
            assert planted.reached
        # Whatever comes while somebody is refused: the next one is told the same.
        for at in range(10_000):
            planted = _interrupted(interpreter.invoke, at)
            said = _from_another_thread(interpreter.get_input_details)
            assert said == "StateError: this interpreter is closed; make a new one", at
            if not planted.reached:
                break
