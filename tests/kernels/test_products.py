"""Every way to compute a convolution, every tile, on the kernel interpreter.

The interpreter also refuses missing barriers, races and accesses out of bounds. The expected
values come from NumPy's einsum over the taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.kernels.blocked import build_gemm
from tflgpu.kernels.conv import conv_problem
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.kernels.gemv import build_gemv
from tflgpu.kernels.tiles import TILES, Tile, choose_tile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.tuning import H200, UNMEASURED, tuning_of
from tflgpu.ops.base import Activation, Fields, Padding
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.windows import WindowAttrs, pad_image, place, tap_view
from tflgpu.plugins.registry import registry
from tflgpu.runtime.opened_device import OpenedDevice
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model
from tflgpu_cpu_ref.device import CpuRefDevice

from tests.running import allocate_and_run, allocated, by_plan
from tests.small_models import small_model, tensor_of


@attrs.frozen
class Shape:
    """A convolution's sizes."""

    height: int
    width: int
    inner: int
    outer: int
    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: Padding = Padding.SAME


SHAPES = (
    Shape(7, 9, 5, 13, 3),
    Shape(11, 6, 8, 20, 3, stride=2),
    Shape(9, 9, 3, 7, 3, dilation=2, padding=Padding.VALID),
    Shape(5, 7, 16, 36, 1),
    Shape(6, 5, 4, 5, 1, stride=2),
    Shape(2, 2, 40, 33, 1),
)


def _check(
    device: Device, shape: Shape, build: Callable[[Lowering], None], precision: Precision
) -> None:
    rng = np.random.default_rng(7)
    half = precision is not Precision.F32
    kind = np.float16 if half else np.float32

    def draw(*dims: int) -> Array:
        return rng.uniform(-1, 1, dims).astype(kind).astype(np.float32)

    x = draw(2, shape.height, shape.width, shape.inner)
    weights = draw(shape.outer, shape.kernel, shape.kernel, shape.inner)
    bias = rng.uniform(-1, 1, shape.outer).astype(np.float32)
    attributes = WindowAttrs(
        shape.stride, shape.stride, shape.padding, Activation.RELU, shape.dilation, shape.dilation
    )
    window = place("CONV_2D", attributes, x.shape, (shape.kernel, shape.kernel))
    padded = pad_image(x, window)
    expected: Array = np.maximum(
        bias
        + sum(
            np.einsum("nhwc,oc->nhwo", tap_view(padded, window, i, j), weights[:, i, j])
            for i in range(shape.kernel)
            for j in range(shape.kernel)
        ),
        0,
    )
    graph = Graph()
    source = graph.add_value(x.shape, DType.F32)
    result = graph.add_value(expected.shape, DType.F32)
    graph.inputs, graph.outputs = [source], [result]
    graph.add_node(
        "CONV_2D", attributes, [source, graph.add_const(weights), graph.add_const(bias)], [result]
    )
    caps = attrs.evolve(
        device.caps,
        is_gpu=True,
        compute_units=4,
        max_workgroup=512,
        max_workgroup_size=(512, 512, 64),
    )
    rule = KernelRule("CONV_2D", "test", build, rank=1000)
    target = Target.plain(caps, precision, rules=[rule], alignment=device.alignment)
    plan = plan_of(graph.nodes, graph.inputs, graph.outputs, target)
    products = shape.kernel**2 * shape.inner
    Tolerance.accumulate(products, half=half).check(by_plan(device, plan, x)[0], expected)


@pytest.fixture
def large_device() -> Iterator[Device]:
    """The interpreter, with workgroups as large as any tile's."""
    opened = CpuRefDevice()
    opened.caps = attrs.evolve(opened.caps, max_workgroup=512, max_workgroup_size=(512, 512, 64))
    yield opened
    opened.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_blocked_product(large_device: Device, shape: Shape, tile: Tile) -> None:
    _check(
        large_device,
        shape,
        lambda low: build_gemm(low, conv_problem(low), tile, "conv"),
        Precision.F32,
    )


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.parts > 1], ids=str)
def test_sums_that_workgroups_divide_unevenly(large_device: Device, tile: Tile) -> None:
    """The last part ends past the end of the sum, though a stage of all splits would not."""
    slices = tile.depth * tile.split * (tile.parts + 1)
    _check(
        large_device,
        Shape(3, 5, slices * 4, 12, 1),
        lambda low: build_gemm(low, conv_problem(low), tile, "conv"),
        Precision.F32,
    )


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16], ids=str)
def test_blocked_product_in_half_precision(device: Device, precision: Precision) -> None:
    _check(
        device, SHAPES[0], lambda low: build_gemm(low, conv_problem(low), TILES[0], "conv"),
        precision,
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "block", [OutputBlock(1, 1), OutputBlock(4, 1), OutputBlock(4, 2), OutputBlock(3, 2)], ids=str
)
def test_direct(device: Device, shape: Shape, block: OutputBlock) -> None:
    _check(
        device, shape, lambda low: build_direct(low, conv_problem(low), "conv", block),
        Precision.F32,
    )  # fmt: skip


