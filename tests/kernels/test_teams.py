"""Teams of invocations: every item and step is taken care of once, on devices of any size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tflgpu.compiler.target import Target
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernels.domain import Domain, power_of_two, team_shape
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar
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


@pytest.mark.parametrize("caps", [SMALL, USUAL], ids=["16", "256"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 1001), 1), ((1, 97, 6), 1), ((4, 6, 37), -1)])
def test_first_of_equal_elements_is_found(
    shape: tuple[int, ...], axis: int, caps: DeviceCaps
) -> None:
    x = np.random.default_rng(3).integers(-3, 3, shape).astype(np.float32)
    for op in ("ARG_MAX", "ARG_MIN"):
        got, expected, _ = run_on(caps, op, ArgExtreme(DType.I32), x, [np.array(axis, np.int32)])
        np.testing.assert_array_equal(got, expected)
