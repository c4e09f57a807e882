"""Normalization layers in the forms that converters write, and chains that only look like one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tflgpu.ir.graph import Graph, Value
from tflgpu.ops.base import Activation
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes import (
    fuse_normalization,
    keep_dims,
    merge_moves,
    remove_noops,
    sink_transposes,
    unfold_normalization,
)
from tflgpu.passes.base import run_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.passes.harness import CONTEXT, RELU, Maker, check, names, only

PASSES = [remove_noops.PASS, keep_dims.PASS, fuse_normalization.PASS]
# Mean and variance come in f32 from the chain and in f64 from the fused op.
RTOL = 2e-5


def moments(
    g: Maker, x: Value, axes: tuple[int, ...], keep: bool = True
) -> tuple[Value, Value, Callable[[Value], Value]]:
    """Mean, 1 / deviation, and what makes either fit x again."""
    kept = [1 if a in axes else d for a, d in enumerate(x.shape)]

    def fit(value: Value) -> Value:
        return value if keep else g.op("RESHAPE", value, g.ints(*kept))

    mean = g.op("MEAN", x, g.ints(*axes), keep_dims=keep)
    square = g.op("SQUARED_DIFFERENCE", x, fit(mean))
    variance = g.op("MEAN", square, g.ints(*axes), keep_dims=keep)
    return mean, g.op("RSQRT", g.op("ADD", variance, g.const(1e-3))), fit


def batch_form(
    g: Maker, x: Value, axes: tuple[int, ...], gamma: Value | None, beta: Value,
    *, keep: bool = True, **fields: Any,
) -> Value:  # fmt: skip
    """y = x * s + (beta - mean * s)"""
    mean, root, fit = moments(g, x, axes, keep)
    scale = root if gamma is None else g.op("MUL", root, gamma)
    moved = g.op("SUB", beta, g.op("MUL", scale, mean))
    return g.op("ADD", g.op("MUL", x, fit(scale)), fit(moved), **fields)


def centred_form(g: Maker, x: Value, axes: tuple[int, ...], keep: bool = True) -> Value:
    """y = (x - mean) * root"""
    mean, root, fit = moments(g, x, axes, keep)
    return g.op("MUL", g.op("SUB", x, fit(mean)), fit(root))


def by_hand(
    g: Maker, x: Value, axes: tuple[int, ...], *, keep: bool = True, divides: bool = True
) -> Value:
    """d / sqrt(mean(d * d) + epsilon) of the difference d from the mean, which is made once."""
    kept = [1 if a in axes else d for a, d in enumerate(x.shape)]

    def fit(value: Value) -> Value:
        return value if keep else g.op("RESHAPE", value, g.ints(*kept))

    difference = g.op("SUB", x, fit(g.op("MEAN", x, g.ints(*axes), keep_dims=keep)))
    variance = g.op("MEAN", g.op("SQUARE", difference), g.ints(*axes), keep_dims=keep)
    total = g.op("ADD", variance, g.const(1e-3))
    if divides:
        return g.op("DIV", difference, fit(g.op("SQRT", total)))
    return g.op("MUL", difference, fit(g.op("RSQRT", total)))


def fused(graph: Graph) -> Graph:
    return check(graph, PASSES, RTOL)


@pytest.mark.parametrize("keep", [True, False])
def test_instance_normalization(keep: bool, g: Maker) -> None:
    x = g.input(1, 5, 7, 6)
    shape = (1, 1, 1, 6) if keep else (1, 6)
    y = batch_form(g, x, (1, 2), g.random(*shape), g.random(*shape), keep=keep)
    after = fused(g.done(y))
    assert names(after) == [NAME, "MUL", "ADD"]
    node = only(after, NAME)
    assert node.attrs == MeanStddev((1, 2), pytest.approx(1e-3))
    assert node.input(0) is after.inputs[0]


def test_scale_and_shift_may_be_computed(g: Maker) -> None:
    x, style = g.input(1, 5, 7, 6), g.input(1, 1, 1, 6)
    y = batch_form(g, x, (1, 2), g.op("EXP", style), g.op("ABS", style), **RELU)
    after = fused(g.done(y))
    assert names(after) == ["EXP", "ABS", NAME, "MUL", "ADD"]
    assert only(after, "ADD").attrs.activation is Activation.RELU


def test_layer_normalization_with_parameters_along_the_normalized_axis(g: Maker) -> None:
    y = batch_form(g, g.input(2, 5, 37), (2,), g.random(37), g.random(37))
    assert names(fused(g.done(y))) == [NAME, "MUL", "ADD"]


def test_layer_normalization_over_a_dimension_of_one_too(g: Maker) -> None:
    """As PyTorch's converter writes it: without gamma, beta 0, axes [0, 2]."""
    after = fused(g.done(batch_form(g, g.input(1, 35, 8), (0, 2), None, g.const(0), keep=False)))
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == (2,)
    assert after.nodes[0].origins == tuple(range(12))


