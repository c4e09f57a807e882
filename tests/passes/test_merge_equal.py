"""Nodes that compute the same become one; such as differ in anything do not."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Value
from tflgpu.passes import merge_equal
from tflgpu.passes.base import run_passes

from tests.passes.harness import CONTEXT, Maker, draw, evaluate, names

KERNELS = attrs.evolve(CONTEXT, kernels=True)


def merged(m: Maker, *results: Value) -> list[str]:
    """The ops that are left, which compute what all did."""
    graph = m.done(*results)
    after = graph.copy()
    run_passes(after, [merge_equal.PASS], KERNELS)
    inputs = draw(graph)
    for mine, theirs in zip(evaluate(after, inputs), evaluate(graph, inputs), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    untouched = graph.copy()
    assert run_passes(untouched, [merge_equal.PASS], CONTEXT) == {"merge_equal": 0}
    return names(after)


def test_chains_of_two_layers_are_one() -> None:
    m = Maker()
    at, layers = m.input(3, dtype=DType.I32), []
    for _ in range(2):
        angle = m.op("MUL", m.op("CAST", at, in_data_type=2, out_data_type=0), m.const([0.5]))
        layers.append(m.op("TANH", m.op("COS", angle)))
    assert merged(m, m.op("ADD", *layers)) == ["CAST", "MUL", "COS", "TANH", "ADD"]


def test_results_of_the_model_stay() -> None:
    m = Maker()
    x = m.input(3)
    first, second = m.op("TANH", x), m.op("TANH", x)
    assert merged(m, first, second) == ["TANH", "TANH"]


def test_all_results_of_a_node_are_replaced() -> None:
    m = Maker()
    x = m.input(4, 2)
    (a, b), (c, d) = (m.ops("SPLIT", m.const(0, DType.I32), x, num_splits=2) for _ in "12")
    assert merged(m, m.op("SUB", a, d), m.op("SUB", b, c)) == ["SPLIT", "SUB", "SUB"]


@pytest.mark.parametrize(
    ("one", "other"),
    [(0.5, 0.25), (0.0, -0.0), ([0.5, 0.5, 0.5], [0.5])],
    ids=["values", "signs", "shapes"],
)
def test_other_constants_are_others(one: object, other: object) -> None:
    m = Maker()
    x = m.input(3)
    made = m.op("SUB", m.op("MUL", x, m.const(one)), m.op("MUL", x, m.const(other)))
    assert merged(m, made) == ["MUL", "MUL", "SUB"]


def test_other_attributes_are_others() -> None:
    m = Maker()
    x = m.input(3, 4)
    made = [m.op("SOFTMAX", x, beta=beta) for beta in (1.0, 2.0, 1.0)]
    assert merged(m, m.op("SUB", *made[:2]), m.op("NEG", made[2])) == [
        "SOFTMAX",
        "SOFTMAX",
        "SUB",
        "NEG",
    ]


def test_attributes_of_another_sign_are_others() -> None:
    """0.0 and -0.0 are equal, and what they give is not."""
    m = Maker()
    x = m.input(3, 4)
    made = [m.op("LEAKY_RELU", x, alpha=alpha) for alpha in (0.0, -0.0)]
    assert merged(m, m.op("SUB", *made)) == ["LEAKY_RELU", "LEAKY_RELU", "SUB"]
