"""Graphs for several items: what they compute, and what is refused, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph, Value
from tflgpu.ir.verify import verify
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.facets import Batched
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.unknown import UnknownOp
from tflgpu.passes.batch import batched

from tests.passes.harness import Maker, draw, evaluate, inferred, names

Make = Callable[[Maker, Value], Value | Sequence[Value]]


def made(make: Make, *shape: int) -> Graph:
    g = Maker()
    found = make(g, g.input(*shape))
    return g.done(*([found] if isinstance(found, Value) else found))


def classifier(g: Maker, x: Value) -> Value:
    """As most files have it: constants that say 1."""
    y = g.op("RESHAPE", g.conv(x, 6, padding=1), g.ints(1, 6 * 4 * 3))
    return g.op("SOFTMAX", g.op("FULLY_CONNECTED", y, g.random(5, 72), g.random(5)), beta=1.0)


def attention(g: Maker, x: Value) -> Value:
    """[1, t, c]: rows of items in axis 0, heads, a class token, a bias for each position."""
    x = g.op("CONCATENATION", g.random(1, 1, 6), x, axis=1)
    x = g.op("ADD", x, g.random(1, 6, 6))
    rows = g.op("RESHAPE", x, g.ints(6, 6))
    rows = g.op("ADD", g.op("FULLY_CONNECTED", rows, g.random(6, 6), None), g.random(6, 6))
    heads = g.op("RESHAPE", rows, g.ints(1, 6, 2, 3))
    heads = g.op("TRANSPOSE", heads, g.ints(0, 2, 1, 3))
    score = g.op("SOFTMAX", g.op("BATCH_MATMUL", heads, heads, adj_y=True), beta=0.01)
    joined = g.op("TRANSPOSE", g.op("BATCH_MATMUL", score, heads), g.ints(0, 2, 1, 3))
    return g.op("MEAN", g.op("RESHAPE", joined, g.ints(1, 6, 6)), g.ints(1))


def cut(g: Maker, x: Value) -> list[Value]:
    """Slices, splits, axes of size 1 that go and come."""
    part = g.op("STRIDED_SLICE", x, g.ints(0, 1, 0), g.ints(1, 5, 6), g.ints(1, 2, 1), end_mask=4)
    flat = g.op("SQUEEZE", part)  # the leading dimension goes, too
    back = g.op("EXPAND_DIMS", g.op("MUL", flat, flat), g.ints(0))
    one, two = g.ops("SPLIT", g.ints(2), back, num_splits=2)
    turned = g.op("TRANSPOSE", g.op("RESHAPE", one, g.ints(1, 1, 6)), g.ints(1, 0, 2))
    sliced = g.op("SLICE", two, g.ints(0, 1, 0), g.ints(1, -1, 2))
    kept = g.op("MEAN", x, g.ints(0, 1), keep_dims=True)
    return [turned, sliced, kept]


def time_first(g: Maker, x: Value) -> list[Value]:
    """[1, t, c] as recurrent layers turn it: steps along axis 0, on which the items lie."""
    steps = g.op("TRANSPOSE", x, g.ints(1, 0, 2))
    apart = g.ops("UNPACK", steps, axis=0, num=4)
    joined = g.op("PACK", *apart[::-1], axis=0, values_count=4)
    joined = g.op("CONCATENATION", g.op("REVERSE_V2", joined, g.ints(0)), g.random(2, 1, 6), axis=0)
    joined = g.op("PAD", joined, g.ints([1, 2], [0, 0], [0, 0]))
    ends = {"begin_mask": 0, "end_mask": 0}
    part = g.op("STRIDED_SLICE", joined, g.ints(1), g.ints(8), g.ints(2), **ends)
    last = g.op(
        "STRIDED_SLICE", steps, g.ints(-1), g.ints(0), g.ints(1), shrink_axis_mask=1, **ends
    )
    part = g.op("ADD", part, last)  # [4, 1, 6] and [1, 6]
    part = g.op("MUL", part, g.op("SUM", x, g.ints(0, 1, 2)))
    turned = g.op("TRANSPOSE", x, g.ints(2, 0, 1))
    product = g.op("BATCH_MATMUL", g.op("TRANSPOSE", turned, g.ints(1, 2, 0)), g.random(6, 5))
    return [g.op("TRANSPOSE", part, g.ints(1, 0, 2)), last, product]


def dilated(g: Maker, x: Value) -> Value:
    """A convolution between SPACE_TO_BATCH_ND and back, and channels weighted by their mean."""
    y = g.op("SPACE_TO_BATCH_ND", x, g.ints(2, 3), g.ints([0, 0], [1, 2]))
    y = g.op("RELU", g.conv(y, 4, padding=0))
    y = g.op("BATCH_TO_SPACE_ND", y, g.ints(2, 3), g.ints([0, 0], [1, 2]))
    return g.op("MUL", y, g.op("MEAN", y, g.ints(1, 2)))  # [1, 4] and [1, 6, 6, 4]


def rows_chosen(g: Maker, x: Value) -> Value:
    """By vectors of as many as there are rows, the same for all items and not."""
    rows = g.op("RESHAPE", x, g.ints(5, 5))
    some = g.op("SELECT", g.const([1, 0, 0, 1, 1], DType.BOOL), rows, g.random(5, 5))
    positive = g.op("GREATER", g.op("SUM", rows, g.ints(1)), g.const(0.0))
    return g.op("RESHAPE", g.op("SELECT", positive, some, rows), g.ints(1, 25))


def looked_up(g: Maker, x: Value) -> list[Value]:
    """GATHER_ND of each item's own numbers: by constants, as masks are, and by the place of the
    largest number, as the row of a text's end is."""
    flat = g.op("RESHAPE", x, g.ints(1, 30))
    mask = g.op("GATHER_ND", flat, g.ints([[[0, 3], [0, 29], [0, 0]]]))
    rows = g.op("RESHAPE", x, g.ints(5, 6))
    some = g.op("GATHER_ND", rows, g.ints([4], [1], [4]))
    one = g.op("GATHER_ND", rows, g.ints(2, 5))
    largest = g.op("RESHAPE", g.op("ARG_MAX", x, g.ints(1), output_type=2), g.ints(6, 1))
    found = g.op("GATHER_ND", x, g.op("CONCATENATION", g.ints(*[[0]] * 6), largest, axis=1))
    return [mask, g.op("MUL", g.op("RESHAPE", some, g.ints(1, 18)), one),
            g.op("RESHAPE", found, g.ints(1, 36))]  # fmt: skip


