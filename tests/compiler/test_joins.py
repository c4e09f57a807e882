"""What only moves vectors joins the store of what makes them, and every element ends where it
belongs."""

from __future__ import annotations

from collections.abc import Sequence

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
from tflgpu.lowering.place import place_of
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.moves import Moves, reordered
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

Shape = tuple[int, ...]


class Net:
    """A graph, with what its references make of one input beside it."""

    def __init__(self, *shape: int) -> None:
        self.graph = Graph()
        x = self.graph.add_value(shape, DType.F32)
        self.graph.inputs = [x]
        self.data = np.random.default_rng(5).uniform(-1, 1, shape).astype(np.float32)
        self.made = {x.id: self.data}
        self.last = x

    def op(self, name: str, *others: Value, of: Value | None = None, **fields: object) -> Value:
        """An op on the last result and others."""
        inputs = [of or self.last, *others]
        attributes = builtin_ops()[name].parse(Fields(name, fields))
        arrays = [self.made[v.id] if v.data is None else v.data for v in inputs]
        (array,) = builtin_ops()[name].reference(attributes, arrays)
        self.last = self.graph.add_value(array.shape, DType.F32)
        self.made[self.last.id] = array
        self.graph.add_node(name, attributes, inputs, [self.last])
        return self.last

    def reshape(self, *shape: int) -> Value:
        return self.op("RESHAPE", new_shape=shape)

    def transpose(self, *order: int) -> Value:
        return self.op("TRANSPOSE", self.graph.add_const(np.array(order, np.int32)))

    def sums(self, of: Value | None = None) -> Value:
        """A node that reads all of a row for each number, so that nothing is computed there."""
        return self.op("CUMSUM", self.graph.add_const(np.array(-1, np.int32)), of=of)

    def add(self, *shape: int) -> Value:
        array = np.random.default_rng(7).uniform(-1, 1, shape).astype(np.float32)
        return self.op("ADD", self.graph.add_const(array))

    def plan(self, *outputs: Value, fuse: bool = True) -> Plan:
        self.graph.outputs = list(outputs) or [self.last]
        target = Target.plain(DeviceCaps(), Precision.F32, alignment=256)
        graph = self.graph
        return plan_of(graph.nodes, graph.inputs, graph.outputs, attrs.evolve(target, fuse=fuse))


def _results(device: Device, net: Net, plan: Plan) -> list[Array]:
    return by_plan(device, plan, net.data)


def _check(device: Device, net: Net, dispatches: int, *outputs: Value) -> Plan:
    """The same as without joining, bit for bit, and what the references say."""
    plan = net.plan(*outputs)
    found = _results(device, net, plan)
    for got, apart in zip(
        found, _results(device, net, net.plan(*outputs, fuse=False)), strict=True
    ):
        np.testing.assert_array_equal(got, apart)
    for got, value in zip(found, net.graph.outputs, strict=True):
        np.testing.assert_allclose(got, net.made[value.id], rtol=1e-5, atol=1e-6)
    assert len(plan.dispatches) == dispatches, [d.label for d in plan.dispatches]
    return plan


def test_heads_are_stored_where_the_transposition_has_them(device: Device) -> None:
    net = Net(1, 5, 16)
    net.op("TANH")
    net.reshape(1, 5, 2, 8)
    net.transpose(0, 2, 1, 3)
    net.reshape(2, 5, 8)  # nobody between reads more than whole vectors
    net.op("SOFTMAX", beta=1.0)
    plan = _check(device, net, 2)
    assert plan.dispatches[0].label == "#new TANH + #new TRANSPOSE"


def test_a_chain_goes_on_behind_the_move(device: Device) -> None:
    net = Net(1, 5, 16)
    net.op("TANH")
    net.add(1, 5, 1)
    net.reshape(1, 5, 4, 4)
    net.transpose(0, 2, 1, 3)
    net.add(4, 5, 4)
    net.op("SOFTMAX", beta=1.0)
    _check(device, net, 2)


