"""Delegates of all backends that run kernels, and interpreters on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tflgpu

from tests.interpreter import interpreter_models as models
from tests.interpreter.buffer_helpers import DEVICES, SHAPE, Open


@pytest.fixture(scope="module", params=DEVICES)
def delegate(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[tflgpu.GpuDelegate]:
    require_backend(request.param)
    with tflgpu.GpuDelegate(backend=request.param, device=DEVICES[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def reference() -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as made:
        yield made


@pytest.fixture
def opened() -> Iterator[Open]:
    """``opened(delegate, model)``: allocated, `chain` at `SHAPE` without a model."""
    made: list[tflgpu.Interpreter] = []

    def make(delegate: Any, model: bytes | None = None) -> tflgpu.Interpreter:
        delegates = [] if delegate is None else [delegate]
        content = model or models.chain()
        found = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
        made.append(found)
        if model is None:
            found.resize_tensor_input(0, SHAPE)
        found.allocate_tensors()
        return found

    yield make
    for each in made:
        each.close()


@pytest.fixture
def one(opened: Open, reference: tflgpu.GpuDelegate) -> tflgpu.Interpreter:
    """`chain` on the kernel interpreter."""
    return opened(reference)
