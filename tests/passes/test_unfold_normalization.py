"""Normalizations between moves that undo each other."""

from __future__ import annotations

import pytest
from tflgpu.ir.graph import Value
from tflgpu.ops.normalize import NAME
from tflgpu.passes import unfold_normalization

from tests.passes.harness import Maker, check, names

RTOL = 2e-6


def normalized(g: Maker, x: Value, *axes: int) -> Value:
    return g.op(NAME, x, axes=axes, epsilon=1e-3)


def as_images(g: Maker, x: Value, *axes: int) -> Value:
    """As Keras does: rows become channels of one image."""
    rows, channels = x.elements // x.shape[-1], x.shape[-1]
    x = g.op("RESHAPE", x, g.ints(1, rows, channels, 1))
    y = normalized(g, g.op("TRANSPOSE", x, g.ints(0, 2, 3, 1)), *axes)
    return g.op("TRANSPOSE", y, g.ints(0, 3, 1, 2))


def test_layer_normalization_by_keras() -> None:
    g = Maker()
    x = g.input(2, 5, 7)
    y = g.op("RESHAPE", as_images(g, x, 1), g.ints(2, 5, 7))
    after = check(g.done(y), unfold_normalization.PASS, RTOL)
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == (2,)
    assert after.nodes[0].origins == (0, 1, 2, 3, 4)


def test_transpositions_alone() -> None:
    g = Maker()
    y = normalized(g, g.op("TRANSPOSE", g.input(2, 5, 7), g.ints(2, 0, 1)), 0, 2)
    after = check(g.done(g.op("TRANSPOSE", y, g.ints(1, 2, 0))), unfold_normalization.PASS, RTOL)
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == (1, 2)


@pytest.mark.parametrize(("shape", "axes"), [((10, 7), (1,)), ((2, 5, 7, 1), (2, 3))])
def test_reshapes_alone(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    g = Maker()
    x = g.input(*shape)
    y = normalized(g, g.op("RESHAPE", x, g.ints(1, 10, 7, 1)), 2)
    after = check(g.done(g.op("RESHAPE", y, g.ints(*shape))), unfold_normalization.PASS, RTOL)
    assert names(after) == [NAME]
    assert after.nodes[0].attrs.axes == axes


def test_a_reshape_to_a_third_shape_stays() -> None:
    """The first one is merged with what flattened an image before."""
    g = Maker()
    y = g.op("RESHAPE", as_images(g, g.input(2, 5, 3, 7), 1), g.ints(2, 15, 7))
    after = check(g.done(y), unfold_normalization.PASS, RTOL)
    assert names(after) == [NAME, "RESHAPE"]
    assert after.nodes[0].attrs.axes == (3,)


def test_what_does_not_undo_stays() -> None:
    g = Maker()
    x = g.input(4, 4, 6)
    turned = normalized(g, g.op("TRANSPOSE", x, g.ints(1, 2, 0)), 1)
    rows = normalized(g, g.op("RESHAPE", x, g.ints(16, 6)), 0)
    groups = normalized(g, g.op("RESHAPE", x, g.ints(4, 4, 2, 3)), 3)
    read = normalized(g, g.op("RESHAPE", x, g.ints(16, 6)), 1)
    graph = g.done(
        g.op("TRANSPOSE", turned, g.ints(1, 2, 0)),
        g.op("RESHAPE", rows, g.ints(4, 4, 6)),
        g.op("RESHAPE", groups, g.ints(4, 4, 6)),
        g.op("RESHAPE", read, g.ints(4, 4, 6)),
        read,
    )
    assert names(check(graph, unfold_normalization.PASS, RTOL)) == names(graph)