def test_rows_of_any_size_move_whole(device: Device) -> None:
    net = Net(1, 4, 6, 7)
    net.op("TANH")
    net.reshape(2, 2, 6, 7)
    net.transpose(2, 0, 1, 3)
    net.op("SOFTMAX", beta=1.0)
    _check(device, net, 2)


def test_two_moves_in_a_row_and_a_result(device: Device) -> None:
    net = Net(1, 4, 8)
    net.op("TANH")
    net.reshape(2, 2, 2, 4)
    net.transpose(1, 0, 2, 3)
    net.reshape(2, 4, 4)
    net.transpose(1, 0, 2)
    _check(device, net, 1)


def test_a_result_may_be_packed_rows(device: Device) -> None:
    net = Net(2, 3, 5)
    net.op("TANH")
    net.transpose(1, 0, 2)
    _check(device, net, 1)


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2)])
def test_vectors_that_are_taken_apart_are_moved_by_a_kernel(
    device: Device, order: Sequence[int]
) -> None:
    net = Net(1, 5, 16)
    net.sums()
    net.reshape(1, 5, 4, 4)
    net.transpose(*order)
    net.sums()
    _check(device, net, 3)


@pytest.mark.parametrize("channels", [4, 6])
def test_what_others_read_too_is_made_where_it_was(device: Device, channels: int) -> None:
    net = Net(1, 4, channels)
    made = net.op("TANH")
    seen = net.reshape(2, 2, channels)
    net.transpose(1, 0, 2)
    moved = net.sums()
    other = net.sums(of=seen)
    _check(device, net, 4, moved, other)
    again = net.sums(of=made)
    _check(device, net, 4, moved, other, again)


def test_an_output_stays_where_it_is(device: Device) -> None:
    net = Net(1, 4, 8)
    made = net.op("TANH")
    net.reshape(2, 2, 8)
    net.transpose(1, 0, 2)
    _check(device, net, 3, made, net.sums())


def _moved(shape: Shape, order: Sequence[int], source: Shape) -> tuple[Array, Array] | None:
    """Where a place puts the numbers of the elements, and where the transposition has them."""
    numbers = np.arange(np.prod(shape)).reshape(shape)
    expected = numbers.transpose(order)
    place = place_of(reordered(0, shape, order), source, expected.shape)
    if place is None:
        return None
    unit = source[-1] if place.slices is None else 4
    units = numbers.reshape(-1, unit)
    found = np.full_like(units, -1)
    for at, index in enumerate(np.ndindex(place.sizes)):
        found[np.dot(index, place.steps)] = units[at]
    return found.reshape(-1), expected.reshape(-1)


def test_places_are_those_of_numpy() -> None:
    rng, joined = np.random.default_rng(11), 0
    for _ in range(300):
        shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 8], rng.integers(1, 5)))
        order = rng.permutation(len(shape)).tolist()
        whole = (int(np.prod(shape)),)
        for source in (shape, whole, (*whole, 1)):
            found = _moved(shape, order, source)
            if found is not None:
                np.testing.assert_array_equal(*found)
                joined += 1
    assert joined > 100


def test_repeated_and_left_out_elements_have_no_place() -> None:
    assert place_of(Moves(0, (2, 8), (8, 1)), (2, 8), (2, 8)) is not None
    assert place_of(Moves(0, (2, 8), (0, 1)), (2, 8), (2, 8)) is None  # one row, twice
    assert place_of(Moves(0, (2, 4), (8, 1)), (2, 8), (2, 4)) is None  # half of each row
    assert place_of(Moves(0, (2, 8), (-8, 1), 8), (2, 8), (2, 8)) is None  # backwards
    assert place_of(Moves(0, (2, 8), (16, 1)), (2, 8), (2, 8)) is None  # every other row
    assert place_of(Moves(0, (0, 8), (8, 1)), (0, 8), (0, 8)) is None


