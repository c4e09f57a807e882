"""A CONV_2D of 1x1, a DEPTHWISE_CONV_2D and a CONV_2D of 1x1 as one kernel on matrix tiles: on the
kernel interpreter, which also refuses races and accesses out of bounds, and on devices that have
tiles."""

from __future__ import annotations

from typing import Any, cast

import attrs
import numpy as np
import pytest
from tflgpu.compiler.plan import Plan
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array
from tflgpu.kernels import inverted_residual
from tflgpu.kernels.block_tiles import TILES, BlockTile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.tuning import H200, TABLE, Tuning

from tests.kernels.test_pairs import kernels, plan, run, with_tiles
from tests.passes.harness import Maker, evaluate

#: Of the norm: sums of f16 products, of which those in between are rounded once.
BOUND = 1e-3
RELU6 = 3
#: Image, channels in between and of the result, what the depthwise convolution has, and whether the
#: input is added at the end.
CASES: dict[str, tuple[tuple[int, ...], int, int, dict[str, Any], bool]] = {
    "odd": ((1, 7, 11, 22), 36, 13, {}, False),
    "residual": ((1, 9, 10, 24), 48, 24, {}, True),
    "stride": ((1, 9, 12, 16), 40, 24, {"stride_h": 2, "stride_w": 2}, False),
    "stride of even": ((1, 8, 14, 16), 40, 24, {"stride_h": 2, "stride_w": 2}, False),
    "batch": ((3, 5, 7, 16), 32, 16, {}, True),
    "no padding": ((1, 9, 6, 21), 28, 7, {"padding": 1}, False),
    "dilated": ((1, 13, 9, 12), 20, 7, {"dilation_h_factor": 2, "dilation_w_factor": 2}, False),
    "five": ((1, 6, 9, 8), 16, 9, {"kernel": 5}, False),
    "few channels": ((1, 6, 5, 3), 8, 5, {}, False),
    "wide": ((1, 5, 6, 19), 24, 130, {}, False),
    "one row": ((1, 1, 37, 20), 24, 24, {}, False),
    "one column": ((1, 37, 1, 20), 24, 24, {"stride_h": 2}, False),
    "not clamped": ((1, 6, 5, 24), 36, 9, {"fused_activation_function": 0}, False),
    "deep": ((1, 3, 5, 33), 60, 32, {}, False),
    "several chunks": ((1, 6, 7, 12), 108, 12, {}, True),
}
#: What the first convolution has where it is none of 1x1.
FIRST: dict[str, dict[str, Any]] = {
    "first": {"kernel": 3, "stride_h": 2, "stride_w": 2},
    "first dilated": {"kernel": 3, "dilation_h_factor": 2, "padding": 1},
}
CASES["first"] = ((1, 15, 18, 3), 16, 12, {}, False)
CASES["first dilated"] = ((2, 9, 8, 5), 16, 12, {}, False)


def net(name: str, expands: int = RELU6) -> Maker:
    shape, middle, outs, fields, adds = CASES[name]
    g = Maker()
    image = x = g.input(*shape)
    if adds:  # what is read twice is stored as f16
        x = g.op("NEG", image)
    first = {"kernel": 1, **FIRST.get(name, {})}
    y = g.conv(x, middle, fused_activation_function=expands, **first)
    y = g.depthwise(y, **{"depth_multiplier": 1, "fused_activation_function": RELU6, **fields})
    y = g.conv(y, outs, kernel=1)
    g.done(g.op("ADD", y, x) if adds else g.op("NEG", y))
    rng = np.random.default_rng(4)
    for value in g.graph.values.values():  # weights of both signs
        if value.data is not None:
            value.data[...] = rng.uniform(-1, 1, value.data.shape)
    return g


def inputs(name: str) -> Array:
    return np.random.default_rng(5).uniform(-2, 2, CASES[name][0]).astype(np.float32)


@pytest.fixture(scope="module")
def device(tile_device: Device) -> Device:
    return tile_device


@pytest.fixture(autouse=True)
def small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    assert H200.blocks is not None
    blocks = attrs.evolve(H200.blocks, least_pixels=1, most_taps=25)
    monkeypatch.setitem(
        cast("dict[str, Tuning]", TABLE), "nvidia", attrs.evolve(H200, blocks=blocks)
    )


def planned(device: Device, g: Maker) -> Plan:
    """Its plan; the kernel has seven operands before others join."""
    caps = attrs.evolve(with_tiles(device.caps), max_bindings=16)
    return plan(g, caps, Precision.F16, device.alignment)


def agree(device: Device, g: Maker, data: Array) -> None:
    made = planned(device, g)
    assert kernels(made)[-1] == "inverted_residual"
    (expected,) = evaluate(g.graph, [data])
    found = run(device, made, data)
    assert np.linalg.norm(found - expected) < BOUND * np.linalg.norm(expected)


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_makes_all_three(device: Device, name: str) -> None:
    agree(device, net(name), inputs(name))


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(device: Device, tile: BlockTile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted_residual, "TILES", (tile,))
    for name in ("residual", "stride"):
        g = net(name)
        if kernels(planned(device, g))[-1] != "inverted_residual":
            continue  # more shared memory than the device has
        agree(device, g, inputs(name))


