"""Convolutions on matrix tiles: every tile on the kernel interpreter, which also refuses races
and accesses out of bounds, and a few on the devices that have them. Expected values are f64."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of as plan_of_nodes
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernels.conv import conv_problem
from tflgpu.kernels.matrix_gemm import build_matrix_gemm, split_operands
from tflgpu.kernels.matrix_tiles import TILES, MatrixTile, choose_matrix_tile
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.matrix import has_matrices
from tflgpu.language.tree import For
from tflgpu.language.walk import statements
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.base import Activation
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.windows import WindowAttrs, pad_image, place, tap_view

from tests.kernels.test_products import SHAPES, Shape
from tests.passes.harness import Maker, evaluate
from tests.running import by_plan

HALVES = (Precision.F16, Precision.F32_F16)
#: Normalized root mean square errors. F16 rounds what is stored; the two f16 values of an operand
#: have 22 bits, so sums of a few hundred products stay as good as those of f32.
BOUNDS = {Precision.F16: 4e-4, Precision.F32_F16: 6e-7}
#: Small enough for two parts of both operands.
SPLIT = MatrixTile(1, 1, 4, 1, 1, 4)
#: One, eight and sixteen results an invocation, and teams.
RESIDUAL_TILES = (
    MatrixTile(2, 2, 1, 1, 1, 8),
    MatrixTile(4, 2, 1, 2, 1, 16),
    MatrixTile(2, 2, 1, 4, 2, 16, 1, 1),
    MatrixTile(1, 2, 4, 1, 2, 8, 1, 1),
)
Build = Callable[[Lowering], None]


@attrs.frozen
class Case:
    """A convolution with its operands and the exact result."""

    node: Node
    graph: Graph
    x: Array
    expected: Array


def case(shape: Shape, *, half: bool, scale: float = 1.0, weight_scale: float = 1.0) -> Case:
    rng = np.random.default_rng(11)

    def draw(*dims: int) -> Array:
        values = rng.uniform(-1, 1, dims).astype(np.float32)
        return values.astype(np.float16).astype(np.float32) if half else values

    x = draw(2, shape.height, shape.width, shape.inner) * np.float32(scale)
    weights = draw(shape.outer, shape.kernel, shape.kernel, shape.inner) * np.float32(weight_scale)
    bias = draw(shape.outer) * np.float32(scale * weight_scale)
    attributes = WindowAttrs(
        shape.stride, shape.stride, shape.padding, Activation.RELU, shape.dilation, shape.dilation
    )
    window = place("CONV_2D", attributes, x.shape, (shape.kernel, shape.kernel))
    padded = pad_image(x, window).astype(np.float64)
    total = sum(
        np.einsum("nhwc,oc->nhwo", tap_view(padded, window, i, j), weights[:, i, j].astype("d"))
        for i in range(shape.kernel)
        for j in range(shape.kernel)
    )
    expected: Array = np.maximum(bias + total, 0)
    graph = Graph()
    source = graph.add_value(x.shape, DType.F32)
    result = graph.add_value(expected.shape, DType.F32)
    graph.inputs, graph.outputs = [source], [result]
    inputs = [source, graph.add_const(weights), graph.add_const(bias)]
    node = graph.add_node("CONV_2D", attributes, inputs, [result])
    return Case(node, graph, x, expected)


def plan_of(
    case: Case, build: Build | None, precision: Precision, caps: DeviceCaps, alignment: int
) -> Plan:
    """By a generator, or by the rule that is chosen."""
    graph = case.graph
    target = Target.plain(
        # Where everything stays in the cache, F32_F16 stores f32.
        attrs.evolve(caps, is_gpu=True, cache_bytes=1 << 30),
        precision,
        rules=[KernelRule("CONV_2D", "test", build, rank=1000)] if build else [],
        alignment=alignment,
    )
    return plan_of_nodes(graph.nodes, graph.inputs, graph.outputs, target)


def error(device: Device, case: Case, build: Build, precision: Precision) -> float:
    """The normalized root mean square error of a device's result."""
    plan = plan_of(case, build, precision, device.caps, device.alignment)
    assert any(has_matrices(d.kernel) for d in plan.dispatches)
    found = by_plan(device, plan, case.x)[0].astype(np.float64)
    return float(np.linalg.norm(found - case.expected) / np.linalg.norm(case.expected))


