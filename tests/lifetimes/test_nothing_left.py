"""Models that are opened and closed leave nothing: neither objects of ours nor of the driver."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit import kernel_cache
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

MODELS = 8
#: Backends that compile kernels.
COMPILING = ("opencl", "vulkan", "wgpu")
#: What a model is made of while it is in use.
KINDS = (
    "Interpreter", "Subgraph", "Session", "SessionMemory", "LoadedPart", "Compiled", "Plan",
    "PlannedDispatch", "Graph", "Node", "Value", "ModelFile", "Kernel", "Launch", "Bound", "Region",
    "Memory", "PooledMemory", "NodeRun", "ReferenceRecording", "CheckedLender", "CheckedRecording",
    "CpuRefRecording", "OpenCLRecording", "VulkanRecording", "WgpuRecording", "GPUBuffer",
    "GPUBindGroup", "CommandQueue", "Buffer",
)  # fmt: skip


def model(number: int) -> bytes:
    """Two kernels of different sizes in each."""
    shape, scale = (1, 3 + number % 7, 5), np.float32(1 + number)
    tensors = [
        TensorSpec("x", shape), TensorSpec("c", (), data=scale), TensorSpec("m", shape),
        TensorSpec("y", shape),
    ]  # fmt: skip
    operators = [
        OperatorSpec("MUL", {}, [0, 1], [2]),
        OperatorSpec("SOFTMAX", {"beta": 1 + number / 100}, [2], [3]),
    ]
    return write_model(ModelSpec(tensors, operators, [0], [3]))


def use(delegate: tflgpu.GpuDelegate, number: int) -> None:
    with tflgpu.Interpreter(
        model_content=model(number), experimental_delegates=[delegate]
    ) as interpreter:
        interpreter.allocate_tensors()
        interpreter.invoke()
        sums = interpreter.get_tensor(3).sum(2)
        np.testing.assert_allclose(sums, np.ones_like(sums), rtol=1e-5)


def living() -> Counter[str]:
    """Objects of `KINDS`, by name."""
    gc.collect()
    names = (type(o).__qualname__ for o in gc.get_objects())
    return Counter(name for name in names if name in KINDS)


@pytest.mark.parametrize("backend", ["cpu_ref", *COMPILING])
def test_models_leave_nothing(backend: str, require_backend: Callable[[str], Any]) -> None:
    require_backend(backend)
    index = 1 if backend == "cpu_ref" else 0
    with tflgpu.GpuDelegate(backend=backend, device=index, allow_fallback=False) as delegate:
        use(delegate, 0)
        before = living()
        context = _references(delegate)
        for number in range(MODELS):
            use(delegate, number)
        assert living() - before == Counter()
        held = tflgpu.Interpreter(model_content=model(0), experimental_delegates=[delegate])
        held.allocate_tensors()
        assert {"Interpreter", "Session", "Kernel"} <= (living() - before).keys()
        held.close()
        del held
        assert living() - before == Counter()
        # Drivers count for themselves what hangs on a context: buffers, queues, kernels, programs.
        # Programs are kept, some at a time.
        assert _references(delegate) <= context + 2 * MODELS
    del delegate
    assert living() - before == Counter()


def _references(delegate: tflgpu.GpuDelegate) -> int:
    """How often an OpenCL driver says that the device's context is in use; 0 of other devices."""
    device: Any = delegate.device
    if device.info.backend != "opencl":
        return 0
    import pyopencl as cl

    return int(device.inner._context.get_info(cl.context_info.REFERENCE_COUNT))


@pytest.mark.parametrize("backend", COMPILING)
def test_what_is_compiled_is_forgotten_in_the_end(
    backend: str, require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is open for days must not keep the programs of every model that it ever ran."""
    require_backend(backend)
    monkeypatch.setattr(kernel_cache, "KEPT", 4)
    with tflgpu.GpuDelegate(backend=backend, allow_fallback=False) as delegate:
        device: Any = delegate.device
        programs = device.inner._kernels._made
        # One that stays open: what it uses is forgotten, and it goes on.
        with tflgpu.Interpreter(
            model_content=model(99), experimental_delegates=[delegate]
        ) as first:
            first.allocate_tensors()
            made, references = [], []
            for number in range(12):
                use(delegate, number)
                made.append(len(programs))
                references.append(_references(delegate))
                first.invoke()
            assert max(made) <= 4 + 2, made
            assert references[-1] <= references[5], references
            first.set_tensor(0, np.ones((1, 3 + 99 % 7, 5), np.float32))
            first.invoke()
            np.testing.assert_allclose(first.get_tensor(3), np.full((1, 4, 5), 0.2), rtol=1e-5)
        use(delegate, 99)
        forgotten = getattr(device.inner._kernels, "_forgotten", [])
        assert len(forgotten) <= 4  # destroyed, where that is up to us