def test_an_activation_after_no_scale_and_shift_is_a_node(g: Maker) -> None:
    y = batch_form(g, g.input(2, 5, 7), (2,), None, g.const(0), **RELU)
    assert names(fused(g.done(y))) == [NAME, "RELU"]


@pytest.mark.parametrize("keep", [True, False])
def test_the_centred_form(keep: bool, g: Maker) -> None:
    y = centred_form(g, g.input(2, 5, 13), (2,), keep)
    y = g.op("ADD", g.op("MUL", y, g.random(13)), g.random(13))
    assert names(fused(g.done(y))) == [NAME, "MUL", "ADD"]


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("keep", [True, False])
def test_the_form_whose_difference_is_made_once(keep: bool, divides: bool, g: Maker) -> None:
    y = by_hand(g, g.input(2, 5, 7, 3, 4), (1, 2, 4), keep=keep, divides=divides)
    after = fused(g.done(g.op("ADD", g.op("MUL", y, g.random(3, 1)), g.random(3, 1))))
    assert names(after) == [NAME, "MUL", "ADD"]
    assert only(after, NAME).attrs == MeanStddev((1, 2, 4), pytest.approx(1e-3))


def test_what_is_normalized_may_be_a_reshape_that_adds_a_dimension(g: Maker) -> None:
    """As behind a dense layer of sequences: the reshape stays one value for all that read it."""
    x = g.op("RESHAPE", g.op("ABS", g.input(5, 37)), g.ints(1, 5, 37))
    y = batch_form(g, x, (2,), g.random(37), g.random(37))
    assert names(fused(g.done(y))) == ["ABS", "RESHAPE", NAME, "MUL", "ADD"]


def test_statistics_that_others_read_stay_for_them(g: Maker) -> None:
    x = g.input(1, 5, 7, 6)
    mean, root, _ = moments(g, x, (1, 2))
    y = g.op("MUL", g.op("SUB", x, mean), root)
    after = fused(g.done(y, mean))
    assert names(after) == ["MEAN", NAME]


def other_mean(g: Maker, x: Value) -> Value:
    _, root, _ = moments(g, x, (1, 2))
    return g.op("MUL", g.op("SUB", x, g.op("MEAN", x, g.ints(1), keep_dims=True)), root)


def other_tensor(g: Maker, x: Value) -> Value:
    mean, root, _ = moments(g, x, (1, 2))
    return g.op("MUL", g.op("SUB", g.op("ABS", x), mean), root)


def other_axes(g: Maker, x: Value) -> Value:
    mean = g.op("MEAN", x, g.ints(1, 2), keep_dims=True)
    square = g.op("SQUARED_DIFFERENCE", x, mean)
    variance = g.op("MEAN", square, g.ints(1), keep_dims=True)
    root = g.op("RSQRT", g.op("ADD", variance, g.const(1e-3)))
    return g.op("MUL", g.op("SUB", x, mean), root)


