"""Teams of invocations: every item and step is taken care of once, on devices of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tflgpu.compiler.target import Target
from tflgpu.conformance.samples import materialize
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernels.domain import Domain, power_of_two, team_shape
from tflgpu.kernels.team import Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.language.subgroup import largest_group
from tflgpu.language.tree import Barrier, Expr, Kernel
from tflgpu.language.types import F32, Scalar
from tflgpu.language.walk import statements
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.lowering import Constant, Lowering, Precision, Temp
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import ArgExtreme, Reduce
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.softmax import Softmax


@settings(max_examples=300, deadline=None)
@given(
    st.integers(1, 70000), st.integers(1, 200000), st.booleans(), st.integers(0, 3),
    st.sampled_from([16, 64, 128, 256, 1024]),
)  # fmt: skip
@example(65536, 9, True, 0, 16)  # more items than workgroups of the lanes that suit them
def test_teams_cover_every_item_and_step(
    items: int, rows: int, lanes_first: bool, cut: int, most: int
) -> None:
    caps = DeviceCaps(max_workgroup=most)
    steps = rows * max(cut, 1)
    shape = team_shape(caps, items, steps, lanes_first=lanes_first, cut=cut)
    assert shape.columns * shape.lanes <= min(most, 256)
    assert shape.lanes == power_of_two(shape.lanes)
    assert shape.groups[0] * shape.columns >= items > (shape.groups[0] - 1) * shape.columns
    assert shape.parts * shape.chunk >= steps > (shape.parts - 1) * shape.chunk
    assert shape.parts == 1 or shape.chunk % cut == 0
    assert all(n <= limit for n, limit in zip(shape.groups, caps.max_groups, strict=True))


@pytest.mark.parametrize("axes", [(0,), (1, 2), (3,), (0, 2), (1, 3), (0, 1, 2, 3)])
def test_domains_count_what_they_reduce(axes: tuple[int, ...]) -> None:
    shape = (2, 3, 5, 7)
    domain = Domain.of(shape, axes)
    count = int(np.prod([shape[a] for a in axes]))
    assert domain.count == count
    channels = 1 if 3 in axes else 7
    assert domain.keys * channels == np.prod(shape) // count


def pack(array: Array, layout: Layout) -> Array:
    rows = array.reshape(layout.outer, layout.channels)
    padded = np.zeros((layout.outer, layout.slices * 4), layout.storage.numpy)
    padded[:, : layout.channels] = rows
    return padded.reshape(-1)


def run_on(
    caps: DeviceCaps, op: str, attributes: Any, x: Array, constants: Sequence[Array] = ()
) -> tuple[Array, Array, list[str]]:
    """The kernels' result, the reference's, and the names of the kernels that ran."""
    graph = Graph()
    source = graph.add_value(x.shape, DType.from_numpy(x.dtype))
    operands = [source, *(graph.add_const(c) for c in constants)]
    definition = builtin_ops()[op]
    expected = definition.reference(attributes, [x, *constants])[0]
    result = graph.add_value(expected.shape, DType.from_numpy(expected.dtype))
    node: Node = graph.add_node(op, attributes, operands, [result])

    def layout_of(value: Any) -> Layout:
        storage = Scalar.F32 if value.dtype.is_float else Scalar.I32
        return Layout(value.shape, LayoutKind.C4, storage)

    rule = Target.plain(caps, Precision.F32).rule(node)
    low = Lowering(node, caps, Precision.F32, layout_of)
    rule.build(low)  # type: ignore[union-attr]
    memory: dict[Any, Array] = {source.id: pack(x, layout_of(source))}
    out = layout_of(result)
    memory[result.id] = np.full(out.elements, 77, out.storage.numpy)
    for dispatch in low.dispatches:
        arrays = []
        for binding in dispatch.bindings:
            if isinstance(binding, Constant):
                arrays.append(binding.data)
            elif isinstance(binding, Temp):
                blank = np.full(binding.layout.elements, 77, binding.layout.storage.numpy)
                arrays.append(memory.setdefault(("temp", binding.id), blank))
            else:
                arrays.append(memory[binding.id])
        interpret(dispatch.kernel, dispatch.groups, arrays)
    rows = memory[result.id].reshape(out.outer, out.slices * 4)
    assert not rows[:, out.channels :].any(), "padding lanes are not zero"
    got = rows[:, : out.channels].reshape(expected.shape)
    return got, expected, [d.kernel.name for d in low.dispatches]


SMALL = DeviceCaps(max_workgroup=16, max_workgroup_size=(16, 16, 16))
USUAL = DeviceCaps()


@pytest.mark.parametrize("caps", [SMALL, USUAL], ids=["16", "256"])
@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 71, 73, 6), (1, 2)), ((1, 97, 101, 3), (1, 2, 3)), ((5000, 7), (1,))]
)
def test_means_of_many_elements(
    shape: tuple[int, ...], axes: tuple[int, ...], caps: DeviceCaps
) -> None:
    x = np.random.default_rng(0).uniform(5, 7, shape).astype(np.float32)
    got, expected, kernels = run_on(caps, "MEAN", Reduce(False), x, [np.array(axes, np.int32)])
    np.testing.assert_allclose(got, expected, rtol=2e-6)
    assert kernels == (["mean"] if shape[0] == 5000 else ["mean_parts", "mean"])


@pytest.mark.parametrize("caps", [SMALL, USUAL], ids=["16", "256"])
@pytest.mark.parametrize(
    ("shape", "axes", "dispatches"),
    [
        ((1, 71, 73, 6), (1, 2), 2),
        ((1, 97, 101, 3), (1, 2, 3), 2),
        ((3, 5, 77), (2,), 1),
        ((2, 5, 7, 9), (1, 2), 1),
    ],
)
def test_normalization_far_from_zero(
    shape: tuple[int, ...], axes: tuple[int, ...], dispatches: int, caps: DeviceCaps
) -> None:
    """The mean is 1000 standard deviations away: squares of sums would have cancelled."""
    x = np.random.default_rng(1).normal(1000, 1, shape).astype(np.float32)
    got, expected, kernels = run_on(caps, NAME, MeanStddev(axes, 1e-5), x)
    assert len(kernels) == dispatches
    Tolerance.accumulate(x.size).check(got, expected)


@pytest.mark.parametrize("caps", [SMALL, USUAL], ids=["16", "256"])
@pytest.mark.parametrize("shape", [(3, 1001), (7, 5), (70000, 3), (2, 3, 4)])
def test_softmax_on_devices_of_any_size(shape: tuple[int, ...], caps: DeviceCaps) -> None:
    x = np.random.default_rng(2).uniform(-9, 9, shape).astype(np.float32)
    got, expected, _ = run_on(caps, "SOFTMAX", Softmax(1.0), x)
    Tolerance.transcendental().check(got, expected)


@pytest.mark.parametrize("beta", [4.0, -4.0, -0.5])
def test_elements_that_beta_takes_beyond_f32(beta: float) -> None:
    x = np.random.default_rng(3).uniform(-3, 3, (5, 7)).astype(np.float32)
    x[1:, ::3] *= np.float32(1e38)
    got, expected, _ = run_on(USUAL, "SOFTMAX", Softmax(beta), x)
    assert np.isfinite(expected).all()
    Tolerance.transcendental().check(got, expected)


@pytest.mark.parametrize("caps", [SMALL, USUAL], ids=["16", "256"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 1001), 1), ((1, 97, 6), 1), ((4, 6, 37), -1)])
def test_first_of_equal_elements_is_found(
    shape: tuple[int, ...], axis: int, caps: DeviceCaps
) -> None:
    x = np.random.default_rng(3).integers(-3, 3, shape).astype(np.float32)
    for op in ("ARG_MAX", "ARG_MIN"):
        got, expected, _ = run_on(caps, op, ArgExtreme(DType.I32), x, [np.array(axis, np.int32)])
        np.testing.assert_array_equal(got, expected)


# Teams that merge by shuffles: which do, and that they find what teams without shuffles find.


WIDTHS = (0, 2, 4, 8, 16, 32)


def barriers(kernel: Kernel) -> int:
    return sum(isinstance(s, Barrier) for s in statements(kernel.body))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 64), st.integers(0, 8), st.booleans(), st.sampled_from([0, 4, 8, 12, 32]),
    st.sampled_from([64, 256]),
)  # fmt: skip
def test_who_shuffles(columns: int, log: int, lanes_first: bool, width: int, most: int) -> None:
    lanes = 1 << log
    caps = DeviceCaps(subgroup_shuffle=width, max_workgroup_size=(most, 256, 64))
    teams = Teams.of(caps, columns, lanes, lanes_first=lanes_first)
    near = teams.near
    assert near == 1 or near & (near - 1) == 0
    assert near <= lanes <= max(near * near, lanes if near == 1 else 0)
    assert np.prod(teams.workgroup) == columns * lanes
    if near > 1:
        stride = 1 if lanes_first else columns
        assert near * stride <= width
        assert teams.workgroup[0] % (near * stride) == 0
        assert lanes_first or teams.workgroup[0] <= most
    if not width:
        assert teams.workgroup == ((lanes, columns, 1) if lanes_first else (columns, lanes, 1))


def sums(teams: Teams, everywhere: bool, rounds: int) -> Kernel:
    """Each member's value, summed over its team ``rounds`` times over."""
    k = Builder("sums", teams.workgroup)
    src, dst = (k.buffer(n, Scalar.F32, 1, a) for n, a in (("src", "read"), ("dst", "write")))
    at = teams.member(k)
    place = k.let(at.column * teams.lanes + at.lane, "place")
    total = k.var(k.load(src, place), "total")
    room = at.shared(F32)
    for _ in range(rounds):
        at.combine([room], [total], lambda a, b: [a[0] + b[0]], everywhere=everywhere)
    if everywhere:
        k.store(dst, place, total)
    else:
        with k.if_(at.lane.eq(0)):
            k.store(dst, place, total)
    return k.build()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("columns", "lanes", "lanes_first"), [
    (1, 256, True), (4, 64, True), (2, 8, True), (64, 1, True), (3, 16, True), (4, 64, False),
    (1, 128, False), (16, 4, False), (3, 16, False), (64, 1, False), (2, 2, False),
])  # fmt: skip
def test_every_member_is_counted_once(
    columns: int, lanes: int, lanes_first: bool, width: int
) -> None:
    caps = DeviceCaps(subgroup_shuffle=width)
    teams = Teams.of(caps, columns, lanes, lanes_first=lanes_first)
    data = np.random.default_rng(1).integers(-99, 99, columns * lanes).astype(np.float32)
    total = data.reshape(columns, lanes).sum(1)
    for everywhere, rounds in ((False, 1), (True, 1), (True, 3)):
        found = np.zeros_like(data)
        kernel = sums(teams, everywhere, rounds)
        interpret(kernel, (1, 1, 1), [data, found])
        rows = found.reshape(columns, lanes)
        want = total * float(lanes) ** (rounds - 1)
        np.testing.assert_array_equal(rows[:, 0], want)
        if everywhere:
            np.testing.assert_array_equal(rows, np.repeat(want[:, None], lanes, axis=1))
        assert largest_group(kernel) <= width


