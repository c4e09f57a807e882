"""Composites of transformers besides attention and norms run as one op where that gives what LiteRT
gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import Array, DType

from tests.tflite.composite_models import Body, as_operators, became, by_litert, drawn, here, model

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


I32 = DType.I32
Made = tuple[Body, list[int]]


def rope(
    shape: tuple[int, ...], axis: int, *, base: float = 10000.0, interleaved: bool = False
) -> Made:
    """As litert-torch's, of positions [T]."""
    body = Body()
    x, at = body.given(shape), body.given((shape[axis],), I32)
    tokens, half = shape[axis], shape[-1] // 2
    rates = 1 / base ** (np.arange(half) * 2 / shape[-1])
    column = body.reshape(body.op("CAST", [at], (tokens,)), tokens, 1)
    angles = body.same("MUL", column, body.const(rates[None]))
    over = [1] * len(shape)
    over[axis], over[-1] = tokens, half
    cos, sin = (body.reshape(body.same(f, angles), *over) for f in ("COS", "SIN"))
    part = (*shape[:-1], half)
    start = (0,) * (len(shape) - 1)
    a, b = (body.slice(x, (*start, first), part) for first in (0, half))
    if interleaved:
        a, b = b, a
    left = body.same("SUB", body.same("MUL", a, cos), body.same("MUL", b, sin))
    right = body.same("ADD", body.same("MUL", b, cos), body.same("MUL", a, sin))
    return body, [body.op("CONCATENATION", [left, right], shape, axis=len(shape) - 1)]


def gelu(shape: tuple[int, ...], *, exact: bool = False) -> Made:
    body = Body()
    x = body.given(shape)
    if exact:  # LiteRT has no other operator for it
        return body, [body.same("MUL", body.same("GELU", x), body.const(1.0))]
    cube = body.same("MUL", body.same("MUL", body.same("MUL", x, x), x), body.const(0.044715))
    inner = body.same("MUL", body.same("ADD", x, cube), body.const(math.sqrt(2 / math.pi)))
    both = body.same("ADD", body.same("TANH", inner), body.const(1.0))
    return body, [body.same("MUL", body.same("MUL", x, body.const(0.5)), both)]


def softmax(shape: tuple[int, ...]) -> Made:
    body = Body()
    x = body.given(shape)
    powers = body.same("EXP", x)
    axis = len(shape) - 1
    total = body.op("SUM", [powers, body.ints(axis)], (*shape[:-1], 1), keep_dims=True)
    return body, [body.same("DIV", powers, total)]


def swiglu(shape: tuple[int, ...], *, two: bool = False) -> Made:
    body = Body()
    gate = body.given(shape)
    if two:
        up = body.given(shape)
    else:
        x, half = gate, shape[-1] // 2
        part, start = (*shape[:-1], half), (0,) * (len(shape) - 1)
        gate, up = (body.slice(x, (*start, first), part) for first in (0, half))
    silu = body.same("MUL", gate, body.same("LOGISTIC", gate))
    return body, [body.same("MUL", silu, up)]


def nothing_of(body: Body, numbers: int) -> int:
    """0, of whole numbers, as converters keep an operand that is for some GPUs only."""
    real = body.op("CAST", [numbers], body.shape(numbers))
    axes = body.ints(*range(len(body.shape(numbers))))
    return body.same("MUL", body.op("SUM", [real, axes], ()), body.const(0.0))


def bounded(b: int, m: int, n: int, k: int) -> Made:
    body = Body()
    x, y, numbers = (
        body.given((1, b, m, k)),
        body.given((1, b, n, k)),
        body.given((1, 1, 1, 7), I32),
    )
    made = body.matmul(body.same("ADD", x, nothing_of(body, numbers)), y, adj_y=True)
    return body, [made]


