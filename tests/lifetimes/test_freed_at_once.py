"""What nobody has any more is freed at once: memory of a GPU does not wait for Python's collector,
and starts do not meet the garbage of those before them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.conformance.plans import affine
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

BACKENDS = ("cpu_ref", "opencl", "vulkan", "wgpu")
MODEL = write_model(
    ModelSpec(
        [TensorSpec("x", (1, 4)), TensorSpec("y", (1, 4))],
        [OperatorSpec("TANH", {}, (0,), (1,))], (0,), (1,),
    )
)  # fmt: skip


#: Its state is a variable, so that it runs in pieces.
STREAM = write_model(
    ModelSpec(
        [
            TensorSpec("x", (1, 4)), TensorSpec("handle", (), DType.RESOURCE),
            TensorSpec("h", (1, 4)), TensorSpec("y", (1, 4)),
        ],
        [
            OperatorSpec("CALL_ONCE", {"init_subgraph_index": 1}, [], []),
            OperatorSpec("VAR_HANDLE", {"shared_name": "h"}, [], [1]),
            OperatorSpec("READ_VARIABLE", {}, [1], [2]),
            OperatorSpec("ADD", {}, [0, 2], [3]),
            OperatorSpec("ASSIGN_VARIABLE", {}, [1, 3], []),
        ],
        [0], [3],
        subgraphs=[
            SubgraphSpec(
                [
                    TensorSpec("handle", (), DType.RESOURCE),
                    TensorSpec("start", (1, 4), data=np.zeros((1, 4), np.float32)),
                ],
                [
                    OperatorSpec("VAR_HANDLE", {"shared_name": "h"}, [], [0]),
                    OperatorSpec("ASSIGN_VARIABLE", {}, [0, 1], []),
                ],
                [], [], "init",
            )
        ],
    )
)  # fmt: skip


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _used(delegate: Any) -> Interpreter:
    interpreter = Interpreter(model_content=MODEL, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones((1, 4), np.float32))
    interpreter.invoke()
    assert (interpreter.get_tensor(1) > 0.7).all()
    return interpreter


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("closes", [True, False])
def test_interpreters_and_devices(
    backend: str, closes: bool, require_backend: Callable[[str], Any], without_collector: None
) -> None:
    require_backend(backend)
    delegate = GpuDelegate(backend=backend, enable_serialization=False)
    interpreter = _used(delegate)
    assert interpreter.report.fully_delegated
    device, session = delegate.device, interpreter._main.session
    kept = [weakref.ref(each) for each in (delegate, interpreter, session, device, device.inner)]
    if closes:
        interpreter.close()
        delegate.close()
    del delegate, interpreter, device, session
    assert [ref() for ref in kept] == [None] * len(kept)


def _streams(delegate: Any) -> Interpreter:
    interpreter = Interpreter(model_content=STREAM, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    for _ in range(2):
        interpreter.set_tensor(0, np.ones((1, 4), np.float32))
        interpreter.invoke()
    assert (interpreter.get_tensor(3) == 2).all()
    return interpreter


def _has_run_aside(delegate: Any) -> Interpreter:
    interpreter = _used(delegate)
    runs = [interpreter.invoke_async({0: np.full((1, 4), k, np.float32)}) for k in range(3)]
    assert [round(float(run.results()[0][0, 0]), 2) for run in runs] == [0, 0.76, 0.96]
    return interpreter


@pytest.mark.parametrize("use", [_streams, _has_run_aside])
@pytest.mark.parametrize("closes", [True, False])
def test_other_ways_to_run(
    use: Callable[[Any], Interpreter], closes: bool, require_backend: Callable[[str], Any],
    without_collector: None,
) -> None:  # fmt: skip
    require_backend("opencl")
    delegate = GpuDelegate(backend="opencl", enable_serialization=False)
    interpreter = use(delegate)
    kept = [weakref.ref(each) for each in (delegate, interpreter, delegate.device)]
    if closes:
        interpreter.close()
        delegate.close()
    del delegate, interpreter
    assert [ref() for ref in kept] == [None] * len(kept)


def test_starts_from_what_was_kept(
    require_backend: Callable[[str], Any], tmp_path: Path, without_collector: None
) -> None:
    require_backend("opencl")
    for is_kept in (False, True):
        delegate = GpuDelegate(backend="opencl", serialization_dir=str(tmp_path), model_token="it")
        assert any(tmp_path.rglob("*.tflgpu")) is is_kept
        interpreter = _used(delegate)
        kept = [weakref.ref(each) for each in (delegate, interpreter, delegate.device)]
        kept.append(weakref.ref(interpreter._model))
        del delegate, interpreter
        assert [ref() for ref in kept] == [None] * len(kept)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_kernels_that_were_printed(
    backend: str, require_backend: Callable[[str], Any], without_collector: None
) -> None:
    require_backend(backend)
    with GpuDelegate(backend=backend) as delegate:
        kernel = affine(4)
        assert kernel.name in delegate.device.source(kernel)  # type: ignore[attr-defined]
        kept = weakref.ref(kernel)
        del kernel
        assert kept() is None


def test_a_closed_device_has_no_context(
    require_backend: Callable[[str], Any], without_collector: None
) -> None:
    require_backend("opencl")
    with GpuDelegate(backend="opencl", enable_serialization=False) as delegate:
        interpreter = _used(delegate)
        context = weakref.ref(delegate.device.inner._context)
        interpreter.close()
    assert context() is None
    assert delegate.device is not None