# Steps of the same rows become one kernel, which computes what they compute one by one.


class NetRows:
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


def _check_rows(device: Device, net: NetRows, kernels: list[str], *outputs: Value) -> None:
    """These kernels, and bit for bit what a kernel for each node gives."""
    plan = net.plan(*outputs)
    assert [d.kernel.name for d in plan.dispatches] == kernels
    apart = _results(device, net, net.plan(*outputs, fuse=False))
    for got, other, value in zip(_results(device, net, plan), apart, outputs, strict=True):
        np.testing.assert_array_equal(got, other)
        np.testing.assert_allclose(got, net.made[value.id], rtol=1e-5, atol=1e-6)


def _rounded(net: NetRows, x: Value) -> Value:
    """As a quantized tensor has it."""
    return net.op("QUANTIZE_AND_DEQUANTIZE", x, attributes=QuantizeAndDequantize(0.0125, -128, 127))


def _normalized(net: NetRows, x: Value) -> Value:
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
    net = NetRows(*shape)
    _check_rows(device, net, ["rows"], _normalized(net, net.x))


def test_others_read_the_same_operand(device: Device) -> None:
    net = NetRows(3, 12)
    made = net.op("TANH", net.x)
    total = net.op("ADD", made, _normalized(net, made))
    _check_rows(device, net, ["rows"], total)
    net = NetRows(3, 12)
    made = net.op("SOFTMAX", net.x, beta=1.0)
    first = _normalized(net, made)
    _check_rows(device, net, ["softmax", "rows", "exp"], first, net.op("EXP", made))


def test_a_number_that_others_need_is_made_for_them(device: Device) -> None:
    net = NetRows(3, 12)
    mean = net.reduced("MEAN", net.x)
    centred = net.op("SUB", net.x, mean)
    deviation = net.reduced("SUM", net.op("ABS", centred))
    result = net.op("DIV", centred, deviation)
    # The mean is a result too, so what comes before it is a kernel of its own.
    _check_rows(device, net, ["mean", "rows"], mean, result)


@pytest.mark.parametrize("name", ["REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"])
def test_other_reductions(device: Device, name: str) -> None:
    net = NetRows(3, 5)
    shifted = net.op("ADD", net.x, net.constant(5))
    _check_rows(device, net, ["rows"], net.op("SUB", shifted, net.reduced(name, shifted)))


def test_a_softmax_by_hand(device: Device) -> None:
    net = NetRows(2, 3, 9)
    powers = net.op("EXP", net.op("SUB", net.x, net.reduced("REDUCE_MAX", net.x)))
    _check_rows(device, net, ["rows"], net.op("DIV", powers, net.reduced("SUM", powers)))


def test_other_axes_and_axes_that_are_gone_stay_apart(device: Device) -> None:
    net = NetRows(3, 4, 8)
    _check_rows(
        device, net, ["mean", "sub"], net.op("SUB", net.x, net.reduced("MEAN", net.x, axis=1))
    )
    net = NetRows(8, 8)
    gone = net.reduced("MEAN", net.x, keep_dims=False)
    _check_rows(device, net, ["mean", "sub"], net.op("SUB", net.x, gone))


def test_few_rows_that_several_workgroups_share_stay_apart(device: Device) -> None:
    net = NetRows(1, 200_000)
    net.data[...] = 0.5
    net.made[net.x.id] = net.data
    names = [
        d.kernel.name for d in net.plan(net.op("SUB", net.x, net.reduced("MEAN", net.x))).dispatches
    ]
    assert names == ["mean_parts", "mean", "sub"]


def test_a_result_goes_where_a_transposition_has_it(device: Device) -> None:
    net = NetRows(2, 3, 8)
    order = net.graph.add_const(np.array([1, 0, 2], np.int32))
    _check_rows(device, net, ["rows"], net.op("TRANSPOSE", _normalized(net, net.x), order))
