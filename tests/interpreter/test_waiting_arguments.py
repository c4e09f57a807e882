"""What callers may say of waiting, of runs' inputs and of pools; anything else is refused in
words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ArgumentError, InputError, OptionError
from tflgpu.interpreter.arguments import timeout_of

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
    with tflgpu.Interpreter(MODEL, experimental_delegates=[]) as interpreter:
        interpreter.allocate_tensors()
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
