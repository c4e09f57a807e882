"""Steps of the same rows become one kernel, which computes what they compute one by one."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


class Net:
    """A graph on one input, with what its references make beside it."""

    def __init__(self, *shape: int) -> None:
        self.graph = Graph()
        self.x = self.graph.add_value(shape, DType.F32)
        self.graph.inputs = [self.x]
        self.data = np.random.default_rng(5).uniform(-1, 1, shape).astype(np.float32)
        self.made = {self.x.id: self.data}

    def op(self, name: str, *inputs: Value, **fields: object) -> Value:
        attributes = builtin_ops()[name].parse(Fields(name, fields))
        arrays = [self.made[v.id] if v.data is None else v.data for v in inputs]
        (array,) = builtin_ops()[name].reference(attributes, arrays)
        value = self.graph.add_value(array.shape, DType.F32)
        self.made[value.id] = array
        self.graph.add_node(name, attributes, list(inputs), [value])
        return value

    def constant(self, *shape: int) -> Value:
        drawn = np.random.default_rng(7).uniform(0.5, 1, shape)
        return self.graph.add_const(drawn.astype(np.float32))

    def reduced(self, name: str, x: Value, axis: int = -1, keep_dims: bool = True) -> Value:
        axes = self.graph.add_const(np.array([axis], np.int32))
        return self.op(name, x, axes, keep_dims=keep_dims)

    def plan(self, *outputs: Value, fuse: bool = True) -> Plan:
        graph = self.graph
        graph.outputs = list(outputs)
        target = Target.plain(DeviceCaps(max_bindings=16), Precision.F32, alignment=256)
        return plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = registry().open_device("cpu_ref", 1, DelegateOptions())
    assert isinstance(opened, Device)
    yield opened
    opened.close()


def _results(device: Device, net: Net, plan: Plan) -> list[Array]:
    recording = device.load(plan, guard_bands=True)
    recording.inputs[0][...] = net.data
    recording.run()
    found = [np.array(array) for array in recording.outputs]
    recording.close()
    return found


def _check(device: Device, net: Net, kernels: list[str], *outputs: Value) -> None:
    """These kernels, and bit for bit what a kernel for each node gives."""
    plan = net.plan(*outputs)
    assert [d.kernel.name for d in plan.dispatches] == kernels
    apart = _results(device, net, net.plan(*outputs, fuse=False))
    for got, other, value in zip(_results(device, net, plan), apart, outputs, strict=True):
        np.testing.assert_array_equal(got, other)
        np.testing.assert_allclose(got, net.made[value.id], rtol=1e-5, atol=1e-6)


def _rounded(net: Net, x: Value) -> Value:
    """As a quantized tensor has it."""
    return net.op("QUANTIZE_AND_DEQUANTIZE", x, attributes=QuantizeAndDequantize(0.0125, -128, 127))


def _normalized(net: Net, x: Value) -> Value:
    """A layer normalization of which every step is rounded."""
    mean = _rounded(net, net.reduced("MEAN", x))
    square = _rounded(net, net.op("SQUARED_DIFFERENCE", x, mean))
    variance = _rounded(net, net.reduced("MEAN", square))
    root = _rounded(net, net.op("RSQRT", net.op("ADD", variance, net.constant())))
    scale = _rounded(net, net.op("MUL", root, net.constant(x.shape[-1])))
    shift = net.op("SUB", net.constant(x.shape[-1]), net.op("MUL", mean, scale))
    return net.op("ADD", net.op("MUL", x, scale), shift)


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 7), (5, 70), (1, 3, 2, 33)])
def test_a_rounded_normalization_is_one_kernel(device: Device, shape: tuple[int, ...]) -> None:
    net = Net(*shape)
    _check(device, net, ["rows"], _normalized(net, net.x))


def test_others_read_the_same_operand(device: Device) -> None:
    net = Net(3, 12)
    made = net.op("TANH", net.x)
    total = net.op("ADD", made, _normalized(net, made))
    _check(device, net, ["rows"], total)
    net = Net(3, 12)
    made = net.op("SOFTMAX", net.x, beta=1.0)
    first = _normalized(net, made)
    _check(device, net, ["softmax", "rows", "exp"], first, net.op("EXP", made))


def test_a_number_that_others_need_is_made_for_them(device: Device) -> None:
    net = Net(3, 12)
    mean = net.reduced("MEAN", net.x)
    centred = net.op("SUB", net.x, mean)
    deviation = net.reduced("SUM", net.op("ABS", centred))
    result = net.op("DIV", centred, deviation)
    # The mean is a result too, so what comes before it is a kernel of its own.
    _check(device, net, ["mean", "rows"], mean, result)


@pytest.mark.parametrize("name", ["REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
def test_other_reductions(device: Device, name: str) -> None:
    net = Net(3, 5)
    shifted = net.op("ADD", net.x, net.constant(5))
    _check(device, net, ["rows"], net.op("SUB", shifted, net.reduced(name, shifted)))


def test_a_softmax_by_hand(device: Device) -> None:
    net = Net(2, 3, 9)
    powers = net.op("EXP", net.op("SUB", net.x, net.reduced("REDUCE_MAX", net.x)))
    _check(device, net, ["rows"], net.op("DIV", powers, net.reduced("SUM", powers)))


def test_other_axes_and_axes_that_are_gone_stay_apart(device: Device) -> None:
    net = Net(3, 4, 8)
    _check(device, net, ["mean", "sub"], net.op("SUB", net.x, net.reduced("MEAN", net.x, axis=1)))
    net = Net(8, 8)
    gone = net.reduced("MEAN", net.x, keep_dims=False)
    _check(device, net, ["mean", "sub"], net.op("SUB", net.x, gone))


def test_few_rows_that_several_workgroups_share_stay_apart(device: Device) -> None:
    net = Net(1, 200_000)
    net.data[...] = 0.5
    net.made[net.x.id] = net.data
    names = [
        d.kernel.name for d in net.plan(net.op("SUB", net.x, net.reduced("MEAN", net.x))).dispatches
    ]
    assert names == ["mean_parts", "mean", "sub"]


def test_a_result_goes_where_a_transposition_has_it(device: Device) -> None:
    net = Net(2, 3, 8)
    order = net.graph.add_const(np.array([1, 0, 2], np.int32))
    _check(device, net, ["rows"], net.op("TRANSPOSE", _normalized(net, net.x), order))