def cache(
    tokens: int, size: int, width: int, *, value_axis: int = 3, ring: bool = False,
    reads: bool = True,
) -> Made:  # fmt: skip
    """As litert-torch's; of a ring by products with the rows of an identity. Since 0.10 it reads
    nothing of the numbers."""
    body = Body()
    new = [body.given((1, 2, tokens, width)) for _ in range(2)]
    numbers = body.given((1, 1, 1, 7), I32)
    shapes = [(1, 2, size, width), (1, 2, width, size) if value_axis == 3 else (1, 2, size, width)]
    caches = [body.given(shape) for shape in shapes]
    starts = [body.given((4,), I32) for _ in range(2)]
    zero = nothing_of(body, numbers) if reads else body.const(0.0)
    results = []
    for x, old, start, axis in zip(new, caches, starts, (2, value_axis), strict=True):
        update = body.same("ADD", x, zero)
        if axis == 3:
            update = body.transpose(update, 0, 1, 3, 2)
        if not ring:
            shape = body.shape(old)
            results.append(body.op("DYNAMIC_UPDATE_SLICE", [old, update, start], shape))
            continue
        flat = body.reshape(numbers, 7)
        offset, count = (
            body.op("SLICE", [flat, body.ints(i), body.ints(1)], (1,), I32) for i in (0, 3)
        )
        tokens_at = body.ints(*range(tokens))
        places = body.same("FLOOR_MOD", body.same("ADD", offset, tokens_at), body.ints(size))
        hot = body.op(
            "ONE_HOT", [places, body.const(size, I32), body.const(1.0), body.const(0.0)],
            (tokens, size), axis=-1,
        )  # fmt: skip
        valid = body.op("LESS", [tokens_at, count], (tokens,), DType.BOOL)
        valid = body.reshape(body.op("CAST", [valid], (tokens,)), tokens, 1)
        hot = body.same("MUL", hot, valid)
        used = body.op("SUM", [hot, body.ints(0)], (size,))
        used = body.op("GREATER", [used, body.const(0.0)], (size,), DType.BOOL)
        if axis == 2:
            routed = body.matmul(
                body.reshape(body.transpose(hot, 1, 0), 1, 1, size, tokens), update
            )
            used = body.reshape(used, 1, 1, size, 1)
        else:
            routed = body.matmul(update, body.reshape(hot, 1, 1, tokens, size))
            used = body.reshape(used, 1, 1, 1, size)
        shape = body.shape(old)
        body.tensors[routed] = type(body.tensors[routed])(f"r{routed}", shape, DType.F32)
        results.append(body.op("SELECT_V2", [used, routed, old], shape))
    return body, results


ROPE = {"min_timescale": 1.0, "max_timescale": 10000.0, "proportion": 1.0}
CACHE = {"kv_cache_batch_size": 2, "cache_size": 7, "head_size": 5}
RING = {**CACHE, "is_ring_buffer": True}
BOUND = {"is_global": True, "is_src": False}
#: composite, attributes, decomposition, op, kernels
CASES: dict[str, Any] = {
    "rope": ("odml.rope", ROPE, rope((2, 5, 3, 10), 1), "ROTARY_EMBEDDING", 1),
    "rope_heads_first": ("odml.rope", {**ROPE, "max_timescale": 500.0}, rope((1, 3, 5, 16), 2,
    base=500.0),
                         "ROTARY_EMBEDDING", 1),
    "gelu": ("odml.gelu", {"approximate": "tanh"}, gelu((2, 3, 7)), "GELU", 1),
    "gelu_unsaid": ("odml.gelu", {}, gelu((5, 7)), "GELU", 1),
    "gelu_exact": ("odml.gelu", {"approximate": "none"}, gelu((5, 7), exact=True), "GELU", 1),
    "softmax": ("odml.softmax", {"axis": -1}, softmax((2, 3, 7)), "SOFTMAX", 1),
    "swiglu": ("odml.swiglu", {"gate_size": 7}, swiglu((2, 3, 14)), "GATED_SILU", 1),
    "swiglu_two": ("odml.swiglu", {}, swiglu((2, 8), two=True), "GATED_SILU", 1),
    "bounded": ("odml.runtime_bmm", BOUND, bounded(3, 1, 13, 6), "BATCH_MATMUL", 1),
    "cache": ("odml.cache_update", CACHE, cache(3, 7, 5), "CACHE_UPDATE", 1),
    "cache_alike": ("odml.cache_update", CACHE, cache(1, 7, 8, value_axis=2), "CACHE_UPDATE", 1),
    "cache_unread": ("odml.cache_update", CACHE, cache(3, 7, 5, reads=False), "CACHE_UPDATE", 1),
    "ring": ("odml.cache_update", RING, cache(3, 7, 5, ring=True), "CACHE_UPDATE", 1),
}  # fmt: skip


