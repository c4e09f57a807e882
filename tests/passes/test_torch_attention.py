"""Attention as litert-torch writes it: how many kernels it is, as LiteRT computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec as OperandSpec
from tflgpu.ops.attention import Attention, PackedRows
from tflgpu.ops.base import Operand
from tflgpu.ops.registry import builtin_ops

from tests.compiler.test_found_attention import Building
from tests.passes.torch_layers import check, dense, drawn, ops, ran
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
pytestmark = pytest.mark.usefixtures("passes_alone")


N, T, S, H, D = 2, 5, 7, 8, 4


def attention(
    *, items: int = 1, mask: Sequence[int] | None = None, tokens_first: bool = False,
    factor: Any = 0.6, rows: Sequence[int] = (T,), behind: Sequence[int] = (),
) -> bytes:  # fmt: skip
    """As torch has it: the root of the scale on either side, and one axis for items and heads
    around each product. A mask is added behind a RESHAPE to ``behind``, if that is a shape."""
    b = Building()

    def operand(tokens: int, width: int) -> int:
        if not tokens_first:
            return b.given(items, N, tokens, width)
        return b.transposed(b.given(items, tokens, N, width), 0, 2, 1, 3)

    q, k, v = operand(T, H), operand(S, H), operand(S, D)
    q = b.with_("MUL", q, b.const(factor))
    k = b.transposed(b.with_("MUL", k, b.const(factor)), 0, 1, 3, 2)
    q, k = b.reshaped(q, items * N, *rows, H), b.reshaped(k, items * N, *rows[:-1], H, S)
    scores = b.product(q, k)
    if behind:
        scores = b.reshaped(scores, *behind)
    if mask is not None:
        scores = b.with_("ADD", scores, b.given(*mask))
    shares = b.softmax(b.reshaped(scores, items, N, T, S))
    y = b.product(b.reshaped(shares, items * N, T, S), b.reshaped(v, items * N, S, D))
    y = b.transposed(b.reshaped(y, items, N, T, D), 0, 2, 1, 3)
    return b.model(b.reshaped(y, items, T, N * D))


@pytest.mark.parametrize(
    ("how", "kernels"),
    [
        ({}, 1), ({"items": 3}, 1), ({"tokens_first": True, "items": 2}, 1), ({"factor": [2.0]}, 1),
        ({"mask": (1, N, T, S)}, 1),  # T5's, which gives the scores an axis more
        ({"mask": (3, 1, T, S), "items": 3, "behind": (3, N, T, S)}, 1),
        ({"mask": (1, S), "items": 3}, 1),
        ({"mask": (T, S), "behind": (1, 1, N, T, S)}, 1),
        ({"mask": (2, 1, N, T, S), "items": 2, "behind": (2, 1, N, T, S)}, 1),
        ({"mask": (2, 1, 1, S), "items": 2, "behind": (2, N, T, S)}, 1),
    ],
)  # fmt: skip
def test_attention(how: Any, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = attention(**how)
    assert "ATTENTION" in ops(content)
    check(content, kernels, "find_attention", monkeypatch)


@pytest.mark.parametrize(
    "factor", [[[[1.0]], [[2.0]]], np.linspace(0.5, 1, H), np.inf], ids=["heads", "numbers", "inf"]
)
def test_factors_that_are_no_scale_stay(factor: Any) -> None:
    found = ops(attention(factor=factor))
    assert (found.count("ATTENTION"), found.count("MUL")) == (1, 2)
    assert "MUL" not in ops(attention())


def test_a_mask_that_repeats_within_an_axis_stays() -> None:
    """Two items and two heads are one axis of four; a mask for each head has no form for it."""
    b = Building()
    q, k, v = b.given(4, T, H), b.given(4, S, H), b.given(4, S, D)
    scores = b.reshaped(b.product(q, k, adj_y=True), 2, 2, T, S)
    scores = b.reshaped(b.with_("ADD", scores, b.given(1, 2, T, S)), 4, T, S)
    content = b.model(b.product(b.softmax(scores), v))
    assert "ATTENTION" in ops(content)  # of two axes that the mask has
    b = Building()
    q, k, v = b.given(1, 4, T, H), b.given(1, 4, S, H), b.given(1, 4, S, D)
    scores = b.reshaped(b.product(q, k, adj_y=True), 2, 2, T, S)
    scores = b.reshaped(b.with_("ADD", scores, b.given(1, 2, T, S)), 1, 4, T, S)
    assert "ATTENTION" not in ops(b.model(b.product(b.softmax(scores), v)))


def multi_query(
    *, bias: bool = False, constant: bool = False, mask: Sequence[int] | None = None,
    activation: int = 0,
) -> bytes:  # fmt: skip
    """Heads that share keys and values: the matrices of all queries by those of one head."""
    b = Building()
    rng = np.random.default_rng(2)
    q = b.with_("MUL", b.given(1, T, N, H), b.const(0.5))
    k = b.const(rng.normal(size=(S, H))) if constant else b.reshaped(b.given(1, S, H), S, H)
    v = b.transposed(b.reshaped(b.given(1, S, D), S, D), 1, 0)
    more = [b.const(np.linspace(0, 1, S))] if bias else []
    q = b.reshaped(q, T * N, H)
    scores = b.op(
        "FULLY_CONNECTED", [q, k, *more], (T * N, S), fused_activation_function=activation
    )
    scores = b.reshaped(scores, 1, T, N, S)
    if mask is not None:
        scores = b.with_("ADD", scores, b.given(*mask))
    shares = b.reshaped(b.softmax(scores), T * N, S)
    return b.model(b.op("FULLY_CONNECTED", [shares, v], (T * N, D)))


@pytest.mark.parametrize("mask", [None, (1, T, 1, S), (S,)])
def test_multi_query_attention(mask: Sequence[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    content = multi_query(mask=mask)
    assert ("ATTENTION" in ops(content)) == (mask is None or len(mask) == 1)
    if "ATTENTION" in ops(content):
        check(content, 1, "find_attention", monkeypatch)


@pytest.mark.parametrize("how", [{"bias": True}, {"constant": True}, {"activation": 1}])
def test_products_with_weights_or_more_stay(how: Any) -> None:
    assert "ATTENTION" not in ops(multi_query(**how))


def packed(
    items: int = 1, cut: str = "heads", heads: int = N, depth: int = H, also: bool = False
) -> bytes:
    """Queries, keys and values of one layer; ``cut``: the axis that tells them, before heads, or
    within each head's numbers."""
    b, apart = Building(), []
    x = dense(b, b.given(items, T, 8), 3 * heads * depth)
    shape = (items, T, 3, heads, depth) if cut == "heads" else (items, T, heads, 3, depth)
    x = b.transposed(
        b.reshaped(x, *shape), *((2, 0, 3, 1, 4) if cut == "heads" else (3, 0, 2, 1, 4))
    )
    for at in range(3):
        start, size = b.const((at, 0, 0, 0, 0), DType.I32), (1, items, heads, T, depth)
        one = b.op("SLICE", [x, start, b.const(size, DType.I32)], size)
        apart.append(b.reshaped(one, items, heads, T, depth))
    q, k, v = apart
    scores = b.with_("MUL", b.product(q, k, adj_y=True), b.const(0.25))
    y = b.transposed(b.product(b.softmax(scores), v), 0, 2, 1, 3)
    return b.model(y, *([b.op("NEG", [k], b.shape(k))] if also else []))


