"""A result whose every vector is made by itself is computed where it is read, bit for bit as a
kernel of its own makes it."""

from __future__ import annotations

from collections.abc import Sequence
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
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops

from tests.running import by_plan

_CAPS = DeviceCaps()


class Net:
    """A graph, with what the references make of its inputs."""

    def __init__(self) -> None:
        self.graph, self.data = Graph(), dict[int, Array]()
        self.rng = np.random.default_rng(3)

    def input(self, *shape: int, whole: bool = False) -> Value:
        value = self.graph.add_value(shape, DType.I32 if whole else DType.F32)
        drawn = self.rng.integers(0, 3, shape) if whole else self.rng.uniform(-1, 1, shape)
        self.data[value.id] = drawn.astype(value.dtype.numpy)
        self.graph.inputs.append(value)
        return value

    def ints(self, *data: int) -> Value:
        return self.graph.add_const(np.array(data, np.int32))

    def op(self, name: str, *inputs: Value, **fields: Any) -> Value:
        return self.ops(name, *inputs, **fields)[0]

    def ops(self, name: str, *inputs: Value, **fields: Any) -> list[Value]:
        definition = builtin_ops()[name]
        attributes = definition.parse(Fields(name, fields))
        arrays = [self.data[v.id] if v.data is None else v.data for v in inputs]
        made = definition.reference(attributes, arrays)
        values = [self.graph.add_value(a.shape, DType.from_numpy(a.dtype)) for a in made]
        self.data.update((v.id, a) for v, a in zip(values, made, strict=True))
        self.graph.add_node(name, attributes, list(inputs), values)
        return values

    def slice(self, x: Value, begin: Sequence[int], size: Sequence[int]) -> Value:
        return self.op("SLICE", x, self.ints(*begin), self.ints(*size))

    def transpose(self, x: Value, *order: int) -> Value:
        return self.op("TRANSPOSE", x, self.ints(*order))

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.op("RESHAPE", x, new_shape=shape)

    def concat(self, axis: int, *inputs: Value) -> Value:
        return self.op("CONCATENATION", *inputs, axis=axis)

    def weights(self, *shape: int) -> Value:
        return self.graph.add_const(self.rng.uniform(-1, 1, shape).astype(np.float32))

    def plan(
        self,
        outputs: Sequence[Value],
        *,
        fuse: bool,
        caps: DeviceCaps = _CAPS,
        precision: Precision = Precision.F32,
    ) -> Plan:
        graph = self.graph
        graph.outputs = list(outputs)
        target = attrs.evolve(Target.plain(caps, precision, alignment=256), fuse=fuse)
        return plan_of(graph.nodes, graph.inputs, graph.outputs, target)

    def run(self, device: Device, plan: Plan) -> list[Array]:
        return by_plan(device, plan, *(self.data[value.id] for value in self.graph.inputs))

    def check(self, device: Device, kernels: list[str], *outputs: Value) -> Plan:
        """These kernels, and the same as without joining."""
        plan = self.plan(outputs, fuse=True)
        apart = self.run(device, self.plan(outputs, fuse=False))
        for got, other, value in zip(self.run(device, plan), apart, outputs, strict=True):
            np.testing.assert_array_equal(got, other)
            np.testing.assert_allclose(got, self.data[value.id], rtol=1e-5, atol=1e-6)
        assert [d.kernel.name for d in plan.dispatches] == kernels, plan.dispatches
        return plan


@pytest.mark.parametrize("half", [4, 3, 1])
def test_half_rotations_are_one_kernel(device: Device, half: int) -> None:
    net = Net()
    x, cos, sin = net.input(2, 3, 5, 2 * half), net.input(5, 2 * half), net.input(5, 2 * half)
    first, last = (net.slice(x, (0, 0, 0, at), (2, 3, 5, half)) for at in (0, half))
    turned = net.concat(3, net.op("NEG", last), first)
    made = net.op("ADD", net.op("MUL", x, cos), net.op("MUL", turned, sin))
    plan = net.check(device, ["concatenation"], made)
    assert not plan.arenas


