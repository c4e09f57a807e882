"""DEPTHWISE_CONV_2D and the 1x1 CONV_2D behind it as one kernel on matrix tiles: on the kernel
interpreter, which also refuses races and accesses out of bounds, and on devices that have tiles."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array
from tflgpu.kernels import depthwise_pointwise, pair_tiles
from tflgpu.kernels.pair_tiles import PairSize, PairTile, choose_pair_tile, is_faster_as_one
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.choices import ChoicePoint, Choices
from tflgpu.lowering.precision import Precision

from tests.passes.harness import Maker, evaluate
from tests.running import by_plan

PRECISIONS = (Precision.F16, Precision.F32_F16)
BOUNDS = {Precision.F16: 1e-3, Precision.F32_F16: 2e-6}
#: Image, channels of the result, and what the depthwise convolution has.
CASES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "odd": ((1, 7, 11, 22), 13, {}),
    "stride": ((1, 9, 8, 40), 33, {"kernel": 5, "stride_h": 2, "stride_w": 2}),
    "batch": ((3, 7, 7, 64), 16, {}),
    "no padding": ((1, 9, 6, 21), 7, {"padding": 1}),
    "dilated": ((1, 13, 9, 21), 7, {"dilation_h_factor": 2, "dilation_w_factor": 2}),
    "few channels": ((1, 16, 13, 3), 9, {}),
    "wide": ((1, 5, 6, 19), 130, {"kernel": 5}),
    "one row": ((1, 1, 37, 20), 24, {}),
    "one column": ((1, 37, 1, 20), 24, {"stride_h": 2}),
    "not clamped": ((1, 6, 5, 24), 9, {"fused_activation_function": 0}),
    "pointwise": ((1, 6, 5, 24), 9, {"kernel": 1}),
    "deep": ((1, 3, 5, 440), 5, {}),
}
#: Several stages in so little shared memory that the interpreter's device has it.
SMALL_STAGES = (PairTile(2, 1, 1, 1, 1, 4, 3), PairTile(1, 2, 2, 1, 2, 4, 2))


def net(name: str) -> Maker:
    shape, outs, fields = CASES[name]
    g = Maker()
    x = g.input(*shape)
    y = g.depthwise(x, **{"depth_multiplier": 1, "fused_activation_function": 3, **fields})
    g.done(g.op("NEG", g.conv(y, outs, kernel=1)))
    rng = np.random.default_rng(4)
    for value in g.graph.values.values():  # weights of both signs
        if value.data is not None:
            value.data[...] = rng.uniform(-1, 1, value.data.shape)
    return g


def inputs(name: str) -> Array:
    return np.random.default_rng(5).uniform(-2, 2, CASES[name][0]).astype(np.float32)


def plan(g: Maker, caps: DeviceCaps, precision: Precision, alignment: int = 256) -> Plan:
    target = attrs.evolve(Target.plain(caps, precision), alignment=alignment)
    return plan_of(g.graph.nodes, g.graph.inputs, g.graph.outputs, target)


def kernels(made: Plan) -> list[str]:
    return [d.kernel.name for d in made.dispatches]


def run(device: Device, made: Plan, data: Array) -> Array:
    return by_plan(device, made, data)[0]


def with_tiles(caps: DeviceCaps) -> DeviceCaps:
    """Where everything stays in the cache, F32_F16 stores f32."""
    tiles = {"is_gpu": True, "matrix_tiles": True, "vendor": "nvidia"}
    return attrs.evolve(caps, **tiles, cache_bytes=1 << 30, compute_units=132)


@pytest.fixture(scope="module")
def device(tile_device: Device) -> Device:
    return tile_device


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_makes_both(device: Device, name: str, precision: Precision) -> None:
    g, data = net(name), inputs(name)
    made = plan(g, with_tiles(device.caps), precision, device.alignment)
    assert kernels(made) == ["depthwise_pointwise"]
    assert made.dispatches[0].origins == (0, 1, 2)
    (expected,) = evaluate(g.graph, [data])
    found = run(device, made, data)
    assert np.linalg.norm(found - expected) < BOUNDS[precision] * np.linalg.norm(expected)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("tile", (*pair_tiles.TILES, *SMALL_STAGES), ids=str)
def test_every_tile(
    device: Device, tile: PairTile, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = 1 if precision is Precision.F16 else 2
    if tile.shared_bytes(parts, parts) > device.caps.shared_bytes:
        pytest.skip("more shared memory than the device has")
    if tile.threads > device.caps.max_workgroup:
        pytest.skip("more invocations than a workgroup of the device has")
    monkeypatch.setattr(depthwise_pointwise, "choose_pair_tile", lambda *sizes: tile)
    monkeypatch.setattr(depthwise_pointwise, "is_faster_as_one", lambda *sizes: True)
    for name in ("odd", "stride", "deep") if tile.stages > 1 else ("odd", "stride"):
        g, data = net(name), inputs(name)
        made = plan(g, with_tiles(device.caps), precision, device.alignment)
        (expected,) = evaluate(g.graph, [data])
        assert kernels(made) == ["depthwise_pointwise"]
        found = run(device, made, data)
        assert np.linalg.norm(found - expected) < BOUNDS[precision] * np.linalg.norm(expected)


def test_work_that_would_be_done_often_is_not_joined() -> None:
    caps = DeviceCaps(
        shared_bytes=49152, max_workgroup=1024, max_workgroup_size=(1024, 1024, 64),
        compute_units=132,
    )  # fmt: skip
    caps = with_tiles(caps)
    single, batch = PairSize(224, 128, 128, 1, 1), PairSize(32 * 224, 128, 128, 1, 1)
    # Of MobileNet v2, one image and 32: the deepest layer, and the widest.
    deep, many = PairSize(56, 40, 240, 1, 1), PairSize(32 * 56, 40, 240, 1, 1)
    wide = PairSize(32 * 12544, 4, 8, 1, 1)
    both = ((single, True), (batch, False), (deep, True), (many, False), (wide, True))
    for size, pays in both:
        tile = choose_pair_tile(size, caps)
        assert tile is not None
        assert is_faster_as_one(tile, size, caps) is pays
    assert choose_pair_tile(single, attrs.evolve(caps, vendor="")) is None  # not measured
    deep = PairSize(56, 40, 240, 1, 1)
    large = attrs.evolve(caps, max_workgroup_size=(1024, 1024, 64))
    whole = choose_pair_tile(deep, large)
    light = choose_pair_tile(deep, attrs.evolve(large, heavy_workgroup=256))
    assert light is not None and whole is not None and light.threads <= 256 < whole.threads
    assert choose_pair_tile(single, attrs.evolve(caps, shared_bytes=1024)) is None


def test_a_filter_that_the_model_computes_is_not_joined() -> None:
    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 16), depth_multiplier=1)
    weights, bias = g.input(8, 1, 1, 16), g.random(8)
    g.done(g.op("CONV_2D", y, weights, bias, stride_h=1, stride_w=1))
    made = plan(g, with_tiles(DeviceCaps(shared_bytes=49152)), Precision.F16)
    assert kernels(made) == ["depthwise", "conv_2d_runtime"]


def test_what_was_measured_is_taken() -> None:
    def made(choices: Choices) -> Plan:
        plain = Target.plain(with_tiles(DeviceCaps(shared_bytes=49152)), Precision.F16)
        target = attrs.evolve(plain, site=attrs.evolve(plain.site, choices=choices))
        graph = net("odd").graph
        return plan_of(graph.nodes, graph.inputs, graph.outputs, target)

    met: dict[str, ChoicePoint] = {}
    made(Choices(points=met))
    (joins,) = (key for key in met if key.startswith("depthwise_pointwise"))
    (tile,) = (key for key in met if key.startswith("pair "))
    assert len(made(Choices(names={joins: "apart"})).dispatches) == 2
    other = list(met[tile].candidates)[-1]
    assert other != met[tile].chosen
    (dispatch,) = made(Choices(names={joins: "joined", tile: other})).dispatches
    assert dispatch.tuned == f"pair {other}"


def test_a_nan_shows_where_windows_see_it(device: Device) -> None:
    g, data = net("not clamped"), inputs("not clamped")
    data[0, 2, 4, 7] = np.nan
    found = run(device, plan(g, with_tiles(device.caps), Precision.F32_F16, 256), data)
    (expected,) = evaluate(g.graph, [data])
    np.testing.assert_array_equal(np.isnan(found).all(axis=-1), np.isnan(expected).any(axis=-1))


def test_a_weight_beyond_f16_spoils_its_own_channel_only(device: Device) -> None:
    """Sums that are no multiple of a stage read the last weights again."""
    g, data = net("not clamped"), inputs("not clamped")
    weights = g.graph.nodes[1].input(1).data
    assert weights is not None
    weights[3, 0, 0, -1] = 70000.0
    made = plan(g, with_tiles(device.caps), Precision.F16, device.alignment)
    assert kernels(made) == ["depthwise_pointwise"]
    found = run(device, made, data)
    assert not np.isfinite(found[..., 3]).any()
    assert np.isfinite(np.delete(found, 3, axis=-1)).all()


@pytest.mark.parametrize("change", [{"matrix_tiles": False}, {"is_gpu": False}], ids=str)
def test_devices_without_tiles_make_them_apart(change: dict[str, bool]) -> None:
    caps = attrs.evolve(with_tiles(DeviceCaps()), **change)
    assert len(plan(net("odd"), caps, Precision.F16).dispatches) == 2
    assert len(plan(net("odd"), with_tiles(DeviceCaps()), Precision.F32).dispatches) == 2


def test_what_no_pair_is_stays_apart() -> None:
    def made(g: Maker) -> int:
        return len(plan(g, with_tiles(DeviceCaps()), Precision.F16).dispatches)

    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 24), depth_multiplier=1)
    g.done(g.conv(y, 16, kernel=3))
    assert made(g) == 2
    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 24), depth_multiplier=1)
    g.done(g.conv(y, 16, kernel=1, stride_h=2))
    assert made(g) == 2
    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 24), multiplier=2, depth_multiplier=2)
    g.done(g.conv(y, 16, kernel=1))
    assert made(g) == 2
    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 24), kernel=7, depth_multiplier=1)
    g.done(g.conv(y, 16, kernel=1))
    assert made(g) == 2
    g = Maker()
    y = g.depthwise(g.input(1, 7, 9, 24), depth_multiplier=1)
    g.done(g.conv(y, 16, kernel=1), g.op("ABS", y))
    assert made(g) > 2
