"""Products of one input that meet in a store are made by one kernel; on the interpreter, which
refuses races and what lies out of bounds."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.stored_reals import StoredReals
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Activation, Fields
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.quantize_on_the_fly import OP as ROUND
from tflgpu.ops.quantize_on_the_fly import QuantizeOnTheFly
from tflgpu.ops.quantized import Rounding
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

UNITS = 69


class Net:
    """Rows of numbers, and what is made of them."""

    def __init__(self, rows: int = 1) -> None:
        self.graph = Graph()
        self.x = self.graph.add_value((rows, UNITS), DType.F32)
        self.graph.inputs = [self.x]
        self.rng = np.random.default_rng(rows)
        self.data = self.rng.uniform(-3, 2, (rows, UNITS)).astype(np.float32)

    def product(self, x: Value, outputs: int = 13, *, in_bytes: bool = False) -> Value:
        weights: Array | StoredReals
        weights = self.rng.uniform(-1, 1, (outputs, UNITS)).astype(np.float32)
        if in_bytes:
            numbers = self.rng.integers(-127, 128, (outputs, UNITS)).astype(np.int8)
            weights = StoredReals(numbers, Quantization((0.01,) * outputs, (0,) * outputs))
        bias = self.rng.uniform(-1, 1, outputs).astype(np.float32)
        inputs = [x, self.graph.add_const(weights), self.graph.add_const(bias)]
        attributes = FullyConnected(Activation.NONE)
        return self._node("FULLY_CONNECTED", attributes, inputs, (x.shape[0], outputs))

    def op(self, name: str, *operands: Value) -> Value:
        attributes = builtin_ops()[name].parse(Fields(name, {}))
        return self._node(name, attributes, operands, operands[0].shape)

    def rms(self, x: Value) -> Value:
        return self._node(RMS, NormAttrs(1e-5), [x], x.shape)

    def round(self, x: Value) -> Value:
        return self._node(ROUND, QuantizeOnTheFly((1,), Rounding.EVEN), [x], x.shape)

    def _node(
        self, op: str, attributes: object, inputs: Sequence[Value], shape: tuple[int, ...]
    ) -> Value:
        result = self.graph.add_value(shape, DType.F32)
        self.graph.add_node(op, attributes, list(inputs), [result])
        return result

    def gated(self, x: Value, *, in_bytes: bool = False) -> Value:
        gate, up = (self.product(x, in_bytes=in_bytes) for _ in range(2))
        return self.op("MUL", self.op("MUL", gate, self.op("LOGISTIC", gate)), up)

    def run(
        self, device: Device, *outputs: Value, fuse: bool = True, processors: int = 1
    ) -> tuple[Plan, list[Array]]:
        caps = attrs.evolve(device.caps, is_gpu=True, int8_storage=True, shared_bytes=32768)
        caps = attrs.evolve(caps, compute_units=processors)
        target = Target.plain(caps, Precision.F32, alignment=device.alignment)
        graph = self.graph
        graph.outputs = list(outputs)
        plan = plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))
        return plan, by_plan(device, plan, self.data)


def _check(device: Device, net: Net, dispatches: int, *outputs: Value, processors: int = 1) -> None:
    plan, found = net.run(device, *outputs, processors=processors)
    assert len(plan.dispatches) == dispatches, [d.label for d in plan.dispatches]
    _, apart = net.run(device, *outputs, fuse=False)
    for got, want in zip(found, apart, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "processors"), [(1, 1), (2, 1), (2, 8), (4, 40)])
@pytest.mark.parametrize("in_bytes", [False, True])
def test_a_gate_and_what_it_opens(
    device: Device, rows: int, processors: int, in_bytes: bool
) -> None:
    net = Net(rows)
    _check(device, net, 1, net.gated(net.x, in_bytes=in_bytes), processors=processors)


@pytest.mark.parametrize("in_bytes", [False, True])
def test_with_a_normalization_before_them(device: Device, in_bytes: bool) -> None:
    net = Net()
    made = net.rms(net.x)
    made = net.round(made) if in_bytes else made
    _check(device, net, 1, net.gated(made, in_bytes=in_bytes))


def test_three_meet(device: Device) -> None:
    net = Net()
    a, b, c = (net.product(net.x) for _ in range(3))
    _check(device, net, 1, net.op("MUL", c, net.op("LOGISTIC", net.op("ADD", a, b))))


def test_four_are_two_kernels(device: Device) -> None:
    net = Net()
    a, b, c, d = (net.product(net.x) for _ in range(4))
    _check(device, net, 2, net.op("ADD", d, net.op("ADD", c, net.op("ADD", a, b))))


def test_nan_stays_in_its_row(device: Device) -> None:
    net = Net(2)
    net.data[1, 7] = np.nan
    result = net.gated(net.x)
    _check(device, net, 1, result)
    _, (found,) = net.run(device, result)
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


def test_what_is_read_elsewhere_stays_apart(device: Device) -> None:
    net = Net()
    gate, up = net.product(net.x), net.product(net.x)
    _check(device, net, 2, net.op("MUL", up, gate), gate)


def test_weights_of_other_forms_stay_apart(device: Device) -> None:
    net = Net()
    gate, up = net.product(net.x), net.product(net.x, in_bytes=True)
    _check(device, net, 2, net.op("MUL", up, gate))


def test_products_of_other_inputs_stay_apart(device: Device) -> None:
    net = Net()
    other = net.op("SOFTMAX", net.x)
    _check(device, net, 3, net.op("MUL", net.product(net.x), net.product(other)))


def test_many_rows_stay_apart(device: Device) -> None:
    net = Net(3)
    _check(device, net, 2, net.gated(net.x))
