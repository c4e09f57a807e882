"""A grouped convolution of few wide groups on a GPU: each group is a product of its own, and what
follows the convolution still joins its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.language.caps import DeviceCaps
from tflgpu.plugins.registry import registry
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

GPU = DeviceCaps(is_gpu=True, shared_bytes=48 << 10, compute_units=132, subgroup_shuffle=32)
SHAPE, FILTER = (1, 5, 7, 64), (72, 3, 3, 32)
_OPTIONS = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}


def _model() -> bytes:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=FILTER).astype(np.float32)
    bias = rng.normal(size=FILTER[:1]).astype(np.float32)
    out = (*SHAPE[:3], FILTER[0])
    shapes = [SHAPE, FILTER, FILTER[:1], out, out, out]
    data = [None, weights, bias, None, None, None]
    pairs = zip(shapes, data, strict=True)
    tensors = [TensorSpec(f"t{i}", shape, data=d) for i, (shape, d) in enumerate(pairs)]
    operators = [
        OperatorSpec("CONV_2D", {"padding": 0, **_OPTIONS}, [0, 1, 2], [3]),
        OperatorSpec("ADD", {}, [3, 4], [5]),
    ]
    return write_model(ModelSpec(tensors, operators, [0, 4], [5]))


def _run(content: bytes, delegates: Any) -> Any:
    rng = np.random.default_rng(6)
    with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        interpreter.allocate_tensors()
        for detail in interpreter.get_input_details():
            value = rng.normal(size=detail["shape"]).astype(np.float32)
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize("caps", [GPU, attrs.evolve(GPU, compute_units=1)], ids=["large", "small"])
def test_wide_groups_are_tiled_products(caps: DeviceCaps, monkeypatch: pytest.MonkeyPatch) -> None:
    content = _model()
    expected = _run(content, None)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        monkeypatch.setattr(OpenedDevice, "caps", caps)
        graph = build_graph(read_model(content), 0, registry().ops(), {})
        (plan,) = compiled_on(graph, delegate.provider).plans
        names = [d.kernel.name for d in plan.dispatches]
        assert len(names) == 2
        assert all("gemm" in name for name in names), names
        got = _run(content, [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_it_is_right_on_devices(backend: str, require_backend: Callable[[str], Any]) -> None:
    require_backend(backend)
    content = _model()
    expected = _run(content, None)
    with tflgpu.GpuDelegate(backend=backend, device=int(backend == "cpu_ref")) as delegate:
        got = _run(content, [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-2, atol=5e-2)
