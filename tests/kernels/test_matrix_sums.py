"""The dispatch that adds up what workgroups have of a product on matrix tiles, and normalizes its
rows; on the kernel interpreter, which refuses races and accesses out of bounds."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Value
from tflgpu.kernels import products
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.registry import builtin_ops

from tests.kernels.test_matrix_rows import caps_of, error
from tests.running import by_plan

EPSILON = 1e-6
BOUNDS = {Precision.F16: 8e-4, Precision.F32_F16: 1e-6}
APART = MatrixTile(1, 1, 2, 1, 1, 4)
IN_PARTS = attrs.evolve(APART, parts=3)
PRECISIONS = pytest.mark.parametrize("precision", list(BOUNDS), ids=str)


class Net:
    """A product with a residual behind it, its rows normalized, and a product of these."""

    def __init__(self, rows: int, units: int, outputs: int, axis: int = -1) -> None:
        self.graph, self.rng = Graph(), np.random.default_rng(rows)
        self.inputs = [self._halves(rows, units), self._halves(rows, outputs)]
        values = [self.graph.add_value(x.shape, DType.F32) for x in self.inputs]
        self.graph.inputs = values
        self.weights = [self._halves(outputs, units) / 8, self._halves(9, outputs) / 8]
        shape = (rows, outputs)
        made = self._product(values[0], self.weights[0])
        self.sum = self._node("ADD", [made, values[1]], shape)
        attributes = MeanStddev((axis,), EPSILON)
        self.normal = self._node(NAME, [self.sum], shape, attributes)
        self.graph.outputs = [self._product(self.normal, self.weights[1])]

    def _halves(self, *shape: int) -> Array:
        return np.asarray(self.rng.uniform(-1, 1, shape).astype(np.float16), np.float32)

    def _product(self, x: Value, weights: Array) -> Value:
        operands = [x, self.graph.add_const(weights)]
        shape = (x.shape[0], len(weights))
        return self._node("FULLY_CONNECTED", operands, shape, FullyConnected())

    def read_sum(self) -> None:
        self.graph.outputs.append(self._node("ABS", [self.sum], self.sum.shape))

    def _node(
        self, op: str, inputs: list[Value], shape: tuple[int, ...], attributes: object = None
    ) -> Value:
        if op == "ADD":
            attributes = builtin_ops()[op].parse(Fields(op, {}))
        result = self.graph.add_value(shape, DType.F32)
        self.graph.add_node(op, attributes, inputs, [result])
        return result

    @property
    def expected(self) -> Array:
        x, more = (each.astype(np.float64) for each in self.inputs)
        total = x @ self.weights[0].T + more
        with np.errstate(invalid="ignore"):
            gap = total - total.mean(axis=1, keepdims=True)
            normal = gap / np.sqrt((gap * gap).mean(axis=1, keepdims=True) + EPSILON)
        return np.asarray(normal @ self.weights[1].T)

    def run(self, device: Device, precision: Precision) -> tuple[Plan, list[Array]]:
        graph, caps = self.graph, caps_of(device)
        target = Target.plain(caps, precision, alignment=device.alignment)
        plan = plan_of(graph.nodes, graph.inputs, graph.outputs, target)
        return plan, by_plan(device, plan, *self.inputs)


@pytest.fixture
def tile(monkeypatch: pytest.MonkeyPatch) -> list[MatrixTile]:
    """The tile of products of more than 64 inputs; others have one workgroup a sum."""
    chosen = [IN_PARTS]

    def choose(pixels: int, slices: int, depth: int, *args: object, **more: object) -> MatrixTile:
        return chosen[0] if depth > 16 else APART

    monkeypatch.setattr(products, "choose_matrix_tile", choose)
    return chosen


def joined(plan: Plan) -> list[str]:
    return [d.kernel.name for d in plan.dispatches if d.kernel.name.endswith("_sum_normalize")]


@PRECISIONS
@pytest.mark.parametrize(
    "sizes", [(19, 72, 44), (33, 84, 4), (9, 76, 260), (16, 68, 1028)], ids=str
)
def test_sums_are_normalized_as_they_are_added_up(
    device: Device, tile: list[MatrixTile], sizes: tuple[int, int, int], precision: Precision
) -> None:
    net = Net(*sizes)
    plan, (found,) = net.run(device, precision)
    assert len(joined(plan)) == 1
    assert any(NAME in d.label and "ADD" in d.label for d in plan.dispatches)
    assert not any(d.kernel.name == "normalize" for d in plan.dispatches)
    if sizes[2] > 4:  # few numbers, nearly alike, have a large part of the errors
        assert error(found, net.expected) < BOUNDS[precision]
    tile[0] = APART
    plan, (apart,) = Net(*sizes).run(device, precision)
    assert not joined(plan)
    assert error(found, apart) < BOUNDS[precision]


@PRECISIONS
def test_the_sum_is_there_for_others(
    device: Device, tile: list[MatrixTile], precision: Precision
) -> None:
    net = Net(19, 72, 44)
    net.read_sum()
    plan, (found, sums) = net.run(device, precision)
    assert len(joined(plan)) == 1
    want = np.abs(net.inputs[0] @ net.weights[0].T + net.inputs[1])
    assert error(sums, want) < BOUNDS[precision]
    assert error(found, net.expected) < BOUNDS[precision]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_rows_that_are_not_finite(device: Device, tile: list[MatrixTile], number: float) -> None:
    net = Net(19, 72, 44)
    net.inputs[1][4, 7] = number
    plan, (found,) = net.run(device, Precision.F32_F16)
    rest = np.arange(19) != 4
    assert joined(plan) and np.isnan(found[4]).all()
    assert error(found[rest], net.expected[rest]) < BOUNDS[Precision.F32_F16]


@pytest.mark.parametrize(
    ("sizes", "axis"),
    [((19, 72, 43), -1), ((19, 72, 4100), -1), ((19, 72, 44), 0)],
    ids=["no whole vectors", "more than a team holds", "columns"],
)
def test_other_normalizations_stay_apart(
    device: Device, tile: list[MatrixTile], sizes: tuple[int, int, int], axis: int
) -> None:
    plan, _ = Net(*sizes, axis).run(device, Precision.F16)
    assert not joined(plan)
