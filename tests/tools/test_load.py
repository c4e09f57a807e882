"""Runs in flight, and threads that call: how many there are, and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tflgpu
from tflgpu.tools.load import by_threads, in_flight, one_by_one

from tests.running import allocated

DIGITS = Path(tflgpu.__file__).parent / "demo" / "digits.tflite"


def test_so_many_runs_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    with allocated(
        tflgpu.Interpreter(DIGITS, experimental_delegates=[], max_in_flight=3)
    ) as interpreter:
        begin, most, ends = interpreter.invoke_async, [], []

        def counted(inputs: dict[int, np.ndarray]) -> object:
            most.append(len(most) - len(ends) + 1)
            invocation = begin(inputs)
            results = invocation.results
            monkeypatch.setattr(invocation, "results", lambda: ends.append(1) or results())
            return invocation

        monkeypatch.setattr(interpreter, "invoke_async", counted)
        image = np.zeros((1, 8, 8, 1), np.float32)
        block = in_flight(interpreter, 3, [{0: image}], least=10)
    assert most == [1, 2, 3, 3, 3, 3, 3, 3, 3, 3]
    assert len(ends) == len(block.times) == 10
    assert block.seconds >= max(block.times)
    assert block.rate == pytest.approx(10 / block.seconds)


def test_threads_make_the_least_calls_each() -> None:
    calls: list[tuple[int, float]] = []

    def call(x: np.ndarray) -> None:
        calls.append((threading.get_ident(), float(x)))

    block = by_threads(one_by_one(call, [[np.float32(n)] for n in range(3)]), 4, least=5)
    assert len({thread for thread, _ in calls}) == 4
    assert len(calls) == len(block.times) >= 20
    assert {x for _, x in calls} == {0, 1, 2}


def test_the_error_of_a_thread_is_raised_and_ends_the_others() -> None:
    def caller(number: int, going: Callable[[int], bool]) -> list[float]:
        if number == 1:
            raise tflgpu.DeviceError("gone")
        while going(0):
            pass
        return []

    with pytest.raises(tflgpu.DeviceError, match="gone"):
        by_threads(caller, 3, least=1)