def test_few_rows(device: Device) -> None:
    few = Shape(2, 2, 40, 33, 1)
    assert 2 * few.height * few.width <= H200.few_rows
    _check(device, few, lambda low: build_gemv(low, conv_problem(low), "conv"), Precision.F32)


def test_the_chosen_tile_fits_the_device() -> None:
    for shared in (16384, 32768, 49152):
        for units in (1, 16, 132):
            caps = DeviceCaps(shared_bytes=shared, compute_units=units, max_workgroup=256)
            for pixels in (9, 49, 196, 12544, 518400):
                for slices in (1, 5, 8, 128):
                    tile = choose_tile(pixels, slices, 72, caps)
                    assert tile.shared_bytes <= shared
                    assert tile.threads <= caps.max_workgroup


def test_workgroups_divide_long_sums_of_few_results() -> None:
    caps = DeviceCaps(
        shared_bytes=49152, compute_units=132, max_workgroup=1024, max_workgroup_size=(1024,) * 3
    )
    assert choose_tile(197, 192, 768, caps).parts > 1
    assert choose_tile(518400, 8, 72, caps).parts == 1


def test_no_tile_is_larger_than_a_heavy_workgroup() -> None:
    caps = DeviceCaps(
        shared_bytes=49152, compute_units=132, max_workgroup=1024, max_workgroup_size=(1024,) * 3
    )
    assert choose_tile(197, 96, 384, caps).threads > 256
    for slices in (64, 96, 288, 384):
        opencl = attrs.evolve(caps, heavy_workgroup=256)
        assert choose_tile(197, slices, 96, opencl).threads <= 256


# Which rule makes the kernels of a product, and that a plugin can come between them.


GPU = DeviceCaps(is_gpu=True, compute_units=8)
RANKED_TILES = DeviceCaps(is_gpu=True, compute_units=8, matrix_tiles=True, vendor="nvidia")
#: Tiles that are too slow for products that are made of several.
SLOW_TILES = DeviceCaps(is_gpu=True, compute_units=8, matrix_tiles=True)


