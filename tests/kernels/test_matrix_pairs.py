"""Convolutions on matrix tiles inside of a part, where an input lies as f16 and two of its vectors
are read at once: products by stages, and windows whose inputs are staged once."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph
from tflgpu.kernels.conv import conv_problem
from tflgpu.kernels.matrix_gemm import build_matrix_gemm, split_operands
from tflgpu.kernels.matrix_shallow import ShallowTile, build_matrix_shallow
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.kernels.matrix_window import WindowTile, build_matrix_window
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.ops.base import Activation

from tests.kernels.test_matrix_products import (
    BOUNDS,
    HALVES,
    SPLIT,
    Case,
    case,
    error,
    plan_of,
    residual_error,
    with_tile,
)
from tests.kernels.test_products import Shape
from tests.passes.harness import Maker
from tests.running import by_plan

SHAPES = (
    Shape(13, 9, 16, 24, 3),
    Shape(13, 9, 64, 40, 3, stride=2),
    Shape(7, 9, 24, 12, 1),
    Shape(5, 9, 6, 8, 3),  # two slices of an input are not two of a pixel
    Shape(1, 1, 40, 20, 1),
    Shape(7, 1, 8, 36, 3),
)
#: Every number of stages in flight, places for them, and workgroups that share a sum.
TILES = (
    MatrixTile(2, 2, 1, 2, 2, 8, 2, 2, 1),
    MatrixTile(2, 2, 1, 1, 2, 16, 1, 1, 1),
    MatrixTile(1, 1, 4, 1, 2, 4, 4, 2, 1),
    MatrixTile(2, 1, 2, 1, 1, 8, 3, 2, 1),
    MatrixTile(2, 1, 2, 1, 1, 8, 3, 1, 3),
    MatrixTile(2, 2, 1, 1, 1, 4, 2, 1, 2),
)


def behind_another(made: Case) -> Case:
    """The case with a convolution before it that changes nothing: what lies between the two is
    stored as the precision says."""
    graph, channels = Graph(), made.x.shape[-1]
    source, between = (graph.add_value(made.x.shape, DType.F32) for _ in range(2))
    result = graph.add_value(made.expected.shape, DType.F32)
    graph.inputs, graph.outputs = [source], [result]
    same = attrs.evolve(
        made.node.attrs,
        stride_h=1,
        stride_w=1,
        dilation_h=1,
        dilation_w=1,
        activation=Activation.NONE,
    )
    identity = np.eye(channels, dtype=np.float32).reshape(channels, 1, 1, channels)
    constants = graph.add_const(identity), graph.add_const(np.zeros(channels, np.float32))
    graph.add_node("CONV_2D", same, [source, *constants], [between])
    constants = tuple(graph.add_const(made.node.const(i)) for i in (1, 2))
    node = graph.add_node("CONV_2D", made.node.attrs, [between, *constants], [result])
    return Case(node, graph, made.x, made.expected)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_of_staging(
    device: Device, tile: MatrixTile, precision: Precision, shape: Shape
) -> None:
    made = behind_another(case(shape, half=True))
    plan = plan_of(made, with_tile(tile), precision, device.caps, device.alignment)
    kernels = {d.kernel.name: d.kernel for d in plan.dispatches}
    read = {b.scalar for kernel in kernels.values() for b in kernel.buffers if b.name == "src0"}
    assert (Scalar.U32 in read) == (precision is Precision.F16 and shape.inner % 8 == 0)
    assert ("conv_sum" in kernels) == (tile.parts > 1)
    assert error(device, made, with_tile(tile), precision) < BOUNDS[precision]


@pytest.mark.parametrize("tile", [TILES[0], TILES[4]], ids=str)
def test_infinite_weights_past_the_end_of_a_sum_do_not_count(
    device: Device, tile: MatrixTile
) -> None:
    made = case(Shape(5, 3, 20, 8, 1), half=True)
    weights = np.array(made.node.const(1))
    weights[3, 0, 0, -1] = np.inf
    graph = Graph()
    source, result = (graph.add_value(a.shape, DType.F32) for a in (made.x, made.expected))
    graph.inputs, graph.outputs = [source], [result]
    inputs = [source, graph.add_const(weights), graph.add_const(np.zeros(8, np.float32))]
    node = graph.add_node("CONV_2D", made.node.attrs, inputs, [result])
    made = behind_another(Case(node, graph, made.x, made.expected))
    plan = plan_of(made, with_tile(tile), Precision.F16, device.caps, device.alignment)
    (found,) = by_plan(device, plan, made.x)
    assert np.isfinite(np.delete(found, 3, axis=-1)).all()
    assert not (np.isfinite(found[..., 3]) & (found[..., 3] > 0)).any()


# Windows


WINDOW_TILES = (
    WindowTile(2, 1, 2, 1, 4),
    WindowTile(4, 1, 2, 2, 4),
    WindowTile(1, 2, 4, 1, 8),
)


def window_problem(tile: WindowTile, low: Lowering) -> None:
    problem = conv_problem(low)
    if problem.window is None:
        build_matrix_gemm(low, problem, split_operands(low, problem), SPLIT, "before")
    else:
        build_matrix_window(low, problem, tile, "window")


@pytest.mark.parametrize("tile", WINDOW_TILES, ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(13, 9, 32, 24, 3),
        Shape(5, 37, 32, 40, 3),
        Shape(9, 18, 64, 8, 3, dilation=2),
        Shape(19, 16, 32, 32, 2),
        Shape(1, 33, 32, 8, 3),
        Shape(17, 1, 32, 8, 3),
    ],
    ids=str,
)
def test_every_window(device: Device, tile: WindowTile, shape: Shape) -> None:
    made = behind_another(case(shape, half=True))
    found = error(device, made, lambda low: window_problem(tile, low), Precision.F16)
    assert found < BOUNDS[Precision.F16]


@pytest.mark.parametrize("size", [(1, 13, 9, 24), (2, 3, 19, 40)], ids=str)
@pytest.mark.parametrize("tile", WINDOW_TILES, ids=str)
def test_a_residual_behind_a_window(
    device: Device, tile: WindowTile, size: tuple[int, int, int, int]
) -> None:
    g = Maker()
    *image, outer = size
    x, rest = g.input(*image, 32), g.input(*size)
    before = g.conv(x, 32, kernel=1)
    g.done(g.op("NEG", g.op("ADD", g.conv(before, outer), rest)))
    found = residual_error(device, lambda low: window_problem(tile, low), g.graph)
    assert found < 1e-3


@pytest.mark.parametrize(
    ("shape", "half", "is_window"),
    [
        (Shape(40, 33, 32, 32, 3), True, True),
        (Shape(40, 33, 32, 32, 3, stride=2), True, False),
        (Shape(40, 33, 32, 32, 1), True, False),
        (Shape(40, 33, 12, 32, 3), True, False),  # its pixels are no pairs
        (Shape(40, 33, 32, 12, 3), True, False),  # nor are its weights
        (Shape(40, 33, 32, 32, 3), False, False),  # its input is stored as f32
    ],
    ids=str,
)
def test_windows_are_chosen_where_they_can_be(
    device: Device, shape: Shape, half: bool, is_window: bool
) -> None:
    made = behind_another(case(shape, half=True))
    caps = attrs.evolve(device.caps, matrix_tiles=True, vendor="nvidia", shared_bytes=49152)
    precision = Precision.F16 if half else Precision.F32_F16
    plan = plan_of(made, None, precision, caps, device.alignment)
    assert plan.dispatches[-1].kernel.name == ("conv_2d_window" if is_window else "conv_2d_matrix")


def test_chosen_windows_give_the_same_numbers(device: Device) -> None:
    """By the rule, with what is fused behind it, on images side by side."""
    made = behind_another(case(Shape(40, 33, 32, 32, 3), half=True))
    caps = attrs.evolve(device.caps, matrix_tiles=True, vendor="nvidia")
    plan = plan_of(made, None, Precision.F16, caps, device.alignment)
    assert plan.dispatches[-1].kernel.name == "conv_2d_window"
    found = by_plan(device, plan, made.x)[0].astype(np.float64)
    assert np.linalg.norm(found - made.expected) < 4e-4 * np.linalg.norm(made.expected)


# Few input channels


def shallow_problem(tile: ShallowTile, low: Lowering) -> None:
    problem = conv_problem(low)
    if problem.window is None:
        build_matrix_gemm(low, problem, split_operands(low, problem), SPLIT, "before")
    else:
        build_matrix_shallow(low, problem, tile, "shallow")


@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        (ShallowTile(2, 1, 2), Shape(13, 67, 3, 32, 9)),
        (ShallowTile(1, 2, 1), Shape(6, 40, 1, 20, 5)),
        (ShallowTile(2, 2, 1), Shape(9, 35, 4, 8, 4)),
        (ShallowTile(2, 1, 2), Shape(30, 67, 3, 40, 7, stride=2)),
        (ShallowTile(1, 1, 1), Shape(1, 33, 3, 8, 5)),
        (ShallowTile(1, 2, 1), Shape(17, 1, 2, 8, 6)),
        (ShallowTile(2, 1, 1), Shape(13, 37, 8, 3, 9)),
        (ShallowTile(1, 2, 1), Shape(13, 70, 7, 12, 3, stride=2)),
        (ShallowTile(2, 2, 1), Shape(4, 32, 6, 3, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("inside", [True, False])
def test_few_input_channels(device: Device, tile: ShallowTile, shape: Shape, inside: bool) -> None:
    """Of a tensor between two kernels, and of a part's own input, which lies in f32."""
    made = case(shape, half=True)
    made = behind_another(made) if inside else made
    found = error(device, made, lambda low: shallow_problem(tile, low), Precision.F16)
    assert found < BOUNDS[Precision.F16]


