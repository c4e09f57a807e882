"""MIRROR_PAD and the CONV_2D behind it as one kernel, by every kernel of a product."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.compile import plan_of
from tflgpu.compiler.plan import Plan
from tflgpu.compiler.target import Target
from tflgpu.contract.device import Device
from tflgpu.kernels import products
from tflgpu.kernels.matrix_window import WINDOW_TILES, WindowTile
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import registry

from tests.passes.harness import Maker, evaluate
from tests.running import by_plan

REFLECT, SYMMETRIC = 0, 1
#: Image, border of rows and of columns, mode, and what the convolution has.
CASES: dict[str, tuple[tuple[int, ...], list[int], list[int], int, dict[str, Any]]] = {
    "around": ((1, 7, 9, 5), [1, 1], [1, 1], REFLECT, {}),
    "edge twice": ((2, 6, 5, 8), [1, 1], [1, 1], SYMMETRIC, {}),
    "wide": ((1, 5, 6, 3), [4, 3], [2, 5], REFLECT, {"kernel": 5}),
    "whole image": ((1, 3, 4, 7), [3, 3], [4, 4], SYMMETRIC, {"stride_h": 2, "stride_w": 3}),
    "uneven": ((1, 8, 6, 20), [0, 2], [3, 0], REFLECT, {"dilation_h_factor": 2}),
    "one row": ((1, 1, 9, 6), [1, 1], [2, 2], SYMMETRIC, {}),
    "one pixel": ((1, 2, 2, 24), [0, 1], [1, 0], REFLECT, {}),
    "staged once": ((1, 9, 21, 32), [1, 1], [1, 1], REFLECT, {"outs": 16}),
    "staged once, unevenly": ((2, 5, 17, 32), [2, 1], [0, 2], SYMMETRIC, {"outs": 16}),
    "pointwise": ((1, 5, 7, 12), [1, 0], [0, 2], REFLECT, {"kernel": 1}),
}


def net(name: str, *, inside: bool = False, **more: Any) -> Maker:
    """The two, and with ``inside`` something before them, since a part's own input lies in f32."""
    shape, rows, columns, mode, fields = CASES[name]
    g = Maker()
    x = g.input(*shape)
    if inside:
        x = g.op("MAX_POOL_2D", x, stride_h=1, stride_w=1, filter_height=1, filter_width=1)
    x = g.op("MIRROR_PAD", x, g.ints([0, 0], rows, columns, [0, 0]), mode=mode)
    options = {"padding": 1, "fused_activation_function": 1, **fields, **more}
    y = g.conv(x, options.pop("outs", 10), **options)
    g.done(g.op("NEG", y))
    return g


def plan(g: Maker, caps: DeviceCaps, precision: Precision, alignment: int = 256) -> Plan:
    target = attrs.evolve(Target.plain(caps, precision), alignment=alignment)
    return plan_of(g.graph.nodes, g.graph.inputs, g.graph.outputs, target)


def run(device: Device, made: Plan, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return by_plan(device, made, data)[0]


@pytest.fixture(scope="module")
def device(any_device: Device) -> Device:
    return any_device


@pytest.mark.parametrize("is_gpu", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_one_kernel_makes_both(device: Device, name: str, is_gpu: bool) -> None:
    g = net(name)
    data = np.random.default_rng(2).uniform(-2, 2, CASES[name][0]).astype(np.float32)
    made = plan(g, attrs.evolve(device.caps, is_gpu=is_gpu), Precision.F32, device.alignment)
    assert len(made.dispatches) == 1
    assert made.dispatches[0].origins == (0, 1, 2)
    (expected,) = evaluate(g.graph, [data])
    np.testing.assert_allclose(run(device, made, data), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16], ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if "staged" not in name])
def test_on_matrix_tiles(name: str, precision: Precision) -> None:
    opened = registry().open_device("cpu_ref", 1, DelegateOptions())
    # Where everything stays in the cache, F32_F16 stores f32.
    tiles = {"matrix_tiles": True, "vendor": "nvidia", "cache_bytes": 1 << 30}
    caps = attrs.evolve(opened.caps, is_gpu=True, **tiles)
    g = net(name)
    data = np.random.default_rng(2).uniform(-2, 2, CASES[name][0]).astype(np.float32)
    made = plan(g, caps, precision)
    assert len(made.dispatches) == 1
    (expected,) = evaluate(g.graph, [data])
    found = run(opened, made, data)
    opened.close()
    bound = 1e-3 if precision is Precision.F16 else 2e-6
    assert np.linalg.norm(found - expected) < bound * np.linalg.norm(expected)


@pytest.mark.parametrize("name", [name for name in CASES if "staged" in name])
@pytest.mark.parametrize("tile", WINDOW_TILES, ids=str)
def test_windows_that_are_staged_once(
    tile: WindowTile, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "choose_matrix_tile", lambda *sizes, **options: tile)
    opened = registry().open_device("cpu_ref", 1, DelegateOptions())
    caps = attrs.evolve(opened.caps, is_gpu=True, matrix_tiles=True, vendor="nvidia")
    g = net(name, inside=True)
    data = np.random.default_rng(2).uniform(-2, 2, CASES[name][0]).astype(np.float32)
    made = plan(g, caps, Precision.F16)
    if made.dispatches[0].kernel.shared_bytes > opened.caps.shared_bytes:
        opened.close()
        pytest.skip("more shared memory than the interpreter grants")
    assert made.dispatches[-1].kernel.name == "conv_2d_window"
    (expected,) = evaluate(g.graph, [data])
    found = run(opened, made, data)
    opened.close()
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


def test_a_nan_shows_where_its_mirror_images_are(device: Device) -> None:
    g = net("around")
    data = np.zeros(CASES["around"][0], np.float32)
    data[0, 1, 7, 2] = np.nan
    found = run(device, plan(g, device.caps, Precision.F32, device.alignment), data)
    (expected,) = evaluate(g.graph, [data])
    np.testing.assert_array_equal(np.isnan(found).any(axis=-1), np.isnan(expected).any(axis=-1))


def stays(g: Maker) -> bool:
    """Whether the border is an operator of its own, wherever that is computed."""
    made = plan(g, DeviceCaps(is_gpu=True), Precision.F32)
    return any("MIRROR_PAD" in d.label for d in made.dispatches)


def test_other_borders_stay() -> None:
    zeros = net("around", padding=0)  # zeros around what was mirrored
    assert stays(zeros)
    g = Maker()
    x = g.op("MIRROR_PAD", g.input(1, 5, 6, 4), g.ints([0, 0], [0, 0], [1, 1], [0, 2]), mode=0)
    g.done(g.conv(x, 10, padding=1))
    assert stays(g)
    g = Maker()
    x = g.op("MIRROR_PAD", g.input(1, 5, 6, 64), g.ints([0, 0], [1, 1], [1, 1], [0, 0]), mode=0)
    g.done(g.conv(x, 64, padding=1, groups=2))
    assert stays(g)
    g = Maker()
    x = g.op("MIRROR_PAD", g.input(1, 5, 6, 4), g.ints([0, 0], [1, 1], [1, 1], [0, 0]), mode=0)
    g.done(g.conv(x, 10, padding=1), g.op("NEG", x))  # something else reads it
    assert stays(g)