def test_what_fits_a_subgroup_has_neither_barriers_nor_shared_memory() -> None:
    caps = DeviceCaps(subgroup_shuffle=32)
    inside = sums(Teams.of(caps, 2, 32, lanes_first=True), everywhere=True, rounds=2)
    assert barriers(inside) == 0
    assert not inside.shared
    across = sums(Teams.of(caps, 1, 256, lanes_first=True), everywhere=False, rounds=1)
    assert barriers(across) == 1
    assert across.shared_bytes == 8 * 4
    without = sums(Teams.of(DeviceCaps(), 1, 256, lanes_first=True), everywhere=False, rounds=1)
    assert barriers(without) == 8
    assert without.shared_bytes == 256 * 4


CAPS = [DeviceCaps(subgroup_shuffle=width) for width in WIDTHS]


@pytest.mark.parametrize("caps", CAPS, ids=lambda c: str(c.subgroup_shuffle))
@pytest.mark.parametrize(("op", "attributes", "shape", "axes", "tolerance"), [
    ("SOFTMAX", Softmax(1.0), (3, 1001), None, Tolerance.transcendental()),
    ("SOFTMAX", Softmax(0.5), (5000, 37), None, Tolerance.transcendental()),
    ("MEAN", Reduce(False), (1, 7, 7, 130), (1, 2), Tolerance.accumulate(49)),
    ("MEAN", Reduce(False), (1, 37, 41, 13), (1, 2), Tolerance.accumulate(37 * 41)),
    ("MEAN", Reduce(False), (2, 97, 101, 3), (1, 2, 3), Tolerance.accumulate(97 * 101 * 3)),
    ("REDUCE_MAX", Reduce(True), (3, 5, 77), (2,), Tolerance.exact()),
    ("ARG_MAX", ArgExtreme(DType.I32), (3, 1001), (1,), Tolerance.exact()),
    ("ARG_MIN", ArgExtreme(DType.I32), (1, 97, 6), (1,), Tolerance.exact()),
    (NAME, MeanStddev((2,), 1e-5), (3, 5, 77), None, Tolerance.accumulate(77)),
    (NAME, MeanStddev((1, 2), 1e-5), (1, 71, 73, 6), None, Tolerance.accumulate(71 * 73)),
])  # fmt: skip
def test_ops(
    op: str, attributes: Any, shape: tuple[int, ...], axes: Sequence[int] | None,
    tolerance: Tolerance, caps: DeviceCaps,
) -> None:  # fmt: skip
    rng = np.random.default_rng(7)
    # Whole numbers, so that there are equal ones for the first of them to be found.
    x = (rng.integers(-9, 9, shape) if op.startswith("ARG") else rng.normal(1, 3, shape)).astype(
        np.float32
    )
    constants: list[Array] = []
    if axes is not None:
        constants = [np.array(axes[0] if op.startswith("ARG") else axes, np.int32)]
    got, expected, _ = run_on(caps, op, attributes, x, constants)
    tolerance.check(got, expected)


