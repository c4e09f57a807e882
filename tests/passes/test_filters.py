"""Arithmetic before and after convolutions, padding and activations: what moves into a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.compiler.target import Target
from tflgpu.ir.graph import Value
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import Activation
from tflgpu.ops.windows import Pads
from tflgpu.passes import (
    fuse_activation,
    fuse_after_filter,
    fuse_before_filter,
    merge_padding,
    pad_before_maximum,
)

from tests.passes.harness import CONTEXT, RELU, Maker, check, names, only

Filter = Callable[[Maker, Value], Value]


def fully_connected(g: Maker, x: Value, **fields: Any) -> Value:
    return g.op("FULLY_CONNECTED", x, g.random(6, 4), g.random(6), keep_num_dims=True, **fields)


def transpose_conv(g: Maker, x: Value, **fields: Any) -> Value:
    weights = g.random(6, 3, 3, 4)
    return g.op("TRANSPOSE_CONV", g.ints(1, 10, 14, 6), weights, x, stride_h=2, stride_w=2,
                padding=0, **fields)  # fmt: skip


FILTERS: dict[str, Filter] = {
    "conv": lambda g, x: g.conv(x, 6),
    "conv_without_bias": lambda g, x: g.conv(x, 6, bias=False),
    "grouped": lambda g, x: g.conv(x, 6, groups=2),
    "strided_valid": lambda g, x: g.conv(x, 6, stride_h=2, stride_w=2, padding=1),
    "depthwise": lambda g, x: g.depthwise(x),
    "multiplier": lambda g, x: g.depthwise(x, 3, padding=1),
    "fully_connected": fully_connected,
    "transpose_conv": transpose_conv,
}

# One runtime operand and constants of every shape that is a number per channel.
AFFINES: dict[str, Callable[[Maker, Value], Value]] = {
    "add": lambda g, x: g.op("ADD", x, g.random(x.shape[-1])),
    "add_left": lambda g, x: g.op("ADD", g.random(1, 1, 1, x.shape[-1]), x),
    "add_scalar": lambda g, x: g.op("ADD", x, g.random()),
    "sub": lambda g, x: g.op("SUB", x, g.random(1, x.shape[-1])),
    "sub_from": lambda g, x: g.op("SUB", g.random(x.shape[-1]), x),
    "mul": lambda g, x: g.op("MUL", x, g.random(x.shape[-1])),
    "mul_one": lambda g, x: g.op("MUL", g.random(1), x),
    "div": lambda g, x: g.op("DIV", x, g.random(x.shape[-1])),
}
SCALES = ("mul", "mul_one", "div")
FOLDS = {"after": fuse_after_filter.PASS.run, "before": fuse_before_filter.PASS.run}


@pytest.mark.parametrize("affine", AFFINES)
@pytest.mark.parametrize("name", FILTERS)
def test_after_a_filter(name: str, affine: str, g: Maker) -> None:
    y = AFFINES[affine](g, FILTERS[name](g, g.input(1, 5, 7, 4)))
    after = check(g.done(y), fuse_after_filter.PASS)
    assert len(after.nodes) == 1
    assert after.nodes[0].origins == (0, 1)


def test_a_chain_after_a_filter_folds_whole_with_its_activation(g: Maker) -> None:
    y = g.op("MUL", g.conv(g.input(1, 5, 7, 3), 6), g.random(6))
    y = g.op("RELU", g.op("SUB", y, g.random(6), **RELU))
    after = check(g.done(y), [fuse_after_filter.PASS, fuse_activation.PASS])
    assert names(after) == ["CONV_2D", "RELU"]
    assert after.nodes[0].attrs.activation is Activation.RELU


def test_the_weights_of_others_are_not_touched(g: Maker) -> None:
    x, weights, bias = g.input(1, 5, 7, 3), g.random(4, 3, 3, 3), g.random(4)
    fields = {"stride_h": 1, "stride_w": 1, "padding": 0}
    first = g.op("CONV_2D", x, weights, bias, **fields)
    second = g.op("CONV_2D", x, weights, bias, **fields)
    graph = g.done(first, g.op("MUL", second, g.random(4)))
    after = check(graph, fuse_after_filter.PASS)
    kept, scaled = after.nodes
    assert kept.const(1) is weights.data
    assert not np.array_equal(scaled.const(1), kept.const(1))


def with_itself(g: Maker, op: str, y: Value, make: Callable[[Value], Value]) -> Value:
    """An op of a value and of what is made of it, so that the value has two readers."""
    return g.op(op, make(y), y)


NOT_AFTER: dict[str, Callable[[Maker, Value], Value]] = {
    "activation": lambda g, x: g.op("MUL", g.conv(x, 6, **RELU), g.random(6)),
    "two_readers": lambda g, x: with_itself(
        g, "ADD", g.conv(x, 6), lambda y: g.op("MUL", y, g.random(6))
    ),
    "per_pixel": lambda g, x: g.op("ADD", g.conv(x, 6), g.random(1, 5, 7, 6)),
    "per_column": lambda g, x: g.op("ADD", g.conv(x, 6), g.random(7, 1)),
    "broadcasts": lambda g, x: g.op("MUL", g.conv(x, 1), g.random(6)),
    "runtime": lambda g, x: with_itself(g, "MUL", g.conv(x, 6), lambda y: g.op("ABS", y)),
    "infinite": lambda g, x: g.op("DIV", g.conv(x, 6), g.const([0, 1, 1, 1, 1, 1])),
    "nan": lambda g, x: g.op("ADD", g.conv(x, 6), g.const([np.nan] * 6)),
    "div_by": lambda g, x: g.op("DIV", g.random(6), g.conv(g.op("EXP", x), 6)),
    "overflow": lambda g, x: g.op("MUL", g.conv(x, 6, bias=False), g.const([3.4e38] * 6)),
    "computed_filter": lambda g, x: g.op(
        "MUL",
        g.op("CONV_2D", x, g.input(6, 3, 3, 4), None, stride_h=1, stride_w=1, padding=0),
        g.random(6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_AFTER)
def test_not_after_a_filter(name: str, g: Maker) -> None:
    graph = g.done(NOT_AFTER[name](g, g.input(1, 5, 7, 4)))
    after = graph.copy()
    assert fuse_after_filter.PASS.run(after, CONTEXT) == 0
    assert names(after) == names(graph)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("place", ["after", "before"])
@pytest.mark.parametrize("filters", ["conv", "depthwise", "fully_connected"])
@pytest.mark.parametrize(
    ("weights", "scale", "folds"),
    [(1.0, 0.01, True), (300.0, 1000.0, False), (1e-3, 1e-4, False), (1e6, 2.0, True)],
    ids=["within", "too_large", "too_small", "were_infinite"],
)  # fmt: skip
def test_f16_has_what_comes_out_of_folding(
    precision: Precision, place: str, filters: str, weights: float, scale: float, folds: bool
) -> None:
    g, run = Maker(), FOLDS[place]
    x = g.input(1, 5, 7, 4)
    if place == "before":
        x = g.op("MUL", x, g.const(scale))
    y = FILTERS[filters](g, x)
    if place == "after":
        y = g.op("MUL", y, g.const(scale))
    graph = g.done(y)
    (filter_,) = (n for n in graph.nodes if n.op != "MUL")
    filter_.inputs[1] = graph.add_const(filter_.const(1) * np.float32(weights))
    context = Target.plain(DeviceCaps(), precision).pass_context
    expected = precision is Precision.F32 or folds
    assert run(graph, context) == expected


def test_not_an_output_of_the_graph(g: Maker) -> None:
    y = g.conv(g.input(1, 5, 7, 4), 6)
    graph = g.done(y, g.op("MUL", y, g.random(6)))
    assert names(check(graph, fuse_after_filter.PASS)) == ["CONV_2D", "MUL"]


@pytest.mark.parametrize("affine", SCALES)
@pytest.mark.parametrize("name", [n for n in FILTERS if n != "transpose_conv"])
def test_a_scale_before_a_filter(name: str, affine: str, g: Maker) -> None:
    y = FILTERS[name](g, AFFINES[affine](g, g.input(1, 5, 7, 4)))
    after = check(g.done(y), fuse_before_filter.PASS)
    assert len(after.nodes) == 1
    assert after.nodes[0].origins == (0, 1)


@pytest.mark.parametrize("affine", [a for a in AFFINES if a not in SCALES])
@pytest.mark.parametrize("name", ["strided_valid", "multiplier", "fully_connected"])
def test_a_shift_before_a_filter_that_sees_no_padding(name: str, affine: str, g: Maker) -> None:
    y = FILTERS[name](g, AFFINES[affine](g, g.input(1, 5, 7, 4)))
    assert len(check(g.done(y), fuse_before_filter.PASS).nodes) == 1


@pytest.mark.parametrize("name", ["conv", "grouped", "depthwise"])
def test_a_shift_before_a_filter_that_sees_padding_stays(name: str, g: Maker) -> None:
    graph = g.done(FILTERS[name](g, AFFINES["add"](g, g.input(1, 5, 7, 4))))
    assert len(check(graph, fuse_before_filter.PASS).nodes) == 2


def test_same_padding_that_adds_nothing_is_no_padding(g: Maker) -> None:
    graph = g.done(g.conv(AFFINES["add"](g, g.input(1, 5, 7, 4)), 6, kernel=1))
    assert names(check(graph, fuse_before_filter.PASS)) == ["CONV_2D"]


def test_a_grouped_filter_without_padding_takes_a_shift(g: Maker) -> None:
    graph = g.done(g.conv(AFFINES["sub_from"](g, g.input(1, 5, 7, 6)), 9, groups=3, padding=1))
    assert names(check(graph, fuse_before_filter.PASS)) == ["CONV_2D"]


@pytest.mark.parametrize(("shape", "folds"), [((1, 5, 7, 4), True), ((1, 5, 14, 2), False)])
def test_a_reshape_before_a_filter_may_move_rows(
    shape: tuple[int, ...], folds: bool, g: Maker
) -> None:
    y = g.op("ADD", g.op("MUL", g.input(1, 35, 4), g.random(4)), g.random(4))
    y = g.op("RESHAPE", y, g.ints(*shape), new_shape=shape)
    graph = g.done(g.conv(y, 6, kernel=1))
    found = names(check(graph, fuse_before_filter.PASS))
    assert found == (["RESHAPE", "CONV_2D"] if folds else names(graph))


def test_rows_of_several_pixels_before_fully_connected(g: Maker) -> None:
    scaled = g.op("ADD", g.op("MUL", g.input(2, 3, 5, 4), g.random(4)), g.random(4))
    graph = g.done(g.op("FULLY_CONNECTED", scaled, g.random(6, 20), None))
    assert names(check(graph, fuse_before_filter.PASS)) == ["FULLY_CONNECTED"]


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x: g.conv(g.op("MUL", x, g.random(4), **RELU), 6),
        lambda g, x: with_itself(
            g, "ADD", g.op("MUL", x, g.random(4)), lambda y: g.conv(y, 4)
        ),
        lambda g, x: g.conv(g.op("MUL", x, g.random(7, 1)), 6),
        lambda g, x: transpose_conv(g, g.op("MUL", x, g.random(4))),
        lambda g, x: g.op(
            "CONV_2D", g.random(1, 5, 7, 4), g.op("MUL", g.input(6, 3, 3, 4), g.random(4)), None,
            stride_h=1, stride_w=1, padding=0,
        ),
    ],
    ids=["activation", "two_readers", "per_column", "transpose_conv", "filter"],
)  # fmt: skip
def test_not_before_a_filter(make: Callable[[Maker, Value], Value], g: Maker) -> None:
    graph = g.done(make(g, g.input(1, 5, 7, 4)))
    assert names(check(graph, fuse_before_filter.PASS)) == names(graph)


BORDER = [[0, 0], [1, 2], [3, 0], [0, 0]]


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1], ids=["same", "valid"])
@pytest.mark.parametrize("size", [5, 6, 7, 8])
def test_padding_moves_into_a_convolution(
    size: int, padding: int, stride: int, dilation: int
) -> None:
    for filtered in ("conv", "depthwise"):
        g = Maker()
        x = g.op("PAD", g.input(1, size, size + 1, 3), g.ints(*BORDER))
        fields = {
            "padding": padding, "stride_h": stride, "stride_w": stride,
            "dilation_h_factor": dilation, "dilation_w_factor": dilation,
        }  # fmt: skip
        y = g.conv(x, 4, **fields) if filtered == "conv" else g.depthwise(x, **fields)
        after = check(g.done(y), merge_padding.PASS)
        (node,) = after.nodes
        assert node.attrs.pads is not None
        assert node.origins == (0, 1)


def test_paddings_in_a_row_add_up(g: Maker) -> None:
    x = g.op("PADV2", g.input(1, 5, 6, 3), g.ints(*BORDER), g.const([0.0]))
    y = g.conv(g.op("PAD", x, g.ints(*BORDER)), 4, padding=1)
    after = check(g.done(y), merge_padding.PASS)
    assert names(after) == ["CONV_2D"]
    assert after.nodes[0].attrs.pads == Pads(2, 4, 6, 0)


def test_padding_with_two_readers_moves_into_both(g: Maker) -> None:
    x = g.op("PAD", g.input(1, 5, 6, 4), g.ints(*BORDER))
    after = check(g.done(g.conv(x, 4), g.depthwise(x)), merge_padding.PASS)
    assert names(after) == ["CONV_2D", "DEPTHWISE_CONV_2D"]


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x: g.conv(g.op("PADV2", x, g.ints(*BORDER), g.const([1.0])), 4),
        lambda g, x: g.conv(g.op("MIRROR_PAD", x, g.ints(*BORDER), mode=1), 4),
        lambda g, x: g.conv(g.op("PAD", x, g.ints([0, 0], [0, 0], [0, 0], [1, 0])), 4),
        lambda g, x: g.conv(g.op("PAD", x, g.ints([0, 0], [0, 1], [0, 0], [0, 1])), 4),
        lambda g, x: g.conv(g.op("PAD", x, g.ints([1, 0], [0, 0], [0, 0], [0, 0])), 4),
        *[
            lambda g, x, op=op: g.op(
                op, g.op("PAD", x, g.ints(*BORDER)), stride_h=1, stride_w=1, padding=1,
                filter_height=3, filter_width=3,
            )
            for op in ("MAX_POOL_2D", "AVERAGE_POOL_2D")
        ],
    ],
    ids=["ones", "mirror", "channels", "channels_behind", "batch", "max_pool", "average_pool"],
)  # fmt: skip
def test_padding_stays(make: Callable[[Maker, Value], Value], g: Maker) -> None:
    graph = g.done(make(g, g.input(1, 5, 6, 3)))
    assert names(check(graph, merge_padding.PASS)) == names(graph)


def pooled(g: Maker, x: Value, *border: list[int], op: str = "MAX_POOL_2D", side: int = 3) -> Value:
    padded = g.op("PAD", x, g.ints([0, 0], *border, [0, 0]))
    fields = {"filter_height": side, "filter_width": side, "stride_h": 2, "stride_w": 2}
    return g.op(op, padded, padding=1, **fields)


@pytest.mark.parametrize("clamp", ["RELU", "RELU6", "fused"])
@pytest.mark.parametrize("border", [([1, 1], [1, 1]), ([0, 2], [2, 1]), ([1, 0], [0, 0])])
def test_zeros_around_what_is_never_negative_move_into_a_maximum(
    border: tuple[list[int], ...], clamp: str, g: Maker
) -> None:
    x = g.input(1, 7, 8, 3)
    x = g.conv(x, 4, **RELU) if clamp == "fused" else g.op(clamp, x)
    after = check(g.done(pooled(g, x, *border)), pad_before_maximum.PASS)
    assert names(after) == ["CONV_2D" if clamp == "fused" else clamp, "MAX_POOL_2D"]
    assert after.nodes[1].origins == (1, 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x: pooled(g, g.op("ABS", x), [1, 1], [1, 1]),
        lambda g, x: pooled(g, g.op("RELU_N1_TO_1", x), [1, 1], [1, 1]),
        lambda g, x: pooled(g, g.op("RELU", x), [1, 1], [1, 1], op="AVERAGE_POOL_2D"),
        lambda g, x: pooled(g, g.op("RELU", x), [2, 0], [0, 1], side=2),
        lambda g, x: pooled(g, g.op("RELU", x), [0, 0], [1, 3]),
        lambda g, x: pooled(g, x, [1, 1], [1, 1]),
    ],
    ids=["any", "negative", "average", "above", "right", "input"],
)  # fmt: skip
def test_zeros_before_a_maximum_stay(make: Callable[[Maker, Value], Value], g: Maker) -> None:
    graph = g.done(make(g, g.input(1, 7, 8, 3)))
    assert names(check(graph, pad_before_maximum.PASS)) == names(graph)


MAKERS: dict[str, Callable[[Maker, Value], Value]] = {
    **{k: v for k, v in FILTERS.items() if k in ("conv", "depthwise", "transpose_conv")},
    "fully_connected": fully_connected,
    "add": lambda g, x: g.op("ADD", x, g.random(4)),
    "sub": lambda g, x: g.op("SUB", x, g.random(4)),
    "mul": lambda g, x: g.op("MUL", x, g.random(4)),
    "div": lambda g, x: g.op("DIV", x, g.random(4)),
    "pool": lambda g, x: g.op(
        "MAX_POOL_2D", x, stride_h=1, stride_w=1, padding=0, filter_height=2, filter_width=2
    ),
    "l2_pool": lambda g, x: g.op(
        "L2_POOL_2D", x, stride_h=1, stride_w=1, padding=0, filter_height=2, filter_width=2
    ),
    "l2_normalization": lambda g, x: g.op("L2_NORMALIZATION", x),
}
ACTIVATIONS = ("RELU", "RELU6", "RELU_N1_TO_1", "TANH")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", MAKERS)
def test_an_activation_moves_into_its_maker(name: str, activation: str, g: Maker) -> None:
    y = g.op(activation, MAKERS[name](g, g.input(1, 5, 7, 4)))
    after = check(g.done(y), fuse_activation.PASS)
    (node,) = after.nodes
    assert node.attrs.activation.name == activation
    assert node.origins == (0, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x: g.op("TANH", g.op("ADD", x, g.random(4), **RELU)),
        lambda g, x: with_itself(g, "MUL", g.op("ADD", x, g.random(4)), lambda y: g.op("RELU", y)),
        lambda g, x: g.op("RELU", g.op("ABS", x)),
        lambda g, x: g.op("RELU_0_TO_1", g.op("ADD", x, g.random(4))),
    ],
    ids=["activated", "two_readers", "no_activation", "no_fused_form"],
)
def test_an_activation_stays(make: Callable[[Maker, Value], Value], g: Maker) -> None:
    graph = g.done(make(g, g.input(1, 5, 7, 4)))
    assert names(check(graph, fuse_activation.PASS)) == names(graph)


def test_batch_normalization_folds_away_in_one_go(g: Maker) -> None:
    from tflgpu.passes.registry import default_passes

    x = g.op("MUL", g.op("SUB", g.input(1, 5, 7, 3), g.const(0.5)), g.const(2.0))
    x = g.conv(x, 6, padding=1, bias=False)
    x = g.op("RELU6", g.op("ADD", g.op("MUL", x, g.random(6)), g.random(6)))
    after = check(g.done(g.depthwise(x)), default_passes())
    assert names(after) == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    assert only(after, "CONV_2D").origins == (0, 1, 2, 3, 4, 5)


def test_an_image_without_pixels_keeps_the_border_that_gives_it_some(g: Maker) -> None:
    graph = g.done(g.conv(g.op("PAD", g.input(1, 5, 0, 4), g.ints(*BORDER)), 4))
    assert names(check(graph, merge_padding.PASS)) == ["PAD", "CONV_2D"]


def test_a_window_that_fits_nowhere_keeps_its_border(g: Maker) -> None:
    padded = g.op("PAD", g.input(1, 1, 4, 7), g.ints([0, 0], [0, 3], [0, 2], [0, 0]))
    graph = g.done(g.depthwise(padded, padding=1, dilation_h_factor=2, dilation_w_factor=2))
    assert graph.outputs[0].shape == (1, 0, 2, 7)
    assert names(check(graph, merge_padding.PASS)) == ["PAD", "DEPTHWISE_CONV_2D"]