@pytest.mark.parametrize("half", [8, 2])
def test_rotations_of_parts_are_one_kernel(device: Device, half: int) -> None:
    net = Net()
    x, cos, sin = net.input(1, 3, 2 * half), net.input(1, 1, half), net.input(1, 1, half)
    a, b = (net.slice(x, (0, 0, at), (1, 3, half)) for at in (0, half))
    first = net.op("SUB", net.op("MUL", a, cos), net.op("MUL", b, sin))
    last = net.op("ADD", net.op("MUL", b, cos), net.op("MUL", a, sin))
    net.check(device, ["concatenation"], net.concat(2, first, last))


@pytest.mark.parametrize("width", [8, 5])
def test_gates_are_read_in_place(device: Device, width: int) -> None:
    net = Net()
    gates, cell = net.input(2, 4 * width), net.input(2, width)
    i, g, f, o = net.ops("SPLIT", net.ints(1), gates, num_splits=4)
    kept = net.op("MUL", net.op("LOGISTIC", f), cell)
    new = net.op("ADD", kept, net.op("MUL", net.op("LOGISTIC", i), net.op("TANH", g)))
    out = net.op("MUL", net.op("LOGISTIC", o), net.op("TANH", new))
    assert len(net.check(device, ["tanh", "tanh"], new, out).dispatches) == 2


def test_whole_numbers_and_conditions(device: Device) -> None:
    net = Net()
    table, rows = net.input(6, 7), net.input(5, whole=True)
    moved = net.op("ADD", rows, net.ints(1))
    wrapped = net.op("SELECT_V2", net.op("LESS", moved, net.ints(3)), moved, rows)
    net.check(device, ["gather"], net.op("GATHER", table, wrapped, axis=0, batch_dims=0))


@pytest.mark.parametrize("channels", [8, 6])
def test_in_another_shape(device: Device, channels: int) -> None:
    net = Net()
    x = net.input(4, 3, channels)
    cut = net.slice(x, (1, 0, 0), (2, 3, channels))
    flat = net.reshape(cut, 6, channels)
    other = net.reshape(cut, 3, 2 * channels)
    tanh, exp = net.op("TANH", flat), net.op("EXP", other)
    again = "exp" if channels == 8 else "reshape"  # rows of another length are padded otherwise
    net.check(device, ["tanh", again], tanh, exp)


def test_a_result_that_something_else_needs_stays(device: Device) -> None:
    net = Net()
    x = net.input(3, 8)
    cut = net.slice(x, (0, 0), (3, 4))
    double, total = net.op("TANH", cut), net.op("CUMSUM", cut, net.ints(1))
    net.check(device, ["slice", "tanh", "cumsum"], double, total)
    net.check(device, ["slice", "tanh", "cumsum"], cut, double, total)


def test_rows_are_read_in_place(device: Device) -> None:
    net = Net()
    x = net.input(4, 3, 20)
    part = net.slice(x, (1, 0, 8), (2, 3, 7))
    soft = net.op("SOFTMAX", net.transpose(part, 1, 0, 2), beta=1.0)
    mean = net.op("MEAN", net.op("NEG", part), net.ints(2), keep_dims=True)
    net.check(device, ["softmax", "mean"], soft, mean)


@pytest.mark.parametrize("op", ["RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"])
@pytest.mark.parametrize("channels", [8, 5])
def test_images_are_resized_where_they_are_read(device: Device, op: str, channels: int) -> None:
    """Neighbours and shares that no formula gives are read from a table: one for all loads."""
    net = Net()

    def resized(height: int, width: int, **fields: Any) -> Value:
        return net.op(op, net.input(2, height, width, channels), net.ints(7, 10), **fields)

    one, other = resized(3, 5, half_pixel_centers=True), resized(4, 6, align_corners=True)
    made = net.op("ADD", net.op("MUL", net.input(2, 7, 10, channels), one), other)
    net.check(device, [op.lower()], made)
    # A vector of the transposed image is computed of four.
    turned = net.transpose(resized(3, 5, half_pixel_centers=True), 0, 1, 3, 2)
    (_, dispatch) = net.check(device, [op.lower(), "transpose"], made, turned).dispatches
    tables = ["pixels", "mix"] if op == "RESIZE_BILINEAR" else ["pixels"]
    assert len(dispatch.kernel.buffers) == 2 + len(tables)


