"""Products of one input become one kernel, in which each result has its own outputs."""

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
from tflgpu.ir.stored_reals import BlockScales, ConstantData, StoredReals, stacked
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Activation, Fields
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

UNITS = 40
CAPS = {"int8_storage": True, "shared_bytes": 32768, "cache_bytes": 1 << 20}
#: Capabilities of a device, and the name of the kernel that makes products there.
KERNELS = {
    "direct": {},
    "gemm": {"is_gpu": True},
    "matrix": {"is_gpu": True, "matrix_tiles": True, "vendor": "nvidia"},
}


class Net:
    """Rows of numbers, and what is made of them."""

    def __init__(self, rows: int = 5) -> None:
        self.graph = Graph()
        self.rng = np.random.default_rng(rows)
        self.data: list[Array] = []
        self.x = self.input(rows, UNITS)

    def input(self, *shape: int) -> Value:
        self.graph.inputs.append(self.graph.add_value(shape, DType.F32))
        self.data.append(self.rng.uniform(-3, 2, shape).astype(np.float32))
        return self.graph.inputs[-1]

    def weights(self, outputs: int, kind: str = "f32") -> ConstantData:
        numbers = self.rng.integers(-127, 128, (outputs, UNITS)).astype(np.int8)
        if kind == "bytes":
            return StoredReals(numbers, Quantization((0.01,) * outputs, (0,) * outputs))
        if kind == "nibbles":
            scales = self.rng.uniform(0.01, 0.02, (outputs, UNITS // 8)).astype(np.float16)
            return StoredReals(numbers[:, ::2].copy(), BlockScales(scales, 8), in_nibbles=True)
        reals = self.rng.uniform(-1, 1, (outputs, UNITS))
        return StoredReals(reals.astype(np.float16)) if kind == "f16" else reals.astype(np.float32)

    def product(
        self,
        outputs: int,
        kind: str = "f32",
        activation: Activation = Activation.NONE,
        of: Value | None = None,
    ) -> Value:
        bias = self.rng.uniform(-1, 1, outputs).astype(np.float32)
        inputs = [of or self.x, self.graph.add_const(self.weights(outputs, kind))]
        inputs.append(self.graph.add_const(bias))
        shape = (self.x.shape[0], outputs)
        return self._node("FULLY_CONNECTED", FullyConnected(activation), inputs, shape)

    def op(self, name: str, *operands: Value) -> Value:
        attributes = builtin_ops()[name].parse(Fields(name, {}))
        return self._node(name, attributes, operands, operands[0].shape)

    def _node(
        self, op: str, attributes: object, inputs: Sequence[Value], shape: tuple[int, ...]
    ) -> Value:
        result = self.graph.add_value(shape, DType.F32)
        self.graph.add_node(op, attributes, list(inputs), [result])
        return result

    def run(
        self,
        device: Device,
        *outputs: Value,
        fuse: bool = True,
        precision: Precision = Precision.F32_F16,
        **caps: object,
    ) -> tuple[Plan, list[Array]]:
        given = attrs.evolve(device.caps, **(CAPS | caps))
        target = Target.plain(given, precision, alignment=device.alignment)
        graph = self.graph
        graph.outputs = list(outputs)
        plan = plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))
        return plan, by_plan(device, plan, *self.data)


def _check(device: Device, net: Net, dispatches: int, *outputs: Value, **caps: object) -> Plan:
    """As many kernels, and the numbers of a kernel for each product."""
    plan, found = net.run(device, *outputs, **caps)
    assert len(plan.dispatches) == dispatches, [d.label for d in plan.dispatches]
    _, apart = net.run(device, *outputs, fuse=False, **caps)
    for got, want in zip(found, apart, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-5)
    return plan


@pytest.mark.parametrize("kind", ["f32", "f16", "bytes", "nibbles"])
@pytest.mark.parametrize("rows", [1, 19])
@pytest.mark.parametrize("name", KERNELS)
def test_products_of_several_sizes(device: Device, name: str, rows: int, kind: str) -> None:
    net = Net(rows)
    few = name != "direct" and rows == 1
    x = (
        net._node(RMS, NormAttrs(1e-5), [net.x], net.x.shape) if few else net.x
    )  # few rows are made by each kernel
    results = [net.product(outputs, kind, of=x) for outputs in (20, 4, 36)]
    plan = _check(device, net, 1, *results, **KERNELS[name])
    assert plan.dispatches[0].kernel.name == f"fully_connected_{'gemv' if few else name}"