@pytest.mark.parametrize("shape", [Shape(9, 37, 3, 8, 5), Shape(9, 37, 7, 8, 5)], ids=str)
def test_a_nan_shows_in_windows_of_few_channels_that_see_it(device: Device, shape: Shape) -> None:
    made, y, x = case(shape, half=True), 4, 18
    made.x[0, y, x, 1] = np.nan
    tile = ShallowTile(1, 1, 1)
    plan = plan_of(
        made, lambda low: shallow_problem(tile, low), Precision.F16, device.caps, device.alignment
    )
    found = np.isnan(by_plan(device, plan, made.x)[0]).all(axis=-1)
    expected = np.zeros_like(found)
    expected[0, y - 2 : y + 3, x - 2 : x + 3] = True
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "is_shallow"),
    [
        (Shape(64, 96, 3, 8, 9), True),
        (Shape(64, 96, 8, 3, 9), True),
        (Shape(64, 96, 3, 32, 7, stride=2), True),
        (Shape(64, 96, 3, 8, 3), False),  # no quicker
        (Shape(64, 96, 9, 8, 9), False),  # three vectors a pixel
        (Shape(64, 96, 3, 8, 9, dilation=2), False),  # taps are no neighbours
    ],
    ids=str,
)
def test_few_input_channels_are_chosen_where_they_can_be(
    device: Device, shape: Shape, is_shallow: bool
) -> None:
    caps = attrs.evolve(device.caps, matrix_tiles=True, vendor="nvidia", shared_bytes=49152)
    made = case(shape, half=True)
    plan = plan_of(made, None, Precision.F16, caps, device.alignment)
    assert ("shallow" in plan.dispatches[0].kernel.name) == is_shallow