def one_head(g: Maker, x: Value) -> Value:
    """Attention of one head, whose products have weights that the model computes."""
    rows = g.op("RESHAPE", x, g.ints(5, 6))
    keys = g.op("FULLY_CONNECTED", rows, g.random(6, 6), None)
    score = g.op("FULLY_CONNECTED", x, keys, None, keep_num_dims=True)
    turned = g.op("TRANSPOSE", rows, g.ints(1, 0))
    y = g.op("FULLY_CONNECTED", g.op("SOFTMAX", score, beta=0.1), turned, None)
    learned = g.op("FULLY_CONNECTED", g.random(2, 2, 6), keys, None)
    return g.op(
        "RESHAPE",
        g.op("CONCATENATION", y, g.op("RESHAPE", learned, g.ints(5, 4)), axis=1),
        g.ints(1, 5, 10),
    )


GOOD: dict[str, tuple[Make, tuple[int, ...]]] = {
    "classifier": (classifier, (1, 6, 5, 3)),
    "attention": (attention, (1, 5, 6)),
    "cut": (cut, (1, 5, 6)),
    "time_first": (time_first, (1, 4, 6)),
    "dilated": (dilated, (1, 6, 6, 3)),
    "rows_chosen": (rows_chosen, (1, 25)),
    "looked_up": (looked_up, (1, 5, 6)),
    "one_head": (one_head, (1, 5, 6)),
}


