"""Products on matrix tiles that normalize the rows of their input, on the kernel interpreter, which
refuses races and accesses out of bounds. Expected values are f64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.kernels import fully_connected, products
from tflgpu.kernels.matrix_rows import normalizes_rows
from tflgpu.kernels.matrix_tiles import TILES, MatrixTile
from tflgpu.language.matrix import has_matrices
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.row_change import RowChange
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.normalize import NAME, MeanStddev

from tests.running import by_plan

EPSILON = 1e-6
#: As `BOUNDS` of `test_matrix_products`: operands and results are rounded to f16.
BOUND = 4e-4
TILE = MatrixTile(1, 1, 4, 1, 1, 4)


class Net:
    """Rows that a product makes, or that are the input, normalized for another product."""

    def __init__(self, rows: int, units: int, outputs: int, *, is_input: bool = False) -> None:
        self.graph, self.rng = Graph(), np.random.default_rng(units)
        self.source = self.graph.add_value((rows, units), DType.F32)
        self.graph.inputs = [self.source]
        turned = -np.eye(units, dtype=np.float32)
        self.sign = 1 if is_input else -1
        self.x = self.source if is_input else self.product(self.source, turned)
        weights = self.rng.uniform(-1, 1, (outputs, units)) / units**0.5
        self.weights = weights.astype(np.float16).astype(np.float32)
        self.bias = self.rng.uniform(-1, 1, outputs).astype(np.float32)
        self.normal = self._node(NAME, MeanStddev((-1,), EPSILON), [self.x], (rows, units))
        self.graph.outputs = [self.product(self.normal, self.weights, self.bias)]
        data = self.rng.uniform(-1, 2, (rows, units))
        self.data = data.astype(np.float16).astype(np.float32)

    def product(self, x: Value, weights: Array, bias: Array | None = None) -> Value:
        operands = [x, self.graph.add_const(weights)]
        operands += [] if bias is None else [self.graph.add_const(bias)]
        return self._node("FULLY_CONNECTED", FullyConnected(), operands, (x.shape[0], len(weights)))

    def _node(
        self, op: str, attributes: object, inputs: list[Any], shape: tuple[int, int]
    ) -> Value:
        result = self.graph.add_value(shape, DType.F32)
        self.graph.add_node(op, attributes, inputs, [result])
        return result

    @property
    def expected(self) -> Array:
        x = self.data.astype(np.float64) * self.sign
        with np.errstate(invalid="ignore"):
            gap = x - x.mean(axis=1, keepdims=True)
            normal = gap / np.sqrt((gap * gap).mean(axis=1, keepdims=True) + EPSILON)
            return np.asarray(normal @ self.weights.T.astype(np.float64) + self.bias)

    def plan(self, device: Device, precision: Precision = Precision.F16) -> Plan:
        (rule,) = (each for each in fully_connected.RULES if each.name == "matrix")
        # Of any number of rows.
        first = attrs.evolve(rule, name="test", rank=1000)
        graph = self.graph
        target = Target.plain(caps_of(device), precision, rules=[first], alignment=device.alignment)
        return plan_of(graph.nodes, graph.inputs, graph.outputs, target)

    def run(self, device: Device, plan: Plan) -> Array:
        return by_plan(device, plan, self.data)[0].astype(np.float64)


def caps_of(device: Device) -> Any:
    return attrs.evolve(
        device.caps,
        is_gpu=True,
        matrix_tiles=True,
        vendor="nvidia",
        subgroup_shuffle=32,
        shared_bytes=49152,
        cache_bytes=1 << 30,
    )


@pytest.fixture
def with_tile(monkeypatch: pytest.MonkeyPatch) -> Callable[[MatrixTile], None]:
    def use(tile: MatrixTile) -> None:
        monkeypatch.setattr(products, "choose_matrix_tile", lambda *args, **more: tile)

    return use


def error(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(
    device: Device, with_tile: Callable[[MatrixTile], None], tile: MatrixTile
) -> None:
    if tile.threads > device.caps.max_workgroup:
        pytest.skip("more invocations than the interpreter has")
    with_tile(tile)
    net = Net(35, 88, 37)
    plan = net.plan(device)
    assert len(plan.dispatches) == 2
    assert NAME in plan.dispatches[1].label and has_matrices(plan.dispatches[1].kernel)
    assert error(net.run(device, plan), net.expected) < BOUND


@pytest.mark.parametrize("is_input", [False, True], ids=["made", "input"])
@pytest.mark.parametrize(
    "sizes", [(1, 40, 7), (33, 72, 1), (1, 24, 1), (19, 104, 9), (16, 64, 16)], ids=str
)
def test_every_shape(
    device: Device,
    with_tile: Callable[[MatrixTile], None],
    sizes: tuple[int, int, int],
    is_input: bool,
) -> None:
    with_tile(TILE)
    net = Net(*sizes, is_input=is_input)
    plan = net.plan(device)
    assert len(plan.dispatches) == 2 - is_input
    assert error(net.run(device, plan), net.expected) < BOUND


def test_means_and_first_numbers_far_from_the_others(
    device: Device, with_tile: Callable[[MatrixTile], None]
) -> None:
    """What sums of squares, or of differences from a number, would lose."""
    with_tile(TILE)
    net = Net(7, 264, 5)
    net.data[0] += 100
    net.data[1] -= 1000
    net.data[2, 0] = 200
    net.data[3] *= 1e-3
    net.data[4] = 3
    net.data = net.data.astype(np.float16).astype(np.float32)
    found, expected = net.run(device, net.plan(device)), net.expected
    for at in (0, 1, 2, 3, 5, 6):
        assert error(found[at], expected[at]) < 3 * BOUND, at
    # Nothing but rounding errors, by the root of epsilon.
    np.testing.assert_allclose(found[4], expected[4], atol=5e-3)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5])
def test_rows_that_are_not_finite(
    device: Device, with_tile: Callable[[MatrixTile], None], number: float, place: int
) -> None:
    with_tile(TILE)
    net = Net(18, 40, 6, is_input=True)
    net.data[4, place] = number
    found = net.run(device, net.plan(device))
    assert np.isnan(found[4]).all()
    rest = np.arange(18) != 4
    assert error(found[rest], net.expected[rest]) < BOUND


def test_spirv_val_accepts_the_kernel(
    device: Device, with_tile: Callable[[MatrixTile], None]
) -> None:
    from tests.kernels.test_matrix_products import assert_valid

    with_tile(MatrixTile(2, 2, 1, 2, 2, 8))
    assert_valid(Net(35, 88, 37).plan(device).dispatches[1].kernel)


def test_what_others_read_is_made(device: Device) -> None:
    net = Net(19, 64, 8)
    net.graph.outputs.append(net.normal)
    assert len(net.plan(device).dispatches) == 3


def test_rows_that_are_computed_in_loads_stay_apart(device: Device) -> None:
    """Each of many workgroups would compute them anew."""
    net = Net(19, 64, 8)
    negated = net._node("NEG", None, [net.x], (19, 64))
    normalize = next(node for node in net.graph.nodes if node.op == NAME)
    normalize.inputs[0] = negated
    net.graph.nodes.insert(net.graph.nodes.index(normalize), net.graph.nodes.pop())
    net.graph.outputs.append(net.x)
    labels = [each.label for each in net.plan(device).dispatches]
    assert any("NEG" in label and NAME in label for label in labels), labels
    assert not any(NAME in label and "FULLY_CONNECTED" in label for label in labels)


@pytest.mark.parametrize(
    ("change", "precision", "rows", "units"),
    [
        (RowChange(72, EPSILON, centred=True), Precision.F32_F16, 19, 72),
        (RowChange(72, EPSILON, centred=False), Precision.F16, 19, 72),
        (RowChange(36, EPSILON, centred=True), Precision.F16, 19, 72),
        (RowChange(68, EPSILON, centred=True), Precision.F16, 19, 68),
        (RowChange(72, EPSILON, centred=True), Precision.F16, 1 << 21, 72),
    ],
    ids=["f32", "not centred", "half of a row", "half a pair", "many rows"],
)
def test_which_rows_are_not_taken(
    device: Device, change: RowChange, precision: Precision, rows: int, units: int
) -> None:
    def taken(change: RowChange, precision: Precision, rows: int, units: int) -> bool:
        node = Net(1, units, 8).graph.nodes[-1]
        node.inputs[0] = Graph().add_value((rows, units), DType.F32)
        return normalizes_rows(node, change, Target.plain(caps_of(device), precision).site)

    assert taken(RowChange(72, EPSILON, centred=True), Precision.F16, 19, 72)
    assert not taken(change, precision, rows, units)


def test_stacked_products_normalize_their_rows(
    device: Device, with_tile: Callable[[MatrixTile], None]
) -> None:
    with_tile(TILE)
    net = Net(19, 72, 8)
    more = net.rng.uniform(-1, 1, (12, 72)).astype(np.float16).astype(np.float32) / 8
    net.graph.outputs.append(net.product(net.normal, more))
    plan = net.plan(device)
    assert len(plan.dispatches) == 2
    found = [each.astype(np.float64) for each in by_plan(device, plan, net.data)]
    assert error(found[0], net.expected) < BOUND
    net.weights, net.bias = more, np.zeros(12, np.float32)
    assert error(found[1], net.expected) < BOUND
