"""Composites of attention run as one kernel where that gives what LiteRT gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import Array, DType

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

from composite_models import Body, as_operators, became, by_litert, drawn, here, model

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
    fill: float = -10000.0, params: bool = True,
) -> tuple[Body, list[int]]:  # fmt: skip
    """As litert-torch's of caches: heads first, the values' tokens last, a tensor of whole numbers
    of which nothing is made."""
    body = Body()
    q, k, v = body.given((b, n, t, h)), body.given((b, n, s, h)), body.given((b, n, h, s))
    mask = body.given((b, 1, t, s), dtype)
    if params:
        numbers = body.op("CAST", [body.given((1, 1, 1, 7), DType.I32)], (1, 1, 1, 7))
        axes = body.ints(0, 1, 2, 3)
        nothing = body.same("MUL", body.op("SUM", [numbers, axes], ()), body.const(0.0))
        q = body.same("ADD", q, nothing)
    made = scores(body, q, k, 1.0, cap, mask, fill)
    return body, [body.matmul(body.same("SOFTMAX", made, beta=1.0), v, adj_y=True)]


SCALE = {"scale": 0.3}
#: composite, attributes, decomposition
CASES: dict[str, Any] = {
    "plain": (SDPA, {}, attention(2)),
    "mask": (SDPA, SCALE, attention(2, mask=(1, 1, 3, 7), scale=0.3)),
    "groups": (SDPA, SCALE, attention(2, 3, 9, 6, 2, 8, mask=(2, 1, 3, 9), scale=0.3)),
    "one_query": (SDPA, SCALE, attention(1, 1, 301, 4, 1, 12, mask=(301,), scale=0.3)),
    "causal": (SDPA, {}, attention(1, 5, 5, causal=True)),
    "cap": (SDPA, {"scale": 0.3, "logit_cap": 2.0}, attention(scale=0.3, cap=2.0)),
    "bool": (SDPA, SCALE, attention(1, mask=(1, 1, 3, 7), dtype=DType.BOOL, scale=0.3)),
    "cache": (TRANSPOSED, {"k_ts_idx": 2, "v_ts_idx": 3}, transposed(2, 1, 13, 3, 6)),
    "cache_bool": (TRANSPOSED, {"softcap": 3.0},
                   transposed(1, 2, 9, 2, 4, dtype=DType.BOOL, cap=3.0, fill=-3.4028235e38)),
    "cache_minus": (TRANSPOSED, {},
                    transposed(1, 2, 9, 2, 4, dtype=DType.BOOL, fill=-math.inf, params=False)),
}  # fmt: skip


def numbers(content: bytes) -> list[Array]:
    """With some of a boolean mask excluded, and all of the last query's keys."""
    arrays = drawn(content)
    rng = np.random.default_rng(2)
    for array in arrays:
        if array.dtype == np.bool_:
            array[...] = rng.random(array.shape) < 0.6
            array[..., 0] = True
            array[..., -1, :] = False
    return arrays


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_gives_what_litert_gives(name: str) -> None:
    composite, attributes, made = CASES[name]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    (found,), report = here(content, arrays)
    assert became(report) == [("ATTENTION", "")]
    assert report.dispatches == 1
    np.testing.assert_allclose(found, by_litert(content, arrays)[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("precision", ["f16", "f32_f16"])
def test_other_precisions(precision: str) -> None:
    composite, attributes, made = CASES["groups"]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
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
    composite, attributes, made = CASES["mask"]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
    arrays[operand][where] = what
    (found,), _ = here(content, arrays)
    (wanted,) = as_operators(content, arrays)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
    assert np.isfinite(wanted).any()


def test_keys_in_several_blocks_of_which_the_first_are_masked() -> None:
    composite, attributes, made = CASES["one_query"]
    content = model(composite, attributes, *made)
    arrays = numbers(content)
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
def test_what_is_not_known_runs_as_operators(attributes: Any, made: Any, why: str) -> None:
    content = model(SDPA, attributes, *made)
    arrays = numbers(content)
    (found,), report = here(content, arrays)
    ((op, reason),) = became(report)
    assert op == ""
    assert why in reason
    np.testing.assert_allclose(found, by_litert(content, arrays)[0], rtol=2e-5, atol=2e-6)
