"""Kernels are named as soon as there are any, before there is a plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler import compile_graph
from tflgpu.compiler import lower as lowering
from tflgpu.compiler.target import Target
from tflgpu.devices.targets import target_on
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.language.budget import cost
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


def products(rows: int = 7) -> Graph:
    """Three products, one of the first one's, and a softmax."""
    graph, rng = Graph(), np.random.default_rng(3)
    x = graph.add_value((rows, 5), DType.F32)
    graph.inputs.append(x)
    for outputs in (5, 9, 11):
        weights = graph.add_const(rng.uniform(-1, 1, (outputs, x.shape[-1])).astype(np.float32))
        y = graph.add_value((rows, outputs), DType.F32)
        parsed = builtin_ops()["FULLY_CONNECTED"].parse(Fields("FULLY_CONNECTED", {}))
        graph.add_node("FULLY_CONNECTED", parsed, [x, weights], [y])
        x = y
    y = graph.add_value(x.shape, DType.F32)
    parsed = builtin_ops()["SOFTMAX"].parse(Fields("SOFTMAX", {"beta": 1.0}))
    graph.add_node("SOFTMAX", parsed, [x], [y])
    graph.outputs.append(y)
    return graph


def test_every_kernel_of_a_plan_is_begun_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    original = lowering._dispatches

    def dispatches(*args: Any) -> Any:
        told.append("makes")
        return original(*args)

    monkeypatch.setattr(lowering, "_dispatches", dispatches)
    target = attrs.evolve(Target.plain(DeviceCaps(), Precision.F32), begin=told.append)
    compiled = compile_graph(products(rows=1 << 17), target)
    (plan,) = compiled.plans
    kernels = [d.kernel for d in plan.dispatches]
    assert len(kernels) >= 4
    # Each comes before the next is made, and all of them at the end once more.
    assert told[: 2 * len(kernels)] == [e for kernel in kernels for e in ("makes", kernel)]
    assert told[2 * len(kernels) :] == sorted(kernels, key=lambda kernel: -cost(kernel))


def test_small_kernels_are_named_when_none_is_joined_to_them_any_more() -> None:
    graph = products()
    for value in [graph.nodes[0].outputs[0]] * 2:
        y = graph.add_value(value.shape, DType.F32)
        parsed = builtin_ops()["LOGISTIC"].parse(Fields("LOGISTIC", {}))
        graph.add_node("LOGISTIC", parsed, [value], [y])
        graph.outputs.append(y)
    told: list[Kernel] = []
    target = attrs.evolve(Target.plain(DeviceCaps(), Precision.F32), begin=told.append)
    (plan,) = compile_graph(graph, target).plans
    assert any(" + " in d.label for d in plan.dispatches)
    # The largest first: a first run waits for it.
    kernels = [d.kernel for d in plan.dispatches]
    assert told == sorted(kernels, key=lambda kernel: -cost(kernel)) != kernels


class _Begins:
    """A device that compiles ahead, or fails at that."""

    alignment = 16
    info = SimpleNamespace(backend="cpu_ref")

    def __init__(self) -> None:
        self.begun: list[Kernel] = []

    def begin(self, kernel: Kernel) -> None:
        self.begun.append(kernel)
        raise RuntimeError("it has no compiler")


def test_a_device_is_told_whose_fault_stays_its_own() -> None:
    device: Any = _Begins()
    target = target_on(
        device, DeviceCaps(), registry(), DelegateOptions(), broken_rules={},
        spares_broken_rules=False,
    )  # fmt: skip
    compiled = compile_graph(products(), target)
    kernels = {id(d.kernel) for plan in compiled.plans for d in plan.dispatches}
    assert kernels
    assert {id(kernel) for kernel in device.begun} == kernels