def mean_before_difference(g: Maker, x: Value) -> Value:
    mean, root, _ = moments(g, x, (1, 2))
    return g.op("MUL", g.op("SUB", mean, x), root)


def deviation_before_difference(g: Maker, x: Value) -> Value:
    difference = g.op("SUB", x, g.op("MEAN", x, g.ints(1, 2), keep_dims=True))
    variance = g.op("MEAN", g.op("SQUARE", difference), g.ints(1, 2), keep_dims=True)
    return g.op("DIV", g.op("SQRT", g.op("ADD", variance, g.const(1e-3))), difference)


def two_scales(g: Maker, x: Value) -> Value:
    mean, root, _ = moments(g, x, (1, 2))
    moved = g.op("SUB", g.const(0), g.op("MUL", root, mean))
    return g.op("ADD", g.op("MUL", x, g.op("MUL", root, g.random(6))), moved)


def several_epsilons(g: Maker, x: Value) -> Value:
    mean = g.op("MEAN", x, g.ints(1, 2), keep_dims=True)
    variance = g.op("MEAN", g.op("SQUARED_DIFFERENCE", x, mean), g.ints(1, 2), keep_dims=True)
    root = g.op("RSQRT", g.op("ADD", variance, g.random(6)))
    return g.op("MUL", g.op("SUB", x, mean), root)


def broadcast_by_gamma(g: Maker, x: Value) -> Value:
    return batch_form(g, x, (1, 2), g.random(3, 1, 1, 6), g.const(0))


@pytest.mark.parametrize(
    "make",
    [
        other_mean,
        other_tensor,
        other_axes,
        mean_before_difference,
        deviation_before_difference,
        two_scales,
        several_epsilons,
        broadcast_by_gamma,
    ],
)
def test_look_alikes_stay(make: Callable[[Maker, Value], Value], g: Maker) -> None:
    graph = g.done(make(g, g.input(1, 5, 7, 6)))
    assert NAME not in names(fused(graph))


def test_an_infinite_scale_stays(g: Maker) -> None:
    """x * s - mean * s is NaN then, and not what is normalized times infinity."""
    gamma = g.const([1, 2, float("inf"), 1, 1, 1])
    graph = g.done(batch_form(g, g.input(1, 5, 7, 6), (1, 2), gamma, g.const(0)))
    run_passes(graph, PASSES, CONTEXT)
    assert NAME not in names(graph)


def test_a_reshape_that_gives_the_rank_stays(g: Maker) -> None:
    """FULLY_CONNECTED in Keras: rows, reshaped to batch and time, and then a bias of one
    dimension."""
    x = g.input(5, 4)
    rows = g.op("RESHAPE", x, g.ints(1, 5, 4))
    y = g.op("ADD", rows, g.const([1, 2, 3, 4]))
    both = g.op("ADD", g.op("RESHAPE", x, g.ints(1, 5, 4)), y)  # y has the rank
    graph = check(g.done(both), [keep_dims.PASS], RTOL)
    assert names(graph).count("RESHAPE") == 1


def test_means_elsewhere_do_not_change(g: Maker) -> None:
    graph = g.done(g.op("RSQRT", g.op("MEAN", g.op("ABS", g.input(2, 5, 7)), g.ints(2))))
    assert names(check(graph, PASSES)) == names(graph)


@pytest.mark.parametrize(
    ("model", "layers", "gone"),
    [
        ("style_transfer_f16_384", 13, ("RSQRT", "SQUARED_DIFFERENCE", "MEAN")),
        ("litert_torchaudio_conformer", 5, ("RSQRT", "SQUARED_DIFFERENCE", "MEAN")),
    ],
)
def test_every_layer_of_real_models_is_found(
    model_path: Callable[[str], Path], model: str, layers: int, gone: tuple[str, ...]
) -> None:
    from tflgpu.passes.registry import default_passes

    graph = build_graph(read_model(model_path(model)), 0, builtin_ops())
    run_passes(graph, default_passes(), CONTEXT)
    assert names(graph).count(NAME) == layers
    assert not set(gone) & set(names(graph))


