"""What normalizes or rounds rows is done by the products that read them, each for itself; on the
interpreter, which refuses races and what lies out of bounds."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Activation
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.quantize_on_the_fly import OP as ROUND
from tflgpu.ops.quantize_on_the_fly import QuantizeOnTheFly, rounded
from tflgpu.ops.quantized import Rounding
from tflgpu.tflite.constants import pack

from tests.running import by_plan

EPSILON = 1e-5


class Net:
    """Rows of so many numbers, what is made of them, and products of that."""

    def __init__(self, rows: int, units: int) -> None:
        self.graph, self.units = Graph(), units
        self.x = self.graph.add_value((rows, units), DType.F32)
        self.graph.inputs = [self.x]
        self.rng = np.random.default_rng(units)
        self.data = self.rng.uniform(-3, 2, (rows, units)).astype(np.float32)

    def rms(self, x: Value, *, scaled: bool = False) -> Value:
        gamma = self.rng.uniform(0.5, 2, self.units).astype(np.float32)
        others = [self.graph.add_const(gamma)] if scaled else []
        return self._node(RMS, NormAttrs(EPSILON), [x, *others], x.shape)

    def layer(self, x: Value) -> Value:
        return self._node(NAME, MeanStddev((-1,), EPSILON), [x], x.shape)

    def round(self, x: Value, rounding: Rounding) -> Value:
        return self._node(ROUND, QuantizeOnTheFly((1,), rounding), [x], x.shape)

    def product(self, x: Value, outputs: int, weights: StoredReals | None = None) -> Value:
        real = self.rng.uniform(-1, 1, (outputs, self.units)).astype(np.float32)
        constant = self.graph.add_const(real if weights is None else weights)
        attributes = FullyConnected(Activation.NONE)
        shape = (x.shape[0], outputs)
        result = self._node("FULLY_CONNECTED", attributes, [x, constant, None], shape)
        self.graph.outputs.append(result)
        return result

    def _node(self, op: str, attributes: object, inputs: list, shape: tuple[int, ...]) -> Value:  # type: ignore[type-arg]
        result = self.graph.add_value(shape, DType.F32)
        self.graph.add_node(op, attributes, inputs, [result])
        return result

    def run(self, device: Device, *, fuse: bool = True, **more: int) -> tuple[Plan, list[Array]]:
        caps = attrs.evolve(device.caps, is_gpu=True, int8_storage=True, shared_bytes=32768)
        caps = attrs.evolve(caps, **more)
        target = Target.plain(caps, Precision.F32, alignment=device.alignment)
        graph = self.graph
        plan = plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))
        return plan, by_plan(device, plan, self.data)


def _bytes(outputs: int, units: int) -> tuple[StoredReals, Array]:
    rng = np.random.default_rng(outputs)
    numbers = rng.integers(-127, 128, (outputs, units)).astype(np.int8)
    scales = rng.uniform(1e-3, 1e-1, outputs).astype(np.float32)
    quantization = Quantization(tuple(map(float, scales)), (0,) * outputs)
    return StoredReals(numbers, quantization), numbers.astype(np.float64) * scales[:, None]


def _blocks(outputs: int, units: int, size: int, *, nibbles: bool) -> tuple[StoredReals, Array]:
    rng = np.random.default_rng(outputs)
    numbers = rng.integers(-8, 8, (outputs, units)).astype(np.int8)
    numbers[0] = -8
    scales = rng.uniform(1e-2, 1, (outputs, units // size)).astype(np.float16)
    stored = numbers
    if nibbles:
        stored = np.frombuffer(pack(numbers, DType.I4), np.uint8).reshape(outputs, units // 2)
    reals = numbers.astype(np.float64) * np.repeat(scales.astype(np.float64), size, axis=1)
    return StoredReals(stored, BlockScales(scales, size), nibbles), reals


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("rows", "units"), [(1, 64), (1, 1203), (1, 1), (3, 37)])
def test_products_normalize_for_themselves(
    device: Device, rows: int, units: int, scaled: bool
) -> None:
    net = Net(rows, units)
    made = net.rms(net.x, scaled=scaled)
    net.product(made, 13)
    net.product(made, 1)
    plan, found = net.run(device, compute_units=2)
    assert sum(item.label.count(RMS) for item in plan.dispatches) == 2
    _, apart = net.run(device, fuse=False)
    for got, want in zip(found, apart, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "units"), [(1, 64), (1, 1204), (1, 4), (3, 36), (8, 520)])
def test_products_centre_rows_for_themselves(device: Device, rows: int, units: int) -> None:
    net = Net(rows, units)
    net.data[-1] += 1000
    net.data[0, 0] += 50
    made = net.layer(net.x)
    net.product(made, 13)
    net.product(made, 1)
    plan, found = net.run(device)
    assert len(plan.dispatches) == 2
    assert all(NAME in item.label for item in plan.dispatches)
    x = net.data.astype(np.float64)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPSILON)
    for got, node in zip(found, net.graph.nodes[1:], strict=True):
        want = normal @ node.const(1).T.astype(np.float64)
        # The first number's share of the variance is up to so many times that of the others.
        assert np.linalg.norm(got - want) / np.linalg.norm(want) < 1e-6 * units**0.5


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5])
def test_centred_rows_that_are_not_finite(device: Device, number: float, place: int) -> None:
    net = Net(3, 72)
    net.data[1, place] = number
    net.product(net.layer(net.x), 5)
    plan, (found,) = net.run(device)
    assert len(plan.dispatches) == 1
    assert np.isnan(found[1]).all() and np.isfinite(found[::2]).all()


def test_rows_that_are_no_whole_vectors_are_centred_apart(device: Device) -> None:
    net = Net(2, 37)
    net.product(net.layer(net.x), 5)
    plan, (found,) = net.run(device)
    assert len(plan.dispatches) == 2
    _, (want,) = net.run(device, fuse=False)
    np.testing.assert_array_equal(found, want)


def test_whole_weights_meet_rows_that_were_centred_before(device: Device) -> None:
    net = Net(2, 64)
    weights, _ = _bytes(13, 64)
    net.product(net.layer(net.x), 13, weights)
    plan, _ = net.run(device)
    assert len(plan.dispatches) == 2


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize(
    ("rows", "units"), [(1, 64), (1, 1203), (1, 1), (2, 37), (5, 37), (2, 1203), (8, 3)]
)
@pytest.mark.parametrize(("neighbours", "processors"), [(32, 1), (32, 5), (0, 20)])
def test_rounded_rows_meet_bytes_as_whole_numbers(
    device: Device, rounding: Rounding, rows: int, units: int, neighbours: int, processors: int
) -> None:
    """Where workgroups have two rows at most, as few as several processors leave to each."""
    net = Net(rows, units)
    weights, reals = _bytes(13, units)
    net.product(net.round(net.x, rounding), 13, weights)
    plan, (found,) = net.run(device, subgroup_shuffle=neighbours, compute_units=processors)
    assert len(plan.dispatches) == (1 if rows <= 2 or processors > 1 else 2)
    want = rounded(net.data, (1,), rounding).astype(np.float64) @ reals.T
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("nibbles", [False, True])
@pytest.mark.parametrize(
    ("rows", "units", "size"), [(1, 32, 32), (1, 2112, 32), (3, 192, 64), (2, 96, 8), (2, 48, 16)]
)
def test_rounded_rows_meet_blocks(
    device: Device, rounding: Rounding, nibbles: bool, rows: int, units: int, size: int
) -> None:
    net = Net(rows, units)
    weights, reals = _blocks(13, units, size, nibbles=nibbles)
    net.product(net.round(net.x, rounding), 13, weights)
    plan, (found,) = net.run(device, compute_units=20)
    assert len(plan.dispatches) == 1
    want = rounded(net.data, (1,), rounding).astype(np.float64) @ reals.T
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)


def test_a_row_of_nan_that_meets_blocks(device: Device) -> None:
    net = Net(3, 64)
    net.data[1, 40] = np.nan
    net.data[2] = 0
    weights, reals = _blocks(5, 64, 32, nibbles=True)
    net.product(net.round(net.x, Rounding.EVEN), 5, weights)
    _, (found,) = net.run(device, compute_units=20)
    want = rounded(net.data, (1,), Rounding.EVEN).astype(np.float64) @ reals.T
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-4)
    assert np.isnan(found[1]).all() and not found[2].any()


@pytest.mark.parametrize("rows", [1, 7])
def test_a_row_is_normalized_and_then_rounded(device: Device, rows: int) -> None:
    net = Net(rows, 130)
    weights, reals = _bytes(6, 130)
    net.product(net.round(net.rms(net.x), Rounding.EVEN), 6, weights)
    plan, (found,) = net.run(device, compute_units=20)
    assert len(plan.dispatches) == 1
    x = net.data.astype(np.float64)
    normal = (x / np.sqrt((x * x).mean(axis=1, keepdims=True) + EPSILON)).astype(np.float32)
    want = rounded(normal, (1,), Rounding.EVEN).astype(np.float64) @ reals.T
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rounding", Rounding)
@pytest.mark.parametrize("number", [0.0, np.nan, np.inf, -np.inf])
def test_rows_of_zeros_and_rows_that_are_not_finite(
    device: Device, rounding: Rounding, number: float
) -> None:
    net = Net(3, 70)
    net.data[1] = 0 if number == 0 else net.data[1]
    net.data[1, 5] = number
    weights, reals = _bytes(5, 70)
    net.product(net.round(net.x, rounding), 5, weights)
    _, (found,) = net.run(device, compute_units=20)
    with np.errstate(invalid="ignore"):
        want = rounded(net.data, (1,), rounding).astype(np.float64) @ reals.T
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6)


def test_a_tensor_that_others_read_has_a_buffer(device: Device) -> None:
    net = Net(1, 36)
    made = net.rms(net.x)
    net.product(made, 5)
    net.graph.outputs.append(made)
    plan, (found, normal) = net.run(device)
    assert [item.label for item in plan.dispatches] == [f"#new {RMS}", "#new FULLY_CONNECTED"]
    _, (want, _) = net.run(device, fuse=False)
    np.testing.assert_array_equal(found, want)
    assert np.isfinite(normal).all()


def test_rows_that_do_not_fit_into_a_workgroup_stay_apart(device: Device) -> None:
    net = Net(1, 9000)
    net.product(net.rms(net.x), 3)
    plan, (found,) = net.run(device)
    assert len(plan.dispatches) == 2
    _, (want,) = net.run(device, fuse=False)
    np.testing.assert_array_equal(found, want)