@pytest.mark.parametrize(
    "how", [{}, {"items": 3}, {"cut": "numbers"}, {"heads": 1}, {"items": 2, "heads": 3}]
)
def test_packed_queries_keys_and_values_are_read_in_place(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = packed(**how)
    assert not {"SLICE", "TRANSPOSE"} & set(ops(content)[:-1])
    check(content, 2, "read_rows", monkeypatch, 1e-5)


def test_packed_attention_of_several_items() -> None:
    content = packed()
    given = np.random.default_rng(1).normal(size=(3, T, 8)).astype(np.float32)
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 2
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_allclose(ours, outputs(theirs)[0][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        (PackedRows((1, 2, 5, 8), 21, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), -1, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), 9, (0, -5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 4), 0, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), 20, (0, 5, 1)), {"tokens_last": True}, "last axis"),
    ],
)
def test_rows_that_a_tensor_does_not_have(rows: PackedRows, more: Any, said: str) -> None:
    attributes = Attention(1.0, heads_first=True, rows=(None, None, rows), **more)
    operands = [Operand(OperandSpec((1, 2, 5, 8), DType.F32)) for _ in range(2)]
    values = Operand(OperandSpec((3, 10, 8), DType.F32))
    with pytest.raises(tflgpu.TflgpuError, match=said):
        builtin_ops()["ATTENTION"].infer(attributes, [*operands, values])


def rows_apart(order: Sequence[int], start: Sequence[int], width: int) -> bytes:
    """Queries that are no whole rows of what they are taken from, or not in order."""
    b = Building()
    x = b.transposed(b.op("ABS", [b.given(1, N, T, 2 * H)], (1, N, T, 2 * H)), *order)
    size = (1, N, T, width)
    q = b.op("SLICE", [x, b.const(start, DType.I32), b.const(size, DType.I32)], size)
    k, v = b.given(1, N, S, width), b.given(1, N, S, D)
    return b.model(b.product(b.softmax(b.product(q, k, adj_y=True)), v))


@pytest.mark.parametrize(
    "content",
    [packed(also=True), packed(depth=6), rows_apart((0, 1, 2, 3), (0, 0, 0, 4), H)],
    ids=["read by others", "odd rows", "parts of rows"],
)
def test_rows_that_are_not_in_place(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, kernels = ran(content, given)
    assert "ATTENTION" in ops(content)
    assert kernels > 2
    for ours, expected in zip(found, outputs(theirs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)