def test_few_rows_that_are_there_stay_apart(device: Device) -> None:
    """Small kernels run at the same time, each as long as one that makes all."""
    net = Net(1)
    _check(device, net, 2, net.product(8), net.product(8), is_gpu=True)


@pytest.mark.parametrize("name", KERNELS)
def test_sums_that_workgroups_share(device: Device, name: str) -> None:
    """And rows that are not finite stay where they are."""
    net = Net(18)
    net.data[0][3] = np.nan
    net.data[0][7, 5] = np.inf
    results = [net.product(8, "f16") for _ in range(3)]
    _check(device, net, 1, *results, **KERNELS[name])
    _, found = net.run(device, *results, **KERNELS[name])
    for each in found:
        assert np.isnan(each[3]).all() and np.isfinite(np.delete(each, (3, 7), 0)).all()


@pytest.mark.parametrize(("name", "rows"), [("direct", 5), ("gemm", 1), ("matrix", 19)])
def test_rows_that_are_normalized_before(device: Device, name: str, rows: int) -> None:
    net = Net(rows)
    made = net._node(NAME, MeanStddev((-1,), 1e-5), [net.x], net.x.shape)
    results = [net.product(outputs, "f16", of=made) for outputs in (8, 12, 4)]
    _check(device, net, 1 if rows == 1 else 2, *results, **KERNELS[name])


def test_rows_that_matrix_tiles_normalize(device: Device) -> None:
    net = Net(19)
    made = net._node(NAME, MeanStddev((-1,), 1e-5), [net.x], net.x.shape)
    results = [net.product(outputs, "f16", of=made) for outputs in (8, 12, 4)]
    caps = KERNELS["matrix"] | {"subgroup_shuffle": 32}
    plan, found = net.run(device, *results, precision=Precision.F16, **caps)
    assert [d.kernel.name for d in plan.dispatches] == ["fully_connected_matrix"]
    _, apart = net.run(device, *results, fuse=False)
    for got, want in zip(found, apart, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("rows", [1, 7])
def test_each_has_a_chain_of_its_own(device: Device, rows: int) -> None:
    net = Net(rows)
    other = net.input(rows, 16)
    a, b, c = net.product(12), net.product(16), net.product(8)
    results = net.op("TANH", a), net.op("ADD", net.op("LOGISTIC", b), other), c
    _check(device, net, 1, *results, max_bindings=16)


def test_what_a_chain_reads_has_to_be_there(device: Device) -> None:
    net = Net()
    shares = net.op("SOFTMAX", net.product(8))
    _check(device, net, 3, net.op("MUL", shares, net.product(8)))


def test_a_chain_that_reads_an_earlier_product(device: Device) -> None:
    net = Net()
    gate, up = net.product(8), net.product(8)
    _check(device, net, 2, net.op("MUL", up, net.op("MUL", gate, net.op("LOGISTIC", gate))))


def test_those_that_differ_stay_apart(device: Device) -> None:
    net = Net()
    results = [net.product(8), net.product(8, "bytes"), net.product(8, activation=Activation.RELU)]
    _check(device, net, 2, *results)


def test_no_more_buffers_than_a_device_allows(device: Device) -> None:
    net = Net()
    _check(device, net, 2, *[net.product(8) for _ in range(5)], max_bindings=8)


def test_large_products_are_side_by_side(device: Device) -> None:
    """Each with its own weights, which would be copied else."""
    net = Net(1)
    results = [net.product(1 << 13), net.product(1 << 13)]
    plan = _check(device, net, 1, *results)
    assert len(plan.dispatches[0].kernel.buffers) == 8


def test_stacked_weights_are_those_of_all_of_them() -> None:
    net = Net()
    for kind in ("f32", "f16", "bytes", "nibbles"):
        parts = [net.weights(outputs, kind) for outputs in (68, 4, 60)]
        apart = [each.whole() if isinstance(each, StoredReals) else each for each in parts]
        whole = stacked(parts)
        assert type(whole) is type(parts[0])
        found = whole.whole() if isinstance(whole, StoredReals) else whole
        np.testing.assert_array_equal(found, np.concatenate(apart))
