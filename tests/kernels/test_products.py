"""Every way to compute a convolution, every tile, on the kernel interpreter.

The interpreter also refuses missing barriers, races and accesses out of bounds. The expected
values come from NumPy's einsum over the taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.kernels.conv import conv_problem
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.kernels.gemm import build_gemm
from tflgpu.kernels.gemv import build_gemv
from tflgpu.kernels.tiles import TILES, Tile, choose_tile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.tuning import H200
from tflgpu.ops.base import Activation, Padding
from tflgpu.ops.windows import WindowAttrs, pad_image, place, tap_view
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry


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


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    opened = registry().open_device("cpu_ref", 1, DelegateOptions())
    assert isinstance(opened, Device)
    yield opened
    opened.close()


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
    caps = attrs.evolve(device.caps, is_gpu=True, compute_units=4)
    rule = KernelRule("CONV_2D", "test", build, rank=1000)
    target = Target.plain(caps, precision, rules=[rule], alignment=device.alignment)
    plan = plan_of(graph.nodes, graph.inputs, graph.outputs, target)
    recording = device.load(plan, guard_bands=True)
    recording.inputs[0][...] = x
    recording.run()
    products = shape.kernel**2 * shape.inner
    Tolerance.accumulate(products, half=half).check(recording.outputs[0], expected)
    recording.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_blocked_product(device: Device, shape: Shape, tile: Tile) -> None:
    if tile.shared_bytes > device.caps.shared_bytes:
        pytest.skip("more shared memory than the interpreter grants")
    _check(
        device, shape, lambda low: build_gemm(low, conv_problem(low), tile, "conv"), Precision.F32
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