@pytest.mark.parametrize("name", GOOD)
def test_each_item_as_alone(name: str) -> None:
    make, shape = GOOD[name]
    graph = made(make, *shape)
    before = graph.dump()
    wide = batched(graph, 4, builtin_ops())
    assert isinstance(wide, Graph)
    assert graph.dump() == before  # of one item, still
    inferred(wide)
    verify(wide)
    assert [v.id for v in (*wide.inputs, *wide.outputs)] == [
        v.id for v in (*graph.inputs, *graph.outputs)
    ]
    assert all(v.shape[0] == 4 for v in (*wide.inputs, *wide.outputs))
    items = [draw(graph, seed) for seed in range(4)]
    got = evaluate(wide, [np.concatenate(parts) for parts in zip(*items, strict=True)])
    alone = [evaluate(graph, item) for item in items]
    for mine, theirs in zip(got, map(np.concatenate, zip(*alone, strict=True)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)
        assert not np.allclose(mine[0], mine[1])  # so that changed places would be seen


def test_a_result_without_rows_is_reshaped() -> None:
    graph = made(lambda g, x: g.op("EXPAND_DIMS", g.op("SQUEEZE", x), g.ints(0)), 1, 1, 7)
    wide = batched(graph, 3, builtin_ops())
    assert isinstance(wide, Graph)
    assert names(wide) == ["RESHAPE", "RESHAPE"]
    assert [n.outputs[0].shape for n in wide.nodes] == [(21,), (3, 7)]


BAD: dict[str, tuple[Make, tuple[int, ...], str]] = {
    "no_batch": (lambda g, x: g.op("ABS", x), (2, 3), "input tensor 0 .* shape \\[2, 3\\]"),
    "scalar": (lambda g, x: g.op("ABS", x), (), "leading dimension of 1"),
    "output": (
        lambda g, x: g.op("RESHAPE", x, g.ints(3, 2)), (1, 6), ("output tensor 2 .* shape \\[3, "
                                                               "2\\]"),
    ),
    "constant": (
        lambda g, x: [g.op("ABS", x), g.op("ABS", g.random(1, 3))], (1, 3), "does not depend",
    ),
    "softmax": (
        lambda g, x: g.op("RESHAPE", g.op("SOFTMAX", g.op("RESHAPE", x, g.ints(6)), beta=1.0),
                          g.ints(1, 6)),
        (1, 6), "#1 SOFTMAX: operand 0, \\[6\\], is one row",
    ),
    "joined": (lambda g, x: g.op("CONCATENATION", x, x, axis=0), (1, 3), ("output .* shape \\[2, "
                                                                         "3\\]")),
    "image": (
        lambda g, x: g.op("SPACE_TO_BATCH_ND", x, g.ints(2, 2), g.ints([0, 0], [0, 0])),
        (1, 4, 4, 2), "output .* shape \\[4, 2, 2, 2\\]",
    ),
    "activated": (
        lambda g, x: g.op("FULLY_CONNECTED", x, x, None, fused_activation_function=1), (1, 3),
        "#0 FULLY_CONNECTED: its weights differ from item to item, and it has a bias",
    ),
    "computed": (
        lambda g, x: g.op("GATHER_ND", x, g.op("ABS", g.ints([0], [0]))), (1, 3),
        "#1 GATHER_ND: operand 1 is the same for all items, and not a constant",
    ),
    "silent": (
        lambda g, x: g.op("SCATTER_ND", g.ints([0, 1]), x, g.ints(1, 3)), (1,),
        "#0 SCATTER_ND: SCATTER_ND does not say",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_no_with_a_reason(name: str) -> None:
    make, shape, reason = BAD[name]
    graph = made(make, *shape)
    found = batched(graph, 3, builtin_ops())
    assert isinstance(found, Unsupported)
    assert re.search(reason, found.reason), found.reason


def test_a_wrong_answer_is_a_no() -> None:
    """What a plugin's op might say: nothing, something else, or a batch that has other shapes."""
    graph = made(lambda g, x: g.op("ABS", x), 1, 3)
    answers = {
        "it raised ZeroDivisionError": lambda node, items: 1 / 0,
        "it cannot compute a batch": lambda node, items: "",
        "not \\[2, 3\\]": lambda node, items: Batched(
            ReshapeAttrs((3, 2)), op="RESHAPE", operands=(0,)
        ),
    }
    for reason, answer in answers.items():
        ops = {**builtin_ops(), "ABS": attrs.evolve(builtin_ops()["ABS"], batch=answer)}
        found = batched(graph, 2, ops)
        assert isinstance(found, Unsupported)
        assert re.search(reason, found.reason), found.reason


def test_state_is_refused() -> None:
    graph = made(lambda g, x: g.op("ABS", x), 1, 3)
    state = graph.add_value((1, 3), DType.F32, name="memory")
    state.is_variable = True
    found = batched(graph, 2, builtin_ops())
    assert isinstance(found, Unsupported)
    assert "'memory') is state" in found.reason


def test_scales_by_row_are_refused() -> None:
    graph = made(lambda g, x: g.op("ABS", x), 1, 3)
    graph.outputs[0].quant = Quantization((0.5, 0.25), (0, 0), 0)
    found = batched(graph, 2, builtin_ops())
    assert isinstance(found, Unsupported)
    assert "a scale for each row" in found.reason


def test_what_is_not_understood_is_refused() -> None:
    graph = made(lambda g, x: g.op("ABS", x), 1, 3)
    graph.nodes[0].attrs = UnknownOp("nobody knows it")
    found = batched(graph, 2, builtin_ops())
    assert isinstance(found, Unsupported)
    assert found.reason == "operator #0 ABS: nobody knows it"


def test_too_large_a_batch_is_refused() -> None:
    found = batched(made(lambda g, x: g.op("ABS", x), 1, 1 << 20), 1 << 12, builtin_ops())
    assert isinstance(found, Unsupported)
    assert "bytes" in found.reason