def numbers(content: bytes, seed: int = 1) -> list[Array]:
    """Positions that count up; tokens that go to place 5 of a cache and on."""
    arrays = drawn(content, seed)
    for array in arrays:
        if array.dtype == np.int32 and array.shape == (4,):
            array[2:] = 5
        elif array.shape == (1, 1, 1, 7):
            array[..., :4] = 5, 8, 8, 2
        elif array.dtype == np.int32:
            array[...] = np.arange(array.size) + 30
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_one_op_gives_what_litert_gives(name: str) -> None:
    composite, attributes, made, op, kernels = CASES[name]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    if name.startswith("cache"):  # along the axis of the tokens only
        arrays[-2][3] = 0
        arrays[-1][3 if name == "cache_alike" else 2] = 0
    found, report = here(content, arrays)
    assert became(report) == [(op, "")]
    assert report.dispatches == kernels
    for ours, theirs in zip(found, by_litert(content, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("name", ["rope", "swiglu", "cache"])
def test_in_f16(name: str) -> None:
    composite, attributes, made, op, kernels = CASES[name]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    found, report = here(content, arrays, precision="f16")
    assert became(report) == [(op, "")]
    assert report.dispatches == kernels
    for ours, theirs in zip(found, by_litert(content, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("composite", "attributes", "made", "why"),
    [
        ("odml.rope", ROPE, rope((2, 5, 3, 10), 1, interleaved=True), ("computes something else: "
                                                                      "off by")),
        ("odml.rope", {**ROPE, "max_timescale": 500.0}, rope((2, 5, 3, 10), 1), ("computes "
                                                                                "something else")),
        ("odml.rope", {**ROPE, "kernel_type": 1}, rope((2, 5, 3, 10), 1), ("it turns by two "
                                                                          "positions")),
        ("odml.gelu", {"approximate": "none"}, gelu((5, 7)), "computes something else: off by"),
        ("odml.gelu", {"approximate": "fast"}, gelu((5, 7)), ("its approximation 'fast' is not "
                                                             "known")),
        ("odml.softmax", {"axis": 0}, softmax((5, 7)), "it is not over the last axis"),
        ("odml.swiglu", {"gate_size": 3}, swiglu((2, 14)), "its gates have 3 of 14 numbers"),
        ("odml.cache_update", RING, cache(3, 7, 5), "computes something else: off by"),
        ("odml.cache_update", {"k_cache_ts_idx": 2}, cache(3, 7, 5), ("names the axis of some "
                                                                     "tokens")),
        ("odml.runtime_bmm", {**BOUND, "scale": 2.0}, bounded(1, 2, 3, 4), ("its attribute "
                                                                           "'scale' is not")),
    ],
)  # fmt: skip
def test_what_is_not_known_runs_as_operators(
    composite: str, attributes: dict[str, Any], made: Made, why: str
) -> None:
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    found, report = here(content, arrays)
    ((op, reason),) = became(report)
    assert op == ""
    assert why in reason
    for ours, theirs in zip(found, by_litert(content, arrays), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_special_numbers_of_gates(value: float) -> None:
    composite, attributes, made, *_ = CASES["swiglu"]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    arrays[0][0, 0, 0], arrays[0][1, 2, 9] = value, value
    (found,), _ = here(content, arrays)
    (wanted,) = as_operators(content, arrays)  # LiteRT clamps (docs/nan.md)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-6)
    assert not np.isfinite(wanted).all() or value == 1e30


# Composites of attention run as one kernel where that gives what LiteRT gives.


pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


SDPA, TRANSPOSED = "odml.scaled_dot_product_attention", "odml.sdpa_transposed"


def scores(
    body: Body, q: int, k: int, scale: float, cap: float, mask: int | None, fill: float
) -> int:
    """Of heads first."""
    made = body.matmul(body.same("MUL", q, body.const(scale)), k, adj_y=True)
    if cap:
        made = body.same("TANH", body.same("MUL", made, body.const(1 / cap)))
        made = body.same("MUL", made, body.const(cap))
    if mask is None:
        return made
    if body.tensors[mask].dtype is DType.BOOL:
        shape = body.shape(made)
        return body.op("SELECT_V2", [mask, made, body.const(fill)], shape)
    return body.same("ADD", made, mask)


def attention(
    b: int = 1, t: int = 3, s: int = 7, n: int = 2, kv: int = 2, h: int = 5, *,
    mask: tuple[int, ...] | None = None, dtype: DType = DType.F32, scale: float | None = None,
    cap: float = 0.0, causal: bool = False, fill: float = -10000.0,
) -> tuple[Body, list[int]]:  # fmt: skip
    """As litert-torch's, of tokens first."""
    body = Body()
    q, k, v = body.given((b, t, n, h)), body.given((b, s, kv, h)), body.given((b, s, kv, h))
    given = None if mask is None else body.given(mask, dtype)
    if causal:
        late = np.triu(np.full((t, s), -np.inf, np.float32), 1)
        given = body.const(late[None, None])
    q, k, v = (body.transpose(x, 0, 2, 1, 3) for x in (q, k, v))
    if n != kv:
        heads = np.repeat(np.arange(kv), n // kv)
        k, v = (
            body.op("GATHER", [x, body.const(heads, DType.I32)], (b, n, s, h), axis=1)
            for x in (k, v)
        )
    factor = 1 / math.sqrt(h) if scale is None else scale
    made = scores(body, q, k, factor, cap, given, fill)
    made = body.matmul(body.same("SOFTMAX", made, beta=1.0), v)
    return body, [body.transpose(made, 0, 2, 1, 3)]


def transposed(
    b: int, t: int, s: int, n: int, h: int, *, dtype: DType = DType.F32, cap: float = 0.0,
    fill: float = -10000.0, params: bool = True, reads: bool = True,
) -> tuple[Body, list[int]]:  # fmt: skip
    """As litert-torch's of caches: heads first, the values' tokens last, a tensor of whole numbers
    of which nothing is made, or that nothing reads (since 0.10)."""
    body = Body()
    q, k, v = body.given((b, n, t, h)), body.given((b, n, s, h)), body.given((b, n, h, s))
    mask = body.given((b, 1, t, s), dtype)
    given = body.given((1, 1, 1, 7), DType.I32) if params else -1
    if params and reads:
        numbers = body.op("CAST", [given], (1, 1, 1, 7))
        axes = body.ints(0, 1, 2, 3)
        nothing = body.same("MUL", body.op("SUM", [numbers, axes], ()), body.const(0.0))
        q = body.same("ADD", q, nothing)
    made = scores(body, q, k, 1.0, cap, mask, fill)
    return body, [body.matmul(body.same("SOFTMAX", made, beta=1.0), v, adj_y=True)]


SCALE = {"scale": 0.3}
#: composite, attributes, decomposition
ATTENTION_CASES: dict[str, Any] = {
    "plain": (SDPA, {}, attention(2)),
    "mask": (SDPA, SCALE, attention(2, mask=(1, 1, 3, 7), scale=0.3)),
    "groups": (SDPA, SCALE, attention(2, 3, 9, 6, 2, 8, mask=(2, 1, 3, 9), scale=0.3)),
    "one_query": (SDPA, SCALE, attention(1, 1, 301, 4, 1, 12, mask=(301,), scale=0.3)),
    "causal": (SDPA, {}, attention(1, 5, 5, causal=True)),
    "cap": (SDPA, {"scale": 0.3, "logit_cap": 2.0}, attention(scale=0.3, cap=2.0)),
    "bool": (SDPA, SCALE, attention(1, mask=(1, 1, 3, 7), dtype=DType.BOOL, scale=0.3)),
    "cache_unread": (
        TRANSPOSED,
        {"k_ts_idx": 2, "v_ts_idx": 3, "from_cache_update": True, "is_causal": True},
        transposed(2, 3, 13, 3, 6, reads=False),
    ),
    "cache": (TRANSPOSED, {"k_ts_idx": 2, "v_ts_idx": 3}, transposed(2, 1, 13, 3, 6)),
    "cache_bool": (TRANSPOSED, {"softcap": 3.0},
                   transposed(1, 2, 9, 2, 4, dtype=DType.BOOL, cap=3.0, fill=-3.4028235e38)),
    "cache_minus": (TRANSPOSED, {},
                    transposed(1, 2, 9, 2, 4, dtype=DType.BOOL, fill=-math.inf, params=False)),
}  # fmt: skip


def numbers_attention(content: bytes) -> list[Array]:
    """With some of a boolean mask excluded, and all of the last query's keys."""
    arrays = drawn(content)
    rng = np.random.default_rng(2)
    for array in arrays:
        if array.dtype == np.bool_:
            array[...] = rng.random(array.shape) < 0.6
            array[..., 0] = True
            array[..., -1, :] = False
    return arrays


@pytest.mark.parametrize("name", ATTENTION_CASES)
def test_one_kernel_gives_what_litert_gives(name: str) -> None:
    composite, attributes, made = ATTENTION_CASES[name]
    content = model(composite, attributes, *made)
    arrays = numbers_attention(content)
    (found,), report = here(content, arrays)
    assert became(report) == [("ATTENTION", "")]
    assert report.dispatches == 1
    np.testing.assert_allclose(found, by_litert(content, arrays)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("precision", ["f16", "f32_f16"])
def test_other_precisions(precision: str) -> None:
    composite, attributes, made = ATTENTION_CASES["groups"]
    content = model(composite, attributes, *made)
    arrays = numbers_attention(content)
    (found,), report = here(content, arrays, precision=precision)
    assert report.dispatches == 1
    np.testing.assert_allclose(found, by_litert(content, arrays)[0], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("operand", "where", "what"),
    [
        (0, (0, 1, 0, 2), np.inf), (0, (0, 1, 0, 2), np.nan), (1, (0, 6, 1, 0), np.nan),
        (1, (0, 6, 1, 0), -np.inf), (2, (0, 6, 1, 0), np.inf), (2, (0, 0, 0, 0), np.nan),
        (3, (0, 0, 1, slice(None)), -np.inf), (3, (0, 0, 1, slice(0, 6)), -np.inf),
        (3, (0, 0, 1, slice(1, 7)), -3.4028235e38), (3, (0, 0, 1, slice(None)), -3.4028235e38),
        (3, (0, 0, 1, 3), np.inf), (3, (0, 0, 1, 3), np.nan),
    ],
)  # fmt: skip
def test_special_numbers(operand: int, where: Any, what: float) -> None:
    """Which are those of the operators: LiteRT's clamp some to the largest number (docs/nan.md)."""
    composite, attributes, made = ATTENTION_CASES["mask"]
    content = model(composite, attributes, *made)
    arrays = numbers_attention(content)
    arrays[operand][where] = what
    (found,), _ = here(content, arrays)
    (wanted,) = as_operators(content, arrays)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert np.isfinite(wanted).any()


def test_keys_in_several_blocks_of_which_the_first_are_masked() -> None:
    composite, attributes, made = ATTENTION_CASES["one_query"]
    content = model(composite, attributes, *made)
    arrays = numbers_attention(content)
    arrays[3][:290] = -np.inf
    (found,), _ = here(content, arrays)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, as_operators(content, arrays)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("attributes", "made", "why"),
    [
        ({}, attention(scale=0.3), "computes something else: off by"),
        ({"scale": 0.3, "logit_cap": 1.0}, attention(scale=0.3), "computes something else: off by"),
        (SCALE, attention(mask=(1, 1, 3, 7), dtype=DType.BOOL, scale=0.3, fill=-5.0),
         "computes something else"),
        ({"dropout": 0.1}, attention(), "its attribute 'dropout' is not understood"),
        (SCALE, attention(mask=(1, 1, 3, 1), scale=0.3), "a mask of shape [1, 1, 3, 1]"),
    ],
)  # fmt: skip
def test_attention_what_is_not_known_runs_as_operators(
    attributes: Any, made: Any, why: str
) -> None:
    content = model(SDPA, attributes, *made)
    arrays = numbers_attention(content)
    (found,), report = here(content, arrays)
    ((op, reason),) = became(report)
    assert op == ""
    assert why in reason
    np.testing.assert_allclose(found, by_litert(content, arrays)[0], rtol=2e-5, atol=2e-6)
