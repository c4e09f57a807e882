"""raise_slices: rows that a model drops are not computed."""

from __future__ import annotations

from typing import Any

import pytest
from tflgpu.ir.graph import Graph, Value
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.passes.raise_slices import PASS

from tests.passes.harness import Maker, check, names

FIELDS = {"weights_format": 0, "fused_activation_function": 0}


def dense(g: Maker, x: Value, units: int) -> Value:
    weights = g.random(units, x.shape[-1])
    return g.op("FULLY_CONNECTED", x, weights, g.random(units), keep_num_dims=True, **FIELDS)


def normal(g: Maker, x: Value, axis: int = -1) -> Value:
    out = g.graph.add_value(x.shape, x.dtype)
    g.graph.add_node(NAME, MeanStddev((axis,), 1e-3), [x], [out], origins=(len(g.graph.nodes),))
    return out


def rows(g: Maker, x: Value, begin: int, size: int) -> Value:
    return g.op("SLICE", x, g.ints(0, begin, 0), g.ints(x.shape[0], size, x.shape[2]))


def strided(g: Maker, x: Value, **fields: Any) -> Value:
    ends = g.ints(x.shape[0], 1, x.shape[2])
    masks = dict.fromkeys(
        ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
    )
    return g.op("STRIDED_SLICE", x, g.ints(0, 0, 0), ends, g.ints(1, 1, 1), **{**masks, **fields})


def layer(g: Maker, x: Value) -> Value:
    """The second half of a transformer's."""
    return g.op("ADD", x, dense(g, g.op("GELU", dense(g, normal(g, x), 11)), x.shape[-1]))


@pytest.mark.parametrize(("begin", "size"), [(0, 1), (6, 1), (2, 3)])
def test_a_layer_of_the_rows_that_are_read(g: Maker, begin: int, size: int) -> None:
    x = dense(g, g.input(2, 7, 5), 6)
    after = check(g.done(rows(g, layer(g, g.op("ADD", x, g.op("ABS", x))), begin, size)), PASS)
    assert names(after)[0] == "SLICE"
    assert names(after).count("SLICE") == 1
    assert all(node.outputs[0].shape[1] == size for node in after.nodes)


def test_a_slice_without_its_axis_ends_in_a_reshape(g: Maker) -> None:
    y = strided(g, layer(g, g.input(2, 7, 6)), shrink_axis_mask=2)
    after = check(g.done(y), PASS)
    assert (names(after)[0], names(after)[-1]) == ("SLICE", "RESHAPE")
    assert after.outputs[0].shape == (2, 6)


def test_an_output_of_the_graph_keeps_its_value(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    assert names(check(g.done(rows(g, x, 0, 1)), PASS)) == ["SLICE", "ABS", "RESHAPE"]


def test_operands_that_are_broadcast(g: Maker) -> None:
    x = g.input(2, 7, 6)
    for other in (g.random(7, 6), g.random(2, 1, 6), g.random(6), g.random(1, 7, 1), g.random()):
        x = g.op("MUL", x, other)
    x = g.op("ADD", x, g.input(7, 6))
    after = check(g.done(g.op("ABS", rows(g, x, 3, 2))), PASS)
    assert names(after).count("SLICE") == 2
    assert all(node.outputs[0].shape[-2] == 2 for node in after.nodes)


def stays(graph: Graph) -> bool:
    return names(check(graph, PASS)) == names(graph)


def test_what_others_read_is_computed(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    assert stays(g.done(g.op("ABS", rows(g, x, 0, 1)), g.op("NEG", x)))


def test_two_slices_of_other_rows_stay(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    assert stays(g.done(g.op("ABS", rows(g, x, 0, 1)), g.op("NEG", rows(g, x, 1, 1))))


def test_an_output_is_computed(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    assert stays(g.done(x, g.op("ABS", rows(g, x, 0, 1))))


def test_what_puts_rows_together_stays_before(g: Maker) -> None:
    x = normal(g, g.input(2, 7, 6), axis=1)
    y = g.op("MUL", x, dense(g, g.input(2, 7, 6), 6))
    after = check(g.done(g.op("ABS", rows(g, y, 0, 1))), PASS)
    assert names(after).index(NAME) < names(after).index("SLICE")


def test_most_rows_are_computed_all_together(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    assert stays(g.done(g.op("ABS", rows(g, x, 1, 6))))


def test_channels_stay(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 7, 6))
    y = g.op("SLICE", x, g.ints(0, 0, 1), g.ints(2, 7, 2))
    assert stays(g.done(g.op("ABS", y)))


def test_scalars_have_no_rows(g: Maker) -> None:
    x = g.op("ABS", g.input())
    assert stays(g.done(g.op("RESHAPE", x, g.ints(1))))


def test_nothing_has_no_rows(g: Maker) -> None:
    x = g.op("ABS", g.input(2, 0, 6))
    assert stays(g.done(g.op("ABS", g.op("SLICE", x, g.ints(0, 0, 0), g.ints(1, 0, 6)))))