def conv(side: int, inner: int, outs: int, groups: int = 1, weight: float = 0.3) -> Node:
    graph = Graph()
    x = graph.add_value((1, side, side, inner), DType.F32)
    y = graph.add_value((1, side, side, outs), DType.F32)
    filter_ = graph.add_const(np.full((outs, 1, 1, inner // groups), weight, np.float32))
    attributes = builtin_ops()["CONV_2D"].parse(
        Fields("CONV_2D", {"stride_h": 1, "stride_w": 1, "padding": 1})
    )
    return graph.add_node("CONV_2D", attributes, [x, filter_], [y])


def name_of(node: Node, caps: DeviceCaps, precision: Precision, *rules: KernelRule) -> str:
    rule = Target.plain(caps, precision, rules=rules).rule(node)
    assert isinstance(rule, KernelRule), rule
    return rule.name


F32, F16, MIXED = Precision.F32, Precision.F16, Precision.F32_F16


@pytest.mark.parametrize(
    ("node", "caps", "precision", "name"),
    [
        (conv(7, 32, 24), DeviceCaps(), F32, "direct"),
        (conv(7, 32, 24), GPU, F32, "blocked"),
        (conv(2, 32, 24), GPU, F32, "few_rows"),
        (conv(2, 32, 24), RANKED_TILES, F16, "few_rows"),
        (conv(7, 32, 24), RANKED_TILES, F32, "blocked"),
        (conv(7, 32, 24), RANKED_TILES, F16, "matrix"),
        (conv(7, 32, 24), RANKED_TILES, MIXED, "matrix"),
        (conv(7, 32, 24), SLOW_TILES, F16, "matrix"),
        (conv(7, 32, 24), SLOW_TILES, MIXED, "blocked"),
        (conv(7, 16, 24), RANKED_TILES, F16, "matrix"),
        (conv(7, 4, 24), RANKED_TILES, F16, "blocked"),
        (conv(7, 32, 24, weight=1e5), RANKED_TILES, MIXED, "blocked"),
        (conv(7, 32, 24, weight=np.nan), RANKED_TILES, MIXED, "blocked"),
        (conv(7, 64, 64, groups=2), GPU, F32, "blocked"),
        (conv(7, 64, 64, groups=2), DeviceCaps(), F32, "grouped"),
        (conv(7, 64, 64, groups=16), GPU, F32, "grouped"),
    ],
)  # fmt: skip
def test_the_rule_follows_from_shape_and_device(
    node: Node, caps: DeviceCaps, precision: Precision, name: str
) -> None:
    # Without a cache to stay in F32_F16 would store the input as f16: here it stays.
    assert name_of(node, cached(caps), precision) == name


def cached(caps: DeviceCaps) -> DeviceCaps:

    return attrs.evolve(caps, cache_bytes=1 << 30)


def _build(low: Lowering) -> None:
    raise AssertionError("nothing is built here")


def _wide(node: Node, site: Site) -> str | None:
    return None if node.outputs[0].shape[-1] >= 24 else "it is narrow"


def test_a_plugin_outranks_one_variant_and_leaves_the_others() -> None:
    mine = KernelRule("CONV_2D", "mine", _build, _wide, rank=-2)
    caps = cached(RANKED_TILES)
    assert name_of(conv(7, 32, 24), caps, F32, mine) == "mine"  # in place of "blocked"
    assert name_of(conv(7, 32, 24), caps, F16, mine) == "matrix"
    assert name_of(conv(2, 32, 24), caps, F32, mine) == "few_rows"
    assert name_of(conv(7, 32, 8), caps, F32, mine) == "blocked"


def test_a_plugin_of_rank_0_comes_before_all() -> None:
    mine = KernelRule("CONV_2D", "mine", _build)
    for side, precision in ((2, F32), (7, F16), (7, F32)):
        assert name_of(conv(side, 32, 24), cached(RANKED_TILES), precision, mine) == "mine"


def test_measured_constants_are_those_of_the_device_or_of_the_one_known_best() -> None:
    assert tuning_of(DeviceCaps(vendor="nvidia")) is H200
    assert tuning_of(DeviceCaps(vendor="somebody")) is UNMEASURED


# A grouped convolution of few wide groups on a GPU: each group is a product of its own, and what
# follows the convolution still joins its kernels.


WIDE_GPU = DeviceCaps(is_gpu=True, shared_bytes=48 << 10, compute_units=132, subgroup_shuffle=32)
SHAPE, FILTER = (1, 5, 7, 64), (72, 3, 3, 32)
_OPTIONS = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}


def _model() -> bytes:
    rng = np.random.default_rng(5)
    weights = rng.normal(size=FILTER).astype(np.float32)
    bias = rng.normal(size=FILTER[:1]).astype(np.float32)
    out = (*SHAPE[:3], FILTER[0])
    shapes = [SHAPE, FILTER, FILTER[:1], out, out, out]
    data = [None, weights, bias, None, None, None]
    pairs = zip(shapes, data, strict=True)
    tensors = [TensorSpec(f"t{i}", shape, data=d) for i, (shape, d) in enumerate(pairs)]
    operators = [
        OperatorSpec("CONV_2D", {"padding": 0, **_OPTIONS}, [0, 1, 2], [3]),
        OperatorSpec("ADD", {}, [3, 4], [5]),
    ]
    return write_model(ModelSpec(tensors, operators, [0, 4], [5]))


def _run(content: bytes, delegates: Any) -> Any:
    rng = np.random.default_rng(6)
    with allocated(
        tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
    ) as interpreter:
        for detail in interpreter.get_input_details():
            value = rng.normal(size=detail["shape"]).astype(np.float32)
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


@pytest.mark.parametrize(
    "caps", [WIDE_GPU, attrs.evolve(WIDE_GPU, compute_units=1)], ids=["large", "small"]
)
def test_wide_groups_are_tiled_products(caps: DeviceCaps, monkeypatch: pytest.MonkeyPatch) -> None:
    content = _model()
    expected = _run(content, None)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        monkeypatch.setattr(OpenedDevice, "caps", caps)
        graph = build_graph(read_model(content), 0, registry().ops(), {})
        (plan,) = compiled_on(graph, delegate.provider).plans
        names = [d.kernel.name for d in plan.dispatches]
        assert len(names) == 2
        assert all("gemm" in name for name in names), names
        got = _run(content, [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
def test_it_is_right_on_devices(backend: str) -> None:
    content = _model()
    expected = _run(content, None)
    with tflgpu.GpuDelegate(backend=backend, device=int(backend == "cpu_ref")) as delegate:
        got = _run(content, [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-2, atol=5e-2)


# A bias of a convolution has a number per output channel, however many dimensions hold them.


BIAS_GPU = DeviceCaps(is_gpu=True, shared_bytes=48 << 10, compute_units=132, subgroup_shuffle=32)


@pytest.mark.parametrize("caps", [None, BIAS_GPU], ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    ("depth", "filter_shape", "bias_shape"),
    [
        (8, (1, 3, 3, 8), ()),
        (8, (5, 3, 3, 8), (1, 1, 5)),
        (64, (72, 1, 1, 32), (1, 72)),  # two groups, each a product of its own on a GPU
    ],
    ids=["scalar", "rank3", "groups"],
)
def test_bias_of_any_rank(
    depth: int,
    filter_shape: tuple[int, ...],
    bias_shape: tuple[int, ...],
    caps: DeviceCaps | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(3)
    image, weights, bias = (
        rng.uniform(-1, 1, shape).astype(np.float32)
        for shape in ((1, 5, 4, depth), filter_shape, bias_shape)
    )
    outs = filter_shape[0]

    def run(held: np.ndarray, delegates: object) -> np.ndarray:
        content = small_model(
            {
                "x": image.shape,
                "w": tensor_of(weights.shape, data=weights),
                "b": tensor_of(held.shape, data=held),
                "y": (1, 5, 4, outs),
            },
            ("y = CONV_2D(x, w, b)", {"padding": 0, **_OPTIONS}),
        )
        with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as one:
            allocate_and_run(one, {0: image})
            return one.get_tensor(3)

    expected = run(bias.reshape(-1), None)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        if caps is not None:
            monkeypatch.setattr(OpenedDevice, "caps", caps)
        got = run(np.asarray(bias, np.float32), [delegate])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# Long sums of few results, as heads of models have them: what is lost in f32 does not grow with
# their length.


_CONV = {
    "padding": 1, "stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1,
}  # fmt: skip
#: Operators, shapes of their operands and results, options; the last is of no whole number of
#: parts.
SUMS = (
    ("CONV_2D", (1, 2, 2, 1152), (1, 2, 2, 1152), (1, 1, 1, 1), _CONV),
    ("CONV_2D", (1, 1, 3, 3001), (5, 1, 1, 3001), (1, 1, 3, 5), _CONV),
    ("FULLY_CONNECTED", (3, 4097), (7, 4097), (3, 7), {}),
)
#: Roundings of f32, each half a unit in the last place. One after another 4,000 numbers lose some
#: 50.
MOST = 8


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl", "vulkan", "wgpu"])
@pytest.mark.parametrize("which", range(len(SUMS)))
def test_long_sums_of_few_results(which: int, backend: str) -> None:
    op, given, matrix, result, fields = SUMS[which]
    rng = np.random.default_rng(which)
    x, w = (rng.uniform(0.5, 1, shape).astype(np.float32) for shape in (given, matrix))
    content = small_model(
        {
            "x": given,
            "w": tensor_of(matrix, data=w),
            "b": tensor_of(matrix[:1], data=np.zeros(matrix[:1], np.float32)),
            "y": result,
        },
        (f"y = {op}(x, w, b)", fields),
    )
    rows = x.reshape(-1, w[0].size).astype(np.float64)
    wanted = (rows @ w.reshape(len(w), -1).astype(np.float64).T).reshape(result)
    device = 1 if backend == "cpu_ref" else 0
    with (
        tflgpu.GpuDelegate(backend=backend, device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as one,
    ):
        allocate_and_run(one, {0: x})
        lost = np.abs(one.get_tensor(3) - wanted).max() / wanted.max()
    assert lost <= MOST * np.finfo(np.float32).eps / 2
