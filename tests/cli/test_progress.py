"""Somebody who waits is told how far it is: by a callback, on a terminal, and in a pipe."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.cli import console
from tflgpu.errors import OptionError
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

BACKENDS = ["opencl", "vulkan", "wgpu"]


def two_products() -> bytes:
    """Matrix products of two sizes, so that there are two kernels."""
    tensors = [
        TensorSpec("x", (3, 7)), TensorSpec("v", (5, 7), data=np.ones((5, 7), np.float32)),
        TensorSpec("t", (3, 5)), TensorSpec("w", (11, 5), data=np.ones((11, 5), np.float32)),
        TensorSpec("y", (3, 11)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("FULLY_CONNECTED", {}, (0, 1, -1), (2,)),
        OperatorSpec("FULLY_CONNECTED", {}, (2, 3, -1), (4,)),
    ]
    return write_model(ModelSpec(tensors, operators, (0,), (4,)))


def prepared(backend: str, progress: Callable[[int, int], object]) -> None:
    with (
        tflgpu.GpuDelegate(backend=backend, progress=progress) as delegate,
        tflgpu.Interpreter(
            model_content=two_products(), experimental_delegates=[delegate]
        ) as interpreter,
    ):
        interpreter.allocate_tensors()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_callback_is_told_of_every_kernel(
    backend: str, require_backend: Callable[[str], Any]
) -> None:
    require_backend(backend)
    said: list[tuple[int, int]] = []
    prepared(backend, lambda ready, whole: said.append((ready, whole)))
    assert said == [(0, 2), (1, 2), (2, 2)]


def test_a_callback_that_fails_stops_nothing(
    require_backend: Callable[[str], Any], caplog: pytest.LogCaptureFixture
) -> None:
    require_backend("vulkan")
    called = []

    def broken(ready: int, whole: int) -> None:
        called.append(ready)
        raise ValueError("the screen is gone")

    with caplog.at_level(logging.WARNING):
        prepared("vulkan", broken)
    assert called == [0]
    assert sum("the screen is gone" in r.getMessage() for r in caplog.records) == 1


def test_what_is_no_function_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(OptionError, match="function"):
        tflgpu.GpuDelegate(backend="cpu_ref", progress=wrong)


def test_a_pipe_hears_of_it_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_SILENCE", 0.05)
    with console.working("compiling"):
        console.kernels(3, 7)
        time.sleep(0.3)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert lines[0] == "compiling: 3 of 7 kernels ..."
    assert 2 <= len(lines) <= 7
    assert not captured.out


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with console.working("compiling"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_has_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    with console.working("preparing"):
        console.kernels(3, 7)
        time.sleep(0.5)
    assert "3 of 7 kernels" in capsys.readouterr().err