def with_tile(tile: MatrixTile) -> Build:
    def build(low: Lowering) -> None:
        problem = conv_problem(low)
        build_matrix_gemm(low, problem, split_operands(low, problem), tile, "conv")

    return build


def fits(tile: MatrixTile, precision: Precision, caps: DeviceCaps) -> bool:
    parts = 1 if precision is Precision.F16 else 2
    return tile.shared_bytes(parts, parts) <= caps.shared_bytes and (
        tile.threads <= caps.max_workgroup
    )


@pytest.mark.parametrize(("stages", "unroll"), [(8, None), (9, False)])
def test_sums_of_many_rounds_stay_loops(device: Device, stages: int, unroll: bool | None) -> None:
    made = case(Shape(3, 1, stages * SPLIT.split * SPLIT.depth * 4, 8, 1), half=True)
    plan = plan_of(made, with_tile(SPLIT), Precision.F16, device.caps, device.alignment)
    found = [s for s in statements(plan.dispatches[0].kernel.body) if isinstance(s, For)]
    assert [loop.unroll for loop in found if loop.index.ident.startswith("stage")] == [unroll]


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device: Device, tile: MatrixTile, precision: Precision) -> None:
    if not fits(tile, precision, device.caps):
        pytest.skip("more shared memory than the interpreter grants")
    for shape in (SHAPES[0], SHAPES[3]):
        made = case(shape, half=precision is Precision.F16)
        assert error(device, made, with_tile(tile), precision) < BOUNDS[precision]


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape(device: Device, shape: Shape, precision: Precision) -> None:
    made = case(shape, half=precision is Precision.F16)
    assert error(device, made, with_tile(SPLIT), precision) < BOUNDS[precision]


def residual_error(device: Device, build: Build, graph: Graph) -> float:
    """That of a graph whose last convolution, written by ``build``, adds a tensor in its store."""
    target = Target.plain(
        attrs.evolve(device.caps, is_gpu=True, cache_bytes=1 << 30),
        Precision.F16,
        rules=[KernelRule("CONV_2D", "test", build, rank=1000)],
        alignment=device.alignment,
    )
    plan = plan_of_nodes(graph.nodes, graph.inputs, graph.outputs, target)
    assert len(plan.dispatches) == sum(node.op == "CONV_2D" for node in graph.nodes)
    rng = np.random.default_rng(2)
    halves = [rng.uniform(-1, 1, v.shape).astype(np.float16) for v in graph.inputs]
    arrays = [half.astype(np.float32) for half in halves]
    (expected,) = evaluate(graph, arrays)
    (found,) = by_plan(device, plan, *arrays)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("size", [(1, 5, 7, 13), (2, 9, 8, 37), (1, 1, 1, 4)], ids=str)
@pytest.mark.parametrize("tile", [*RESIDUAL_TILES, SPLIT], ids=str)
def test_a_residual_of_any_size(
    device: Device, tile: MatrixTile, size: tuple[int, int, int, int]
) -> None:
    """It is added in the product's store, and nothing of it is read that is not there."""
    g = Maker()
    *image, outer = size
    x, rest = g.input(*image, 24), g.input(*size)
    g.done(g.op("NEG", g.op("ADD", g.conv(x, outer, kernel=1), rest)))
    assert residual_error(device, with_tile(tile), g.graph) < 1e-3


