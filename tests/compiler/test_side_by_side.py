"""Small dispatches that need nothing of each other become one, bit for bit the same; on the
interpreter, which refuses races and what lies out of bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import OutputRef, Plan, PlannedDispatch
from tflgpu.compiler.side_by_side import side_by_side
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.stored_reals import ConstantData, StoredReals
from tflgpu.language.budget import MAX_KERNEL, cost
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.check import check
from tflgpu.language.types import F32, I32, Scalar, Type
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Fields
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.registry import builtin_ops
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.running import by_plan

CAPS = {"shared_bytes": 32768, "cache_bytes": 1 << 20}
#: Capabilities of a device, and the name of the kernel that makes products there.
PRODUCTS = {
    "direct": {"is_gpu": False},
    "gemm": {"is_gpu": True},
    "matrix": {"is_gpu": True, "matrix_tiles": True, "vendor": "nvidia"},
}


@pytest.fixture
def device() -> Iterator[Device]:
    """The kernel interpreter, with more buffers than every API allows."""
    opened = CpuRefDevice()
    opened.caps = attrs.evolve(opened.caps, max_bindings=16)
    yield opened
    opened.close()


class Net:
    """A graph, and its inputs."""

    def __init__(self) -> None:
        self.graph, self.data = Graph(), list[Array]()
        self.rng = np.random.default_rng(5)

    def input(self, *shape: int) -> Value:
        self.graph.inputs.append(self.graph.add_value(shape, DType.F32))
        self.data.append(self.rng.uniform(-1, 1, shape).astype(np.float32))
        return self.graph.inputs[-1]

    def op(self, name: str, *inputs: Value, shape: Sequence[int] = (), **fields: Any) -> Value:
        attributes = builtin_ops()[name].parse(Fields(name, fields))
        result = self.graph.add_value(tuple(shape) or inputs[0].shape, DType.F32)
        self.graph.add_node(name, attributes, list(inputs), [result])
        return result

    def product(self, x: Value, outputs: int, kind: str = "f32") -> Value:
        sizes = outputs, x.shape[-1]
        weights: ConstantData = self.rng.uniform(-1, 1, sizes).astype(np.float32)
        if kind == "bytes":
            numbers = self.rng.integers(-127, 128, sizes).astype(np.int8)
            weights = StoredReals(numbers, Quantization((0.01,) * outputs, (0,) * outputs))
        shape = (*x.shape[:-1], outputs)
        return self.op("FULLY_CONNECTED", x, self.graph.add_const(weights), shape=shape)

    def made(self, name: str, attributes: object, x: Value) -> Value:
        result = self.graph.add_value(x.shape, DType.F32)
        self.graph.add_node(name, attributes, [x], [result])
        return result

    def run(
        self,
        device: Device,
        outputs: Sequence[Value],
        *,
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

    def check(self, device: Device, dispatches: int, *outputs: Value, **caps: object) -> Plan:
        """So many dispatches, and the numbers of one for each node."""
        plan, found = self.run(device, outputs, **caps)
        assert len(plan.dispatches) == dispatches, [d.label for d in plan.dispatches]
        _, apart = self.run(device, outputs, fuse=False, **caps)
        for got, want in zip(found, apart, strict=True):
            np.testing.assert_array_equal(got, want)
        return plan


@pytest.mark.parametrize("kind", ["f32", "bytes"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize(
    ("rows", "sizes"), [((19, 19, 19), (9, 12, 10)), ((40, 33, 48), (9, 8, 12))]
)
def test_products_of_several_inputs(
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    rows: tuple[int, ...],
    sizes: tuple[int, ...],
) -> None:
    """Longer along the one axis of workgroups, or the other."""
    monkeypatch.setattr("tflgpu.compiler.side_by_side._MOST_ON_MATRICES", MAX_KERNEL)
    net = Net()
    pairs = zip(rows, sizes, strict=True)
    results = [net.product(net.input(n, 44), size, kind) for n, size in pairs]
    (dispatch,) = net.check(device, 1, *results, **PRODUCTS[name]).dispatches
    assert dispatch.kernel.name == f"fully_connected_{name}"
    assert dispatch.label == " + ".join(["#new FULLY_CONNECTED"] * 3)


@pytest.mark.parametrize("counts", [(4, 9), (9, 4)])
def test_arrays_of_the_workgroup_are_those_of_the_larger_kernel(counts: tuple[int, int]) -> None:
    def dispatch(count: int, kind: Type = F32) -> PlannedDispatch:
        k = Builder("sums", (8, 1, 1))
        out, room = k.buffer("dst", Scalar.F32, 1, "write"), k.shared("room", kind, count)
        k.store_shared(room, k.local_id(0) % count, k.const(1, kind))
        k.store(out, k.global_id(0), k.f32(1.0))
        return PlannedDispatch(k.build(), (1, 1, 1), (OutputRef(0),), "sums")

    caps = DeviceCaps()
    (both,) = side_by_side([dispatch(each) for each in counts], caps)
    assert [(room.name, room.count) for room in both.kernel.shared] == [("room", 9)]
    check(both.kernel)
    assert len(side_by_side([dispatch(4), dispatch(4, I32)], caps)) == 2
    few = attrs.evolve(caps, shared_bytes=32)
    assert len(side_by_side([dispatch(each) for each in counts], few)) == 2


def test_workgroups_that_may_be_left_out_stay_the_last_ones() -> None:
    k = Builder("ones", (8, 1, 1))
    out = k.buffer("dst", Scalar.F32, 1, "write")
    k.store(out, k.global_id(0), k.f32(1.0))
    made = PlannedDispatch(k.build(), (4, 1, 1), (OutputRef(0),), "ones")

    def joined(*fewer: Any) -> list[tuple[Any, Any]]:
        dispatches = [attrs.evolve(made, fewer=each) for each in fewer]
        return [(d.groups, d.fitted(5).groups) for d in side_by_side(dispatches, DeviceCaps())]

    along = ((4, 3, 2), (), ())
    assert joined((), ()) == [((8, 1, 1), (8, 1, 1))]
    assert joined(along, along) == [((4, 2, 1), (2, 2, 1))]
    assert joined(along, ()) == [((4, 1, 1), (2, 1, 1)), ((4, 1, 1), (4, 1, 1))]
    assert len(joined(along, ((4, 3, 1), (), ()))) == 2


@pytest.mark.parametrize(
    ("norm", "rows", "kernel"),
    [((RMS, NormAttrs(1e-5)), 2, "gemv"), ((NAME, MeanStddev((-1,), 1e-5)), 19, "matrix")],
)
def test_rows_that_each_product_normalizes(
    device: Device, norm: tuple[str, object], rows: int, kernel: str
) -> None:
    """Queries, keys and values: each reads the rows as they are."""
    net = Net()
    x = net.made(*norm, net.input(rows, 64))
    results = [net.product(x, outputs) for outputs in (16, 16, 12)]
    caps = PRODUCTS["matrix"] | {"precision": Precision.F16, "subgroup_shuffle": 32}
    plan, found = net.run(device, results, **caps)
    assert [d.kernel.name for d in plan.dispatches] == [f"fully_connected_{kernel}"]
    _, apart = net.run(device, results, fuse=False)
    for got, want in zip(found, apart, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-2)


def test_a_row_that_is_not_finite_stays_where_it_is(device: Device) -> None:
    net = Net()
    x = net.input(18, 40)
    net.data[0][3] = np.nan
    _, found = net.run(device, [net.product(x, 8), net.product(net.input(18, 40), 8)])
    assert np.isnan(found[0][3]).all() and np.isfinite(np.delete(found[0], 3, 0)).all()
    assert np.isfinite(found[1]).all()


def test_a_layer_behind_another_waits_for_it(device: Device) -> None:
    net = Net()
    x, y = net.input(5, 12), net.input(5, 12)
    first = net.product(x, 12)
    net.check(device, 2, net.product(first, 8), net.product(y, 16))


def test_what_is_large_or_of_another_kind_stays_apart(device: Device) -> None:
    net = Net()
    net.check(device, 2, net.product(net.input(9, 12), 8), net.op("SOFTMAX", net.input(9, 8)))
    net = Net()
    many = [net.op("TANH", net.input(257, 64, 4)) for _ in range(2)]  # 257 workgroups of 64
    net.check(device, 2, *many)
    net = Net()  # workgroups differ along both axes
    sizes = ((9, 8), (90, 200))
    net.check(device, 2, *[net.product(net.input(n, 12), size) for n, size in sizes], is_gpu=False)


@pytest.mark.parametrize(("name", "dispatches"), [("matrix", 2), ("gemm", 1)])
def test_no_more_code_on_matrices_than_a_driver_compiles_soon(
    device: Device, monkeypatch: pytest.MonkeyPatch, name: str, dispatches: int
) -> None:
    net = Net()
    results = [net.product(net.input(9, 44), 12) for _ in range(4)]
    alone = Net()
    plan = alone.check(device, 1, alone.product(alone.input(9, 44), 12), **PRODUCTS[name])
    each = cost(plan.dispatches[0].kernel)
    monkeypatch.setattr("tflgpu.compiler.side_by_side._MOST_ON_MATRICES", 3 * each)
    net.check(device, dispatches, *results, **PRODUCTS[name])


def test_no_more_than_a_device_allows(device: Device) -> None:
    net = Net()
    results = [net.product(net.input(5, 12), 8) for _ in range(3)]
    net.check(device, 2, *results, max_bindings=8)
    net.check(device, 2, *results, max_groups=(2, 2, 2))
    net = Net()
    results = [net.op("TANH", net.input(40, 4)) for _ in range(3)]
    net.check(device, 1, *results)
