"""8-bit weights stay 8 bits wide on the device: every kernel of a product, on the interpreter,
which refuses races and accesses out of bounds. The expected values are NumPy's, in f64."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.target import Target
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph
from tflgpu.ir.stored_reals import BlockScales, StoredReals
from tflgpu.kernels.blocked import build_gemm
from tflgpu.kernels.conv import conv_problem
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.kernels.gemm import Problem
from tflgpu.kernels.gemv import build_gemv
from tflgpu.kernels.matrix_gemm import build_matrix_gemm, split_operands
from tflgpu.kernels.matrix_tiles import TILES as MATRIX_TILES
from tflgpu.kernels.tiles import TILES
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.base import Activation, Padding
from tflgpu.ops.windows import WindowAttrs, pad_image, place, tap_view
from tflgpu.tflite.constants import pack

from tests.running import by_plan

Build = Callable[[Lowering, Problem], None]


def _matrix(low: Lowering, problem: Problem) -> None:
    tile = min(MATRIX_TILES, key=lambda t: t.shared_bytes(2, 1))
    build_matrix_gemm(low, problem, split_operands(low, problem), tile, "conv")


SPLIT = next(tile for tile in TILES if tile.split > 1 and tile.shared_bytes <= 16384)
BUILDS: dict[str, Build] = {
    "blocked": lambda low, problem: build_gemm(low, problem, TILES[0], "conv"),
    "split": lambda low, problem: build_gemm(low, problem, SPLIT, "conv"),
    "few rows": lambda low, problem: build_gemv(low, problem, "conv"),
    "direct": lambda low, problem: build_direct(low, problem, "conv", OutputBlock(4, 2)),
    "one column": lambda low, problem: build_direct(low, problem, "conv", OutputBlock(3, 1)),
    "matrix": _matrix,
}
#: Height and width, channels in, channels out, taps a side.
SHAPES = ((7, 5, 13, 3), (2, 16, 36, 1), (3, 6, 5, 2))


def _scales(kind: str, outer: int) -> Quantization:
    if kind == "one scale":
        return Quantization((0.01,), (0,))
    rng = np.random.default_rng(4)
    return Quantization(tuple(map(float, rng.uniform(1e-3, 1e-1, outer))), (0,) * outer)


def _run(
    device: Device,
    build: Build,
    shape: tuple[int, int, int, int],
    reals: StoredReals,
    precision: Precision,
    *,
    int8_storage: bool = True,
) -> tuple[list[np.dtype[np.generic]], Array, Array]:
    """Types of the constants, the result, and the expected one."""
    side, inner, outer, taps = shape
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, (1, side, side, inner)).astype(np.float16).astype(np.float32)
    bias = rng.uniform(-1, 1, outer).astype(np.float32)
    attributes = WindowAttrs(1, 1, Padding.SAME, Activation.RELU, 1, 1)
    padded = pad_image(x, place("CONV_2D", attributes, x.shape, (taps, taps))).astype(np.float64)
    window, weights = place("CONV_2D", attributes, x.shape, (taps, taps)), reals.whole()
    total = sum(
        np.einsum("nhwc,oc->nhwo", tap_view(padded, window, i, j), weights[:, i, j].astype("d"))
        for i in range(taps)
        for j in range(taps)
    )
    graph = Graph()
    source, result = graph.add_value(x.shape, DType.F32), graph.add_value(total.shape, DType.F32)
    graph.inputs, graph.outputs = [source], [result]
    inputs = [source, graph.add_const(reals), graph.add_const(bias)]
    graph.add_node("CONV_2D", attributes, inputs, [result])

    def write(low: Lowering) -> None:
        build(low, conv_problem(low))

    rule = KernelRule("CONV_2D", "test", write, rank=1000)
    caps = attrs.evolve(
        device.caps, is_gpu=True, compute_units=4, cache_bytes=1 << 30, int8_storage=int8_storage
    )
    target = Target.plain(caps, precision, rules=[rule], alignment=device.alignment)
    plan = plan_of(graph.nodes, graph.inputs, graph.outputs, target)
    (found,) = by_plan(device, plan, x)
    return [c.dtype for c in plan.constants], found, np.maximum(bias + total, 0)


@pytest.mark.parametrize("kind", ["one scale", "a scale a row"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, s) for n in BUILDS for s in SHAPES if n != "few rows" or s[0] < 4],
    ids=str,
)
def test_a_product_of_whole_numbers_is_scaled_at_its_end(
    device: Device, name: str, shape: tuple[int, int, int, int], kind: str
) -> None:
    _, inner, outer, taps = shape
    numbers = np.random.default_rng(1).integers(-128, 128, (outer, taps, taps, inner))
    reals = StoredReals(numbers.astype(np.int8), _scales(kind, outer))
    precision = Precision.F16 if name == "matrix" else Precision.F32
    types, found, expected = _run(device, BUILDS[name], shape, reals, precision)
    stored = np.uint32 if name == "few rows" else np.int8
    assert types == [np.dtype(stored), np.dtype(np.float32)]
    half = precision is Precision.F16
    Tolerance.accumulate(taps * taps * inner, half=half).check(found, expected)


@pytest.mark.parametrize("in_nibbles", [False, True])
@pytest.mark.parametrize("size", [4, 8, 32])
@pytest.mark.parametrize("name", BUILDS)
def test_blocks_have_scales_of_their_own(
    device: Device, name: str, size: int, in_nibbles: bool
) -> None:
    side, inner, outer = 2, 64, 13
    rng = np.random.default_rng(2)
    numbers = rng.integers(-8, 8, (outer, 1, 1, inner)).astype(np.int8)
    scales = rng.uniform(1e-2, 1, (outer, 1, 1, inner // size)).astype(np.float16)
    stored = numbers
    if in_nibbles:
        packed = np.frombuffer(pack(numbers, DType.I4), np.uint8)
        stored = packed.reshape(outer, 1, 1, inner // 2)
    reals = StoredReals(stored, BlockScales(scales, size), in_nibbles)
    want = numbers.reshape(*scales.shape, size) * scales.astype(np.float32)[..., None]
    np.testing.assert_array_equal(reals.whole(), want.reshape(numbers.shape))
    assert reals.largest() == np.abs(want).max()
    precision = Precision.F16 if name == "matrix" else Precision.F32
    shape = (side, inner, outer, 1)
    types, found, expected = _run(device, BUILDS[name], shape, reals, precision)
    assert types[0] == np.dtype(np.uint32 if name == "few rows" else np.int8)
    assert types[1] in (np.float16, np.float32)
    half = precision is Precision.F16
    Tolerance.accumulate(inner, half=half).check(found, expected)


@pytest.mark.parametrize(
    ("reals", "int8_storage"),
    [
        (StoredReals(np.full((8, 1, 1, 4), 3, np.int8), Quantization((0.1,), (1,))), True),
        (StoredReals(np.full((8, 1, 1, 4), 3, np.uint8), Quantization((0.1,), (0,))), True),
        (StoredReals(np.full((8, 1, 1, 4), 3, np.int8), Quantization((0.1,) * 4, (0,) * 4, 3)), 1),
        (StoredReals(np.full((8, 1, 1, 4), 3, np.int8), Quantization((0.1,), (0,))), False),
        (StoredReals(np.full((8, 1, 1, 4), 3, np.float16)), True),
        (StoredReals(np.full((8, 1, 1, 4), 3, np.int8), Quantization((2.0**121,), (0,))), True),
    ],
    ids=[
        "a zero point",
        "u8",
        "a scale an input",
        "no bytes on the device",
        "f16",
        "a large scale",
    ],
)
def test_other_weights_are_real_numbers(
    device: Device, reals: StoredReals, int8_storage: bool
) -> None:
    types, found, expected = _run(
        device, BUILDS["direct"], (3, 4, 8, 1), reals, Precision.F32, int8_storage=int8_storage
    )
    assert np.dtype(np.int8) not in types
    np.testing.assert_allclose(found, expected, rtol=1e-6)
