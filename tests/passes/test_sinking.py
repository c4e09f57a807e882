"""TRANSPOSEs and RESHAPEs that move out of the way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Value
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes import (
    fuse_after_filter,
    merge_moves,
    remove_noops,
    sink_reshapes,
    sink_transposes,
)
from tflgpu.passes.base import run_passes
from tflgpu.passes.registry import default_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.passes.harness import CONTEXT, RELU, Maker, check, names

PASSES = [remove_noops.PASS, merge_moves.PASS, sink_transposes.PASS]


def first(g: Maker, x: Value) -> Value:
    """Channels to the front, as a channels-first framework has them."""
    return g.op("TRANSPOSE", x, g.ints(0, 2, 1))


def last(g: Maker, x: Value) -> Value:
    """A dimension of 1 for a convolution, and channels to the back."""
    x = g.op("RESHAPE", x, g.ints(*x.shape, 1))
    return g.op("TRANSPOSE", x, g.ints(0, 2, 3, 1))


BETWEEN: dict[str, Callable[[Maker, Value], Value]] = {
    "nothing": lambda g, x: x,
    "unary": lambda g, x: g.op("EXP", x),
    "chain": lambda g, x: g.op("EXP", g.op("NEG", x)),
    "swish": lambda g, x: g.op("MUL", x, g.op("LOGISTIC", x)),
    "scalar": lambda g, x: g.op("ADD", x, g.random()),
    "channels": lambda g, x: g.op("MUL", g.random(6, 1), x),
    "full_constant": lambda g, x: g.op("SUB", x, g.random(2, 6, 5), **RELU),
    "slices": lambda g, x: g.op(
        "MUL",
        g.op("SLICE", x, g.ints(0, 0, 0), g.ints(2, 3, 5)),
        g.op("LOGISTIC", g.op("SLICE", x, g.ints(0, 3, 0), g.ints(-1, -1, 5))),
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_transposes_cancel_around_elementwise_nodes(name: str, g: Maker) -> None:
    x = first(g, g.op("ABS", g.input(2, 5, 6)))
    graph = g.done(g.conv(last(g, BETWEEN[name](g, x)), 4, kernel=1))
    after = check(graph, PASSES)
    assert "TRANSPOSE" not in names(after)
    assert {o for n in after.nodes for o in n.origins} == set(range(len(graph.nodes)))


@pytest.mark.parametrize("second", list(permutations(range(4))))
def test_any_two_transposes_merge_through_dimensions_of_one(second: tuple[int, ...]) -> None:
    for shape, new in (((2, 3, 5), (5, 1, 2, 3)), ((1, 3, 5), (5, 1, 3, 1))):
        g = Maker()
        x = g.op("TRANSPOSE", g.op("ABS", g.input(*shape)), g.ints(2, 0, 1))
        x = g.op("TRANSPOSE", g.op("RESHAPE", x, g.ints(*new)), g.ints(*second))
        after = check(g.done(g.op("EXP", x)), PASSES, rtol=0)
        assert names(after).count("TRANSPOSE") <= 1


def test_two_transposed_operands_leave_one_transpose(g: Maker) -> None:
    a, b = first(g, g.input(2, 5, 6)), first(g, g.input(2, 5, 6))
    after = check(g.done(g.op("ADD", a, b)), PASSES)
    assert names(after) == ["ADD", "TRANSPOSE"]
    assert after.nodes[-1].outputs == after.outputs


def read_elsewhere(g: Maker, x: Value) -> list[Value]:
    return [last(g, g.op("EXP", x)), g.op("SOFTMAX", x, beta=1.0)]


def select_rows(g: Maker, x: Value) -> Value:
    chosen = g.const(np.arange(x.shape[0]) % 2, DType.BOOL)
    return g.op("SELECT", chosen, x, g.const(np.zeros(x.shape)))


STAYS: dict[str, Callable[[Maker, Value], list[Value]]] = {
    "no_gain": lambda g, x: [g.op("EXP", first(g, x))],
    "other_order": lambda g, x: [
        g.op("ADD", first(g, x), g.op("TRANSPOSE", g.input(5, 6, 2), g.ints(2, 1, 0)))
    ],
    "other_operand": lambda g, x: [last(g, g.op("ADD", first(g, x), g.input(2, 6, 5)))],
    "broadcast": lambda g, x: [last(g, g.op("ADD", first(g, x), g.input(1, 6, 5)))],
    "not_elementwise": lambda g, x: [last(g, g.op("SOFTMAX", first(g, x), beta=1.0))],
    # A vector of as many as there are rows chooses rows, and not columns.
    "rows": lambda g, x: [last(g, select_rows(g, first(g, x)))],
    "read_elsewhere": lambda g, x: read_elsewhere(g, first(g, x)),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_transposes_that_stay(name: str, g: Maker) -> None:
    graph = g.done(*STAYS[name](g, g.op("ABS", g.input(2, 5, 6))))
    after = check(graph, PASSES)
    assert names(after).count("TRANSPOSE") == names(graph).count("TRANSPOSE")


@pytest.mark.parametrize("op", ["ADD", "SUB", "MUL", "DIV"])
@pytest.mark.parametrize("left", [False, True])
def test_a_bias_behind_a_reshape_folds(op: str, left: bool, g: Maker) -> None:
    x = g.op("RESHAPE", g.conv(g.input(2, 5, 1, 3), 6, kernel=1), g.ints(2, 5, 6))
    pair = (x, g.random(1, 1, 6))
    y = g.op("RELU", g.op(op, *(reversed(pair) if left and op != "DIV" else pair)))
    after = check(g.done(y), [sink_reshapes.PASS, fuse_after_filter.PASS])
    assert names(after) == ["CONV_2D", "RELU", "RESHAPE"]
    assert [n.origins for n in after.nodes] == [(0, 2), (3,), (1,)]


@pytest.mark.parametrize("op", ["ADD_N", "ATAN2", "MUL"])
def test_a_constant_of_one_row_keeps_the_shape_of_the_other_operand(op: str, g: Maker) -> None:
    """Some ops do not broadcast."""
    x = g.op("RESHAPE", g.conv(g.input(1, 1, 1, 5), 3, kernel=1), g.ints(1, 3))
    after = check(g.done(g.op(op, x, g.random(1, 3))), sink_reshapes.PASS)
    assert names(after) == ["CONV_2D", op, "RESHAPE"]


def sequence(g: Maker, x: Value) -> Value:
    """A dense layer of sequences, as Keras has it."""
    return g.op("RESHAPE", g.conv(x, 6, kernel=1), g.ints(2, 5, 6))


def test_an_activation_and_a_residual_behind_a_reshape_are_before_it(g: Maker) -> None:
    x = g.op("TANH", g.input(2, 5, 6))
    inner = g.op("GELU", sequence(g, g.op("RESHAPE", x, g.ints(2, 5, 1, 6))))
    y = g.op("ADD", x, sequence(g, g.op("RESHAPE", inner, g.ints(2, 5, 1, 6))))
    after = check(g.done(y), [sink_reshapes.PASS, remove_noops.PASS])
    expected = ["TANH", "RESHAPE", "CONV_2D", "GELU", "CONV_2D", "RESHAPE", "ADD", "RESHAPE"]
    assert sorted(names(after)) == sorted(expected)
    assert names(after)[-2:] == ["ADD", "RESHAPE"]


def test_what_is_added_to_a_reshape_is_not_reshaped_for_it_alone(g: Maker) -> None:
    """Two that could both move would send a RESHAPE there and back, for ever."""
    x = g.input(2, 5, 1, 6)
    y = g.op("ADD", sequence(g, x), sequence(g, x))
    graph = g.done(y, g.op("MUL", sequence(g, x), g.op("EXP", g.input(2, 5, 6))))
    assert names(check(graph, sink_reshapes.PASS)) == names(graph)


def test_only_channels_that_stay_channels_and_filters_are_moved_past(g: Maker) -> None:
    split = g.op("RESHAPE", g.conv(g.input(1, 5, 2, 3), 6, kernel=1), g.ints(10, 3, 2))
    pooled = g.op("RESHAPE", g.op("SOFTMAX", g.input(2, 5, 6), beta=1.0), g.ints(10, 6))
    grown = g.op("RESHAPE", g.conv(g.input(1, 1, 1, 3), 6, kernel=1), g.ints(1, 6))
    graph = g.done(g.op("GELU", split), g.op("GELU", pooled), g.op("ADD", grown, g.random(4, 6)))
    assert names(check(graph, sink_reshapes.PASS)) == names(graph)


def test_reshapes_that_stay(g: Maker) -> None:
    mixed = g.op("RESHAPE", g.conv(g.input(1, 5, 2, 3), 6, kernel=1), g.ints(5, 12))
    read = g.op("RESHAPE", g.conv(g.input(1, 5, 2, 3), 6, kernel=1), g.ints(10, 6))
    other = g.op("RESHAPE", g.op("ABS", g.input(2, 6)), g.ints(12))
    graph = g.done(
        g.op("ADD", mixed, g.random(12)),
        g.op("ADD", g.op("ADD", read, g.random(6)), read),
        g.op("ADD", other, g.random()),
    )
    assert names(check(graph, sink_reshapes.PASS)) == names(graph)


def test_a_conformer_loses_most_of_its_transposes(model_path: Callable[[str], Path]) -> None:
    graph = build_graph(read_model(model_path("litert_torchaudio_conformer")), 0, builtin_ops())
    before = names(graph)
    run_passes(graph, default_passes(), CONTEXT)
    assert before.count("TRANSPOSE") == 14
    assert names(graph).count("TRANSPOSE") == 7
    # Biases behind reshapes are in the filters now.
    convs = [n for n in graph.nodes if "CONV" in n.op]
    assert len(convs) == 3
    assert names(graph).count("ADD") == 5


def test_a_choice_of_rows_stays_behind_a_reshape(g: Maker) -> None:
    """Before it, where the rows are another axis, the same vector would choose columns."""
    dense = g.op("RESHAPE", g.conv(g.input(1, 3, 1, 5), 3, kernel=1), g.ints(3, 3))
    other = g.op("ABS", g.input(3, 3))
    chosen = g.op("SELECT", g.const([1, 0, 1], DType.BOOL), dense, other)
    graph = g.done(chosen, g.op("EXP", other))
    assert names(check(graph, sink_reshapes.PASS)) == names(graph)
