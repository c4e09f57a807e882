"""Which rule makes the kernels of a product, and that a plugin can come between them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Precision
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.tuning import H200, UNMEASURED, tuning_of
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops

GPU = DeviceCaps(is_gpu=True, compute_units=8)
TILES = DeviceCaps(is_gpu=True, compute_units=8, matrix_tiles=True, vendor="nvidia")
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
        (conv(2, 32, 24), TILES, F16, "few_rows"),
        (conv(7, 32, 24), TILES, F32, "blocked"),
        (conv(7, 32, 24), TILES, F16, "matrix"),
        (conv(7, 32, 24), TILES, MIXED, "matrix"),
        (conv(7, 32, 24), SLOW_TILES, F16, "matrix"),
        (conv(7, 32, 24), SLOW_TILES, MIXED, "blocked"),
        (conv(7, 16, 24), TILES, F16, "blocked"),
        (conv(7, 32, 24, weight=1e5), TILES, MIXED, "blocked"),
        (conv(7, 32, 24, weight=np.nan), TILES, MIXED, "blocked"),
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
    caps = cached(TILES)
    assert name_of(conv(7, 32, 24), caps, F32, mine) == "mine"  # in place of "blocked"
    assert name_of(conv(7, 32, 24), caps, F16, mine) == "matrix"
    assert name_of(conv(2, 32, 24), caps, F32, mine) == "few_rows"
    assert name_of(conv(7, 32, 8), caps, F32, mine) == "blocked"


def test_a_plugin_of_rank_0_comes_before_all() -> None:
    mine = KernelRule("CONV_2D", "mine", _build)
    for side, precision in ((2, F32), (7, F16), (7, F32)):
        assert name_of(conv(side, 32, 24), cached(TILES), precision, mine) == "mine"


def test_measured_constants_are_those_of_the_device_or_of_the_one_known_best() -> None:
    assert tuning_of(DeviceCaps(vendor="nvidia")) is H200
    assert tuning_of(DeviceCaps(vendor="somebody")) is UNMEASURED