@pytest.mark.parametrize("precision", list(Precision), ids=str)
@pytest.mark.parametrize("rows", [1, 35])
def test_products_read_some_channels_in_place(
    device: Device, rows: int, precision: Precision
) -> None:
    net = Net()
    x = net.op("SOFTMAX", net.input(1, rows, 7, 24), beta=1.0)
    low, high = net.ops("SPLIT", net.ints(3), x, num_splits=2)
    last = net.slice(x, (0, 0, 0, 4), (1, rows, 7, 20))
    outs = [
        net.op("CONV_2D", low, net.weights(6, 3, 3, 12), stride_h=1, stride_w=1, padding=0),
        net.op("CONV_2D", high, net.weights(40, 1, 1, 12), stride_h=2, stride_w=1, padding=0),
        net.op("FULLY_CONNECTED", last, net.weights(9, 20), keep_num_dims=True),
    ]
    tiles = {"matrix_tiles": device.info.backend == "cpu_ref", "vendor": "nvidia"}
    for is_gpu in (True, False):
        caps = attrs.evolve(device.caps, is_gpu=is_gpu, cache_bytes=1 << 30, **tiles)
        plan = net.plan(outs, fuse=True, caps=caps, precision=precision)
        assert {d.kernel.name for d in plan.dispatches}.isdisjoint({"split", "slice"})
        apart = net.run(device, net.plan(outs, fuse=False, caps=caps, precision=precision))
        for got, other in zip(net.run(device, plan), apart, strict=True):
            np.testing.assert_array_equal(got, other)
    # Three channels further on a vector is one of two, which is too much where it is read often.
    other = net.slice(x, (0, 0, 0, 3), (1, rows, 7, 20))
    found = net.op("FULLY_CONNECTED", other, net.weights(4000, 20), keep_num_dims=True)
    names = [d.kernel.name for d in net.plan([found, x], fuse=True).dispatches]
    assert "slice" in names


def _kernels(net: Net, device: Device, *outputs: Value, **more: Any) -> list[list[str]]:
    """Of devices with kernels of each kind: those that there are, with the numbers of a kernel for
    each node."""
    found = []
    more = {"cache_bytes": 1 << 30, "vendor": "nvidia", "max_bindings": 8} | more
    for caps in ({"is_gpu": False}, {"is_gpu": True}, {"is_gpu": True, "matrix_tiles": True}):
        given = attrs.evolve(device.caps, **(more | caps))
        plan = net.plan(outputs, fuse=True, caps=given, precision=Precision.F32_F16)
        apart = net.plan(outputs, fuse=False, caps=given, precision=Precision.F32_F16)
        for got, other in zip(net.run(device, plan), net.run(device, apart), strict=True):
            np.testing.assert_array_equal(got, other)
        found.append([d.kernel.name for d in plan.dispatches])
    return found


@pytest.mark.parametrize("units", [24, 30])
def test_products_add_as_they_read(device: Device, units: int) -> None:
    """Positions to tokens, say."""
    net = Net()
    x, places = net.input(1, 35, units), net.input(35, units)
    rows = net.op("ADD", x, places)
    made = net.op("FULLY_CONNECTED", rows, net.weights(40, units), keep_num_dims=True)
    names = _kernels(net, device, made)
    assert names == [[f"fully_connected_{kind}"] for kind in ("direct", "gemm", "matrix")]
    net = Net()
    image, gate = net.input(1, 6, 7, units), net.input(1, 1, 1, units)
    scaled = net.op("MUL", image, gate)
    made = net.op("CONV_2D", scaled, net.weights(5, 1, 1, units), stride_h=1, stride_w=1, padding=0)
    names = _kernels(net, device, made)
    assert names == [[f"conv_2d_{kind}"] for kind in ("direct", "gemm", "matrix")]


def test_products_that_read_often_do_not_add(device: Device) -> None:
    """Each of the many workgroups along the outputs would."""
    net = Net()
    rows = net.op("ADD", net.input(64, 128), net.input(64, 128))
    made = net.op("FULLY_CONNECTED", rows, net.weights(2048, 128), keep_num_dims=True)
    assert all(names[0] == "add" for names in _kernels(net, device, made))