def test_a_nan_shows_where_windows_see_it(device: Device) -> None:
    g, data = net("not clamped", expands=0), inputs("not clamped")
    data[0, 2, 4, 7] = np.nan
    found = run(device, planned(device, g), data)
    (expected,) = evaluate(g.graph, [data])
    np.testing.assert_array_equal(np.isnan(found).all(axis=-1), np.isnan(expected).any(axis=-1))


def test_an_infinity_spoils_no_channel_that_fills_a_chunk(device: Device) -> None:
    """36 channels are no whole chunk of most tiles; zeros times infinity would be NaN there."""
    g, data = net("odd"), inputs("odd")
    data[0, 3, 5, :] = np.inf
    for node in g.graph.nodes[:1]:  # with positive weights an infinity stays one, and becomes 6
        weights = node.input(1).data
        assert weights is not None
        np.abs(weights, out=weights)
    found = run(device, planned(device, g), data)
    (expected,) = evaluate(g.graph, [data])
    assert np.isfinite(expected).all()
    assert np.linalg.norm(found - expected) < BOUND * np.linalg.norm(expected)


def test_the_first_bias_is_kept_beyond_f16(device: Device) -> None:
    """960 and a bit, from which sums take 960: f16 has steps of a half there."""
    g, data = net("not clamped"), np.ones(CASES["not clamped"][0], np.float32)
    weights, biases = (g.graph.nodes[0].input(i).data for i in (1, 2))
    assert weights is not None and biases is not None
    weights[...] = -40.0
    biases[...] = np.random.default_rng(6).uniform(960.05, 960.45, biases.shape)
    agree(device, g, data)


def test_a_weight_beyond_f16_keeps_them_apart() -> None:
    caps = attrs.evolve(with_tiles(DeviceCaps(shared_bytes=49152)), max_bindings=16)
    g = net("odd")
    assert kernels(plan(g, caps, Precision.F16)) == ["inverted_residual"]
    weights = g.graph.nodes[0].input(1).data
    assert weights is not None
    weights[0, 0, 0, 0] = 70000.0
    assert "inverted_residual" not in kernels(plan(g, caps, Precision.F16))


def test_what_no_block_is_stays_apart() -> None:
    caps = attrs.evolve(with_tiles(DeviceCaps(shared_bytes=49152)), max_bindings=16)

    def made(g: Maker, caps: DeviceCaps = caps, precision: Precision = Precision.F16) -> bool:
        return "inverted_residual" in kernels(plan(g, caps, precision))

    assert made(net("odd"))
    assert not made(net("odd"), attrs.evolve(caps, vendor=""))  # not measured
    assert not made(net("odd"), attrs.evolve(caps, matrix_tiles=False))
    assert not made(net("odd"), attrs.evolve(caps, shared_bytes=4096))
    assert not made(net("odd"), precision=Precision.F32_F16)
    g = Maker()  # what is expanded has another reader
    y = g.conv(g.input(1, 8, 8, 16), 32, kernel=1)
    g.done(g.conv(g.depthwise(y, depth_multiplier=1), 16, kernel=1), g.op("ABS", y))
    assert not made(g)
    g = Maker()  # two pairs
    y = g.conv(g.depthwise(g.input(1, 8, 8, 16), depth_multiplier=1), 32, kernel=1)
    g.done(g.conv(g.depthwise(y, depth_multiplier=1), 16, kernel=1))
    assert kernels(plan(g, caps, Precision.F16)) == ["depthwise_pointwise"] * 2
    g = Maker()  # a first convolution that sees too much
    y = g.conv(g.input(1, 8, 8, 16), 32, kernel=3)
    g.done(g.conv(g.depthwise(y, depth_multiplier=1), 16, kernel=1))
    assert not made(g)


def test_where_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes of MobileNet v2, of a pose network, and a batch."""
    monkeypatch.undo()
    caps = attrs.evolve(with_tiles(DeviceCaps(shared_bytes=49152)), max_bindings=16)

    def names(shape: tuple[int, ...], middle: int, outs: int, **fields: Any) -> list[str]:
        g = Maker()
        first = fields.pop("first", {"kernel": 1})
        y = g.depthwise(g.conv(g.input(*shape), middle, **first), depth_multiplier=1, **fields)
        g.done(g.conv(y, outs, kernel=1))
        return kernels(plan(g, caps, Precision.F16))

    stem = {"kernel": 3, "stride_h": 2, "stride_w": 2}
    assert names((1, 224, 224, 3), 32, 16, first=stem) == ["inverted_residual"]
    assert names((1, 112, 112, 16), 96, 24, stride_h=2, stride_w=2) == ["inverted_residual"]
    assert names((1, 28, 28, 32), 192, 32) == ["inverted_residual"]
    apart = ["conv_2d_matrix", "depthwise_pointwise"]
    assert names((1, 14, 14, 64), 384, 64) == apart
    assert names((1, 33, 33, 64), 384, 64) == apart
    assert names((1, 64, 64, 24), 144, 32, kernel=5, stride_h=2, stride_w=2) == apart
    assert "inverted_residual" not in names((32, 56, 56, 24), 144, 24)