def kernels_of(op: str, caps: DeviceCaps) -> list[Kernel]:
    """The kernels of all samples of an op."""
    found = []
    target = Target.plain(caps, Precision.F32)
    for sample in builtin_ops()[op].samples():
        case = materialize(builtin_ops()[op], sample, half=False)
        rule: Any = target.rule(case.node)
        if not hasattr(rule, "build"):
            continue
        low = Lowering(case.node, caps, Precision.F32, _layout)
        rule.build(low)
        found += [d.kernel for d in low.dispatches]
    return found


def _layout(value: Any) -> Any:
    storage = Scalar.F32 if value.dtype.is_float else Scalar.I32
    return Layout(value.shape, LayoutKind.C4, storage)


@pytest.mark.parametrize(
    "op", ["SOFTMAX", "SUM", "ARG_MAX", NAME, "L2_NORMALIZATION", "FULLY_CONNECTED"]
)
def test_devices_that_shuffle_get_kernels_that_do(op: str) -> None:
    caps = DeviceCaps(is_gpu=True, subgroup_shuffle=32)
    assert any(largest_group(kernel) for kernel in kernels_of(op, caps))
    assert all(largest_group(kernel) <= 8 for kernel in kernels_of(op, attrs.evolve(
        caps, subgroup_shuffle=8)))  # fmt: skip
    assert not any(largest_group(k) for k in kernels_of(op, attrs.evolve(caps, subgroup_shuffle=0)))


def merge_names(a: Sequence[Expr], b: Sequence[Expr]) -> list[Expr]:
    return [x + y for x, y in zip(a, b, strict=True)]


def test_several_values_are_merged_together() -> None:
    teams = Teams.of(DeviceCaps(subgroup_shuffle=4), 2, 16)
    assert teams.near == 1  # two lanes of a subgroup of 4 leave too many for another exchange
    teams = Teams.of(DeviceCaps(subgroup_shuffle=8), 2, 16)
    k = Builder("pairs", teams.workgroup)
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    at = teams.member(k)
    values = [k.var(k.cast(at.lane, Scalar.F32)), k.var(k.cast(at.column, Scalar.F32))]
    at.combine([at.shared(F32), at.shared(F32)], values, merge_names)
    with k.if_(at.lane.eq(0)):
        k.store(dst, at.column * 2, values[0])
        k.store(dst, at.column * 2 + 1, values[1])
    found = np.zeros(4, np.float32)
    interpret(k.build(), (1, 1, 1), [found])
    np.testing.assert_array_equal(found, [120, 0, 120, 16])