@pytest.mark.parametrize("rows", [5, 33])
def test_products_of_two_tensors_read_slices_in_place(device: Device, rows: int) -> None:
    net = Net()
    packed = net.input(3, 2, rows, 12)
    q, k = (
        net.reshape(net.slice(packed, (i, 0, 0, 0), (1, 2, rows, 12)), 2, rows, 12) for i in (0, 2)
    )
    scaled = net.op("MUL", q, net.input(1))
    made = net.op("BATCH_MATMUL", scaled, k, adj_x=False, adj_y=True)
    tiled = ["batch_matmul_tiled" if rows == 33 else "batch_matmul"]
    assert _kernels(net, device, made) == [["batch_matmul"], tiled, tiled]


def test_what_is_dear_is_not_computed_often(device: Device) -> None:
    net = Net()
    x = net.input(1, 1, 8)
    cos = net.op("COS", x)
    wide = [net.op("MUL", net.input(5, 3, 8), cos) for _ in range(6)]
    net.check(device, ["cos", *["mul"] * 3], *wide)  # as many side by side as buffers allow
    # Once for every element of what reads it: too much work, though a launch less.
    net = Net()
    table = net.op("COS", net.input(1, 1, 8))
    net.check(device, ["cos", "mul"], net.op("MUL", net.input(700, 40, 8), table))


def test_a_kernel_binds_no_more_than_a_device_allows(device: Device) -> None:
    net = Net()
    parts = [net.op("MUL", net.input(2, 4), net.input(2, 4)) for _ in range(3)]
    whole = net.concat(1, *parts)
    net.check(device, ["concatenation"], whole)
    few = net.plan([whole], fuse=True, caps=attrs.evolve(_CAPS, max_bindings=6))
    assert max(len(d.kernel.buffers) for d in few.dispatches) <= 6
    np.testing.assert_array_equal(net.run(device, few)[0], net.data[whole.id])


def _drawn(net: Net, rng: np.random.Generator, values: list[Value]) -> list[Value]:
    """Another operator on some of the values."""
    x = values[rng.integers(len(values))]
    rank, axis = len(x.shape), int(rng.integers(len(x.shape)))
    kind = rng.integers(9)
    if kind == 0:
        begin = [int(rng.integers(n)) for n in x.shape]
        size = [int(rng.integers(1, n - b + 1)) for n, b in zip(x.shape, begin, strict=True)]
        return [net.slice(x, begin, size)]
    if kind == 1:
        return [net.transpose(x, *rng.permutation(rank).tolist())]
    if kind == 2:
        sizes = (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))
        return [net.reshape(x, *sizes)]
    if kind == 3:
        alike = [v for v in values if len(v.shape) == rank]
        alike = [
            v
            for v in alike
            if all(
                a == b for d, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if d != axis
            )
        ]
        return [net.concat(axis, x, alike[rng.integers(len(alike))], x)]
    if kind == 4:
        borders = net.graph.add_const(rng.integers(0, 3, (rank, 2)).astype(np.int32))
        return [net.op("PAD", x, borders)]
    if kind == 5 and x.shape[axis] % 2 == 0:
        return net.ops("SPLIT", net.ints(axis), x, num_splits=2)
    if kind == 6:
        return [net.op("TILE", x, net.ints(*rng.integers(1, 3, rank).tolist()))]
    if kind == 7:
        others = [v for v in values if v.shape == x.shape]
        return [net.op("SUB", x, others[rng.integers(len(others))])]
    return [net.op("NEG", x)]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_graphs(device: Device, seed: int) -> None:
    net, rng = Net(), np.random.default_rng(seed)
    values = [net.input(2, 3, 8), net.input(2, 3, 8), net.input(4, 5, 3), net.input(7, 6)]
    for _ in range(14):
        values += [v for v in _drawn(net, rng, values) if np.prod(v.shape) < 4000]
    outputs = [values[-1], *(v for v in values[4:-1] if rng.integers(4) == 0)]
    joined, apart = net.plan(outputs, fuse=True), net.plan(outputs, fuse=False)
    assert len(joined.dispatches) <= len(apart.dispatches)
    found, others = net.run(device, joined), net.run(device, apart)
    for got, other, value in zip(found, others, outputs, strict=True):
        np.testing.assert_array_equal(got, other)
        np.testing.assert_array_equal(got, net.data[value.id])
