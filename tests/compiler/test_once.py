"""What a network repeats is written once in a plan, and printed and compiled once on a device,
however often it is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


def repeated(device: Any) -> Plan:
    """Four convolutions, of which the two in the middle have one kernel."""
    graph = Graph()
    values = [graph.add_value((1, 7, 7, 5), DType.F32) for _ in range(5)]
    graph.inputs, graph.outputs = values[:1], values[-1:]
    attributes = builtin_ops()["CONV_2D"].parse(Fields("CONV_2D", {"stride_h": 1, "stride_w": 1}))
    for i in range(4):
        weights = np.full((5, 1, 1, 5), 1.0 + i, np.float32)
        graph.add_node(
            "CONV_2D", attributes, [values[i], graph.add_const(weights)], [values[i + 1]]
        )
    target = Target.plain(device.caps, Precision.F32, alignment=device.alignment)
    return plan_of(graph.nodes, graph.inputs, graph.outputs, target)


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_compiled_once(backend: str, require_backend: Callable[[str], Any]) -> None:
    require_backend(backend)
    device: Any = registry().open_device(backend, 0, DelegateOptions())
    assert isinstance(device, Device)
    before = device.compiled
    for _ in range(2):
        recording = device.load(repeated(device))
        recording.inputs[0][...] = 1
        recording.run()
        # Five channels of ones go through weights of 1, 2, 3 and 4.
        assert np.array_equal(recording.outputs[0], np.full((1, 7, 7, 5), 5.0**4 * 24))
        recording.close()
    assert device.compiled - before == 3
    device.close()


def test_printed_once(require_backend: Callable[[str], Any]) -> None:
    require_backend("opencl")
    from tflgpu_opencl.device import OpenCLDevice
    from tflgpu_opencl.dialect import OpenCLDialect

    printed: Counter[str] = Counter()

    class Counting:
        def source(self, kernel: Kernel) -> str:
            text = OpenCLDialect().source(kernel)
            printed[text] += 1
            return text

    device = OpenCLDevice(0, dialect=Counting())
    plan = repeated(device)
    device.load(plan).close()
    device.load(plan).close()
    assert len(plan.dispatches) == 4
    assert len(printed) == 3
    assert set(printed.values()) == {1}
    device.close()


def test_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Kernel] = []
    build = Builder.build

    def noted(self: Builder) -> Kernel:
        built.append(build(self))
        return built[-1]

    monkeypatch.setattr(Builder, "build", noted)
    plan = repeated(SimpleNamespace(caps=DeviceCaps(), alignment=64))
    kernels = [dispatch.kernel for dispatch in plan.dispatches]
    assert len(built) == 3
    assert kernels == [built[0], built[1], built[1], built[2]]