@pytest.mark.parametrize("precision", HALVES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_devices(matrix_device: Device, shape: Shape, precision: Precision) -> None:
    made = case(shape, half=precision is Precision.F16)
    for tile in TILES:
        if fits(tile, precision, matrix_device.caps):
            assert error(matrix_device, made, with_tile(tile), precision) < BOUNDS[precision]


@pytest.mark.parametrize("scale", [2.0**-20, 1e-3, 1.0, 1e3, 6e4])
@pytest.mark.parametrize("weight_scale", [2.0**-12, 1.0])
def test_two_f16_values_are_nearly_an_f32(
    device: Device, scale: float, weight_scale: float
) -> None:
    """Small operands too, whose high parts are subnormal: 2^-36 is the least difference kept."""
    made = case(SHAPES[3], half=False, scale=scale, weight_scale=weight_scale)
    bound = max(BOUNDS[Precision.F32_F16], 2.0**-36 / scale, 2.0**-36 / weight_scale)
    found = error(device, made, with_tile(SPLIT), Precision.F32_F16)
    assert found < bound


def test_one_f16_value_is_not(device: Device) -> None:
    """What the split is for: the same product with operands rounded to f16."""
    made = case(SHAPES[3], half=False)
    rounded = error(device, made, with_tile(SPLIT), Precision.F16)
    split = error(device, made, with_tile(SPLIT), Precision.F32_F16)
    assert rounded > 200 * split


def test_weights_that_are_f16_have_one_part(device: Device) -> None:
    for half, parts in ((True, 1), (False, 2)):
        made = case(SHAPES[3], half=half)
        seen: list[int] = []

        def build(low: Lowering, seen: list[int] = seen) -> None:
            problem = conv_problem(low)
            operands = split_operands(low, problem)
            seen.append(len(operands.weights))
            build_matrix_gemm(low, problem, operands, SPLIT, "conv")

        plan_of(made, build, Precision.F32_F16, device.caps, 64)
        assert seen == [parts]


@pytest.mark.parametrize("precision", list(Precision), ids=str)
@pytest.mark.parametrize(
    ("features", "used"),
    [
        ((False, False), ()),
        ((True, False), (Precision.F16,)),
        ((True, True), HALVES),
    ],
    ids=["none", "tiles", "tiles and splits"],
)
def test_matrices_are_used_where_they_are_fast(
    device: Device,
    precision: Precision,
    features: tuple[bool, bool],
    used: Sequence[Precision],
) -> None:
    made = case(SHAPES[0], half=False)
    tiles, splits = features
    caps = attrs.evolve(device.caps, matrix_tiles=tiles, vendor="nvidia" if splits else "")
    (dispatch,) = plan_of(made, None, precision, caps, 64).dispatches
    assert has_matrices(dispatch.kernel) == (precision in used)


def test_fully_connected_layers_use_them(device: Device) -> None:
    rng = np.random.default_rng(3)
    x, matrix = (rng.standard_normal(s).astype(np.float32) for s in ((19, 53), (37, 53)))
    graph = Graph()
    source, result = graph.add_value(x.shape, DType.F32), graph.add_value((19, 37), DType.F32)
    graph.inputs, graph.outputs = [source], [result]
    attributes = FullyConnected()
    node = graph.add_node(
        "FULLY_CONNECTED", attributes, [source, graph.add_const(matrix)], [result]
    )
    made = Case(node, graph, x, x.astype(np.float64) @ matrix.T.astype(np.float64))
    tiled = attrs.evolve(device.caps, matrix_tiles=True, vendor="nvidia")
    plan = plan_of(made, None, Precision.F32_F16, tiled, device.alignment)
    assert has_matrices(plan.dispatches[0].kernel)
    found = by_plan(device, plan, x)[0].astype(np.float64)
    difference = np.linalg.norm(found - made.expected) / np.linalg.norm(made.expected)
    assert difference < BOUNDS[Precision.F32_F16]


@pytest.mark.parametrize("inner", [4, 5])
def test_sums_of_one_slice_do_without(device: Device, inner: int) -> None:
    made = case(Shape(5, 7, inner, 36, 1), half=True)
    caps = attrs.evolve(device.caps, matrix_tiles=True)
    (dispatch,) = plan_of(made, None, Precision.F16, caps, 64).dispatches
    assert has_matrices(dispatch.kernel) == (inner > 4)


def test_the_chosen_tile_fits_the_device() -> None:
    for shared in (16384, 32768, 49152):
        for parts in (1, 2):
            caps = DeviceCaps(shared_bytes=shared, compute_units=46, max_workgroup=256)
            for pixels in (9, 196, 12544):
                tile = choose_matrix_tile(pixels, 128, 72, parts, parts, caps)
                assert tile.shared_bytes(parts, parts) <= shared
                assert tile.threads <= caps.max_workgroup


@pytest.mark.parametrize(
    ("sizes", "loads"),
    [((15, 17, 33, 1, 1), 8), ((197, 96, 192, 1, 1), 1)],
    ids=["single elements", "vectors"],
)
def test_no_tile_is_larger_than_a_heavy_workgroup(sizes: Any, loads: int) -> None:
    """NVIDIA's OpenCL refuses 512 invocations for tiles in f16, whichever way they load."""
    caps = DeviceCaps(
        shared_bytes=49152, compute_units=132, max_workgroup=1024,
        max_workgroup_size=(1024, 1024, 64), vendor="nvidia",
    )  # fmt: skip
    assert choose_matrix_tile(*sizes, caps, loads=loads).threads == 512
    opencl = attrs.evolve(caps, heavy_workgroup=256)
    assert choose_matrix_tile(*sizes, opencl, loads=loads).threads <= 256


def test_few_pixels_split_the_sum() -> None:
    caps = DeviceCaps(shared_bytes=49152, compute_units=132, max_workgroup=1024)
    assert choose_matrix_tile(49, 40, 240, 1, 1, caps).split > 1
    assert choose_matrix_tile(518400, 8, 72, 1, 1, caps).split == 1


@pytest.mark.parametrize("tile", [MatrixTile(2, 2, 1, 2, 2, 8), SPLIT], ids=str)
def test_spirv_val_accepts_the_kernels(device: Device, tile: MatrixTile) -> None:
    made = case(SHAPES[0], half=True)
    (dispatch,) = plan_of(made, with_tile(tile), Precision.F16, device.caps, 64).dispatches
    assert_valid(dispatch.kernel)


def assert_valid(kernel: Kernel) -> None:
    """Have spirv-val look at a kernel on matrix tiles."""
    from tflgpu_vulkan.spirv.module import module_of
    from tflgpu_vulkan.spirv.target import Target

    tool = shutil.which("spirv-val")
    if tool is None:
        pytest.skip("spirv-val (package spirv-tools) is not installed")
    module = module_of(kernel, Target(f16_arithmetic=True, matrix_tiles=True, subgroup_shuffle=32))
    done = subprocess.run(
        [tool, "--target-env", "vulkan1.3", "-"], input=module, capture_output=True, check=False
    )
    if b"Invalid capability operand: 6022" in done.stderr:
        pytest.skip("this spirv-val is older than SPV_KHR_cooperative_matrix (June 2023)")
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_what_f16_cannot_hold_shows_in_the_result(device: Device) -> None:
    """A NaN, or an input beyond f16's range, must not come out as an ordinary number."""
    odd = case(SHAPES[3], half=False)
    odd.x[0, 1, 1, 3], odd.x[1, 2, 2, 5] = 1e6, np.nan

    def build(low: Lowering) -> None:
        problem = conv_problem(low)
        build_matrix_gemm(low, problem, split_operands(low, problem), SPLIT, "conv")

    plan = plan_of(odd, build, Precision.F32_F16, device.caps, device.alignment)
    pixels = ~np.isfinite(by_plan(device, plan, odd.x)[0]).all(axis=-1)
    assert pixels[0, 1, 1]
    assert pixels[1, 2, 2]
    assert pixels.sum() == 2