# Normalizations between moves that undo each other.


UNFOLD_RTOL = 2e-6
UNFOLD = [
    sink_transposes.PASS,
    merge_moves.PASS,
    remove_noops.PASS,
    unfold_normalization.PASS,
]


def normalized(g: Maker, x: Value, *axes: int) -> Value:
    return g.op(NAME, x, attributes=MeanStddev(axes, 1e-3))


def as_images(g: Maker, x: Value, *axes: int) -> Value:
    """As Keras does: rows become channels of one image."""
    rows, channels = x.elements // x.shape[-1], x.shape[-1]
    x = g.op("RESHAPE", x, g.ints(1, rows, channels, 1))
    y = normalized(g, g.op("TRANSPOSE", x, g.ints(0, 2, 3, 1)), *axes)
    return g.op("TRANSPOSE", y, g.ints(0, 3, 1, 2))


def test_layer_normalization_by_keras(g: Maker) -> None:
    x = g.input(2, 5, 7)
    y = g.op("RESHAPE", as_images(g, x, 1), g.ints(2, 5, 7))
    after = check(g.done(y), UNFOLD, UNFOLD_RTOL)
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == (2,)
    assert after.nodes[0].origins == (0, 1, 2, 3, 4)


def test_transpositions_alone(g: Maker) -> None:
    y = normalized(g, g.op("TRANSPOSE", g.input(2, 5, 7), g.ints(2, 0, 1)), 0, 2)
    after = check(g.done(g.op("TRANSPOSE", y, g.ints(1, 2, 0))), UNFOLD, UNFOLD_RTOL)
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == (1, 2)


@pytest.mark.parametrize(("shape", "axes"), [((10, 7), (1,)), ((2, 5, 7, 1), (2, 3))])
def test_reshapes_alone(shape: tuple[int, ...], axes: tuple[int, ...], g: Maker) -> None:
    x = g.input(*shape)
    y = normalized(g, g.op("RESHAPE", x, g.ints(1, 10, 7, 1)), 2)
    after = check(
        g.done(g.op("RESHAPE", y, g.ints(*shape))), unfold_normalization.PASS, UNFOLD_RTOL
    )
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == axes


def test_a_reshape_to_a_third_shape_stays(g: Maker) -> None:
    """The first one is merged with what flattened an image before."""
    y = g.op("RESHAPE", as_images(g, g.input(2, 5, 3, 7), 1), g.ints(2, 15, 7))
    after = check(g.done(y), UNFOLD, UNFOLD_RTOL)
    assert names(after) == [NAME, "RESHAPE"]
    assert after.nodes[0].attrs.axes == (3,)


def test_what_does_not_undo_stays(g: Maker) -> None:
    x = g.input(4, 4, 6)
    rows = normalized(g, g.op("RESHAPE", x, g.ints(16, 6)), 0)
    groups = normalized(g, g.op("RESHAPE", x, g.ints(4, 4, 2, 3)), 3)
    read = normalized(g, g.op("RESHAPE", x, g.ints(16, 6)), 1)
    graph = g.done(
        g.op("RESHAPE", rows, g.ints(4, 4, 6)),
        g.op("RESHAPE", groups, g.ints(4, 4, 6)),
        g.op("RESHAPE", read, g.ints(4, 4, 6)),
        read,
    )
    assert names(check(graph, UNFOLD, UNFOLD_RTOL)) == names(graph)


def test_transpositions_that_do_not_undo_one_another_become_one() -> None:
    g = Maker()
    turned = normalized(g, g.op("TRANSPOSE", g.input(4, 5, 6), g.ints(1, 2, 0)), 1)
    after = check(g.done(g.op("TRANSPOSE", turned, g.ints(1, 2, 0))), UNFOLD, UNFOLD_RTOL)
    assert names(after) == [NAME, "TRANSPOSE"]
    assert after.nodes[0].attrs.axes == (2,)
