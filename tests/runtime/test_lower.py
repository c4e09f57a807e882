"""From a partition to a plan: grouping, aliases, layouts; and the numbers that come out."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import OutputRef, Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

F32 = DType.F32


class Net:
    """A graph under construction."""

    def __init__(self) -> None:
        self.graph = Graph()

    def input(self, *shape: int) -> Value:
        value = self.graph.add_value(shape, F32)
        self.graph.inputs.append(value)
        return value

    def op(self, name: str, inputs: list[Value], shape: tuple[int, ...], **fields: object) -> Value:
        out = self.graph.add_value(shape, F32)
        attributes = builtin_ops()[name].parse(Fields(name, fields))
        self.graph.add_node(name, attributes, inputs, [out])
        return out

    def conv(self, x: Value, channels: int) -> Value:
        rng = np.random.default_rng(x.id)
        weights = rng.uniform(-1, 1, (channels, 1, 1, x.shape[-1])).astype(np.float32)
        out = (*x.shape[:-1], channels)
        filter_ = self.graph.add_const(weights)
        return self.op("CONV_2D", [x, filter_], out, stride_h=1, stride_w=1)

    def plan(self, *outputs: Value, fuse: bool = True, caps: DeviceCaps | None = None) -> Plan:
        graph = self.graph
        graph.outputs = list(outputs)
        target = Target.plain(caps or DeviceCaps(), Precision.F32, alignment=256)
        return plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))

    def expected(self, *arrays: Array) -> list[Array]:
        env = {v.id: a for v, a in zip(self.graph.inputs, arrays, strict=True)}
        env |= {v.id: v.data for v in self.graph.values.values() if v.data is not None}
        for node in self.graph:
            operands = [None if v is None else env[v.id] for v in node.inputs]
            results = builtin_ops()[node.op].reference(node.attrs, operands)
            env |= {v.id: a for v, a in zip(node.outputs, results, strict=True)}
        return [env[v.id] for v in self.graph.outputs]


@pytest.fixture
def net() -> Net:
    return Net()


def _run(device: Device, net: Net, plan: Plan) -> None:
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(-1, 1, v.shape).astype(np.float32) for v in net.graph.inputs]
    for got, expected in zip(by_plan(device, plan, *arrays), net.expected(*arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_chain_joins_the_store_of_its_producer(device: Device, net: Net) -> None:
    x = net.input(1, 3, 5, 6)
    y = net.conv(x, 7)
    z = net.op(
        "RELU", [net.op("ADD", [net.op("NEG", [y], y.shape), x_like(net, y)], y.shape)], y.shape
    )
    plan = net.plan(z)
    assert [d.label for d in plan.dispatches] == ["#new CONV_2D + #new NEG + #new ADD + #new RELU"]
    assert plan.arena_bytes == 0
    _run(device, net, plan)


def x_like(net: Net, value: Value) -> Value:
    """Another input of the same shape."""
    return net.input(*value.shape)


def test_fused_and_unfused_agree(device: Device, net: Net) -> None:
    x = net.input(2, 3, 4, 5)
    a, b = net.conv(x, 9), net.conv(x, 9)
    total = net.op("TANH", [net.op("ADD", [a, b], a.shape)], a.shape)
    fused, apart = net.plan(total), net.plan(total, fuse=False)
    assert (len(fused.dispatches), len(apart.dispatches)) == (2, 4)
    _run(device, net, fused)
    _run(device, net, apart)


def test_a_value_with_two_readers_is_not_swallowed(device: Device, net: Net) -> None:
    x = net.input(1, 2, 3, 4)
    y = net.conv(x, 8)
    plan = net.plan(net.op("RELU", [y], y.shape), net.op("NEG", [y], y.shape))
    assert len(plan.dispatches) == 3
    _run(device, net, plan)


def test_an_output_in_the_middle_of_a_chain_is_kept(device: Device, net: Net) -> None:
    x = net.input(1, 2, 3, 4)
    y = net.conv(x, 8)
    plan = net.plan(y, net.op("RELU", [y], y.shape))
    assert len(plan.dispatches) == 2
    _run(device, net, plan)


def test_broadcast_operands_join_but_a_growing_result_does_not(device: Device, net: Net) -> None:
    x = net.input(2, 3, 5, 6)
    vector = net.input(6)
    grown = net.input(4, 2, 3, 5, 6)
    y = net.op("MUL", [net.conv(x, 6), vector], (2, 3, 5, 6))
    z = net.op("ADD", [grown, y], (4, 2, 3, 5, 6))
    plan = net.plan(z)
    assert len(plan.dispatches) == 2
    _run(device, net, plan)


@pytest.mark.parametrize(("channels", "is_free"), [(8, True), (6, False)])
def test_a_reshape_is_free_where_the_bytes_agree(
    device: Device, channels: int, is_free: bool, net: Net
) -> None:
    """Elsewhere the convolution behind it reads each element where it is."""
    x = net.input(1, 2, 3, 4)
    y = net.conv(x, channels)
    flat = net.op("RESHAPE", [y], (1, 1, 3, 2 * channels), new_shape=(1, 1, 3, 2 * channels))
    plan = net.plan(net.conv(flat, 5))
    assert len(plan.dispatches) == 2
    assert ("RESHAPE" not in plan.dispatches[1].label) is is_free
    _run(device, net, plan)


def test_a_reshape_into_an_output_lands_in_the_output(device: Device, net: Net) -> None:
    x = net.input(1, 2, 3, 4)
    y = net.conv(x, 5)
    plan = net.plan(net.op("RESHAPE", [y], (30,), new_shape=(30,)))
    assert len(plan.dispatches) == 1
    assert plan.dispatches[0].refs[-1] == OutputRef(0)
    _run(device, net, plan)


def test_a_reshape_from_input_to_output_is_a_copy(device: Device, net: Net) -> None:
    x = net.input(2, 3)
    plan = net.plan(net.op("RESHAPE", [x], (3, 2), new_shape=(3, 2)))
    assert len(plan.dispatches) == 1
    _run(device, net, plan)


def test_chains_stop_where_a_kernel_would_bind_too_much(device: Device, net: Net) -> None:
    x = net.input(1, 2, 3, 4)
    y = net.conv(x, 4)
    for _ in range(12):
        y = net.op("ADD", [y, net.input(1, 2, 3, 4)], y.shape)
    plan = net.plan(y, caps=DeviceCaps(max_bindings=8))
    assert len(plan.dispatches) > 1
    assert all(len(d.kernel.buffers) <= 8 for d in plan.dispatches)
    _run(device, net, plan)
