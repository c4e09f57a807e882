"""Functions that the language defines itself, against numbers computed in f64.

The interpreter computes what a definition says, operation by operation, in f32. What printers make
of definitions is held by the tables that every device runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.language.builder import Builder
from tflgpu.language.definitions import DEFINED, definition
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Name
from tflgpu.language.types import F32, Scalar

Array = np.ndarray[Any, Any]
_SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -3.0, 3e38, 1e-30, 0.5)
_EXACT: dict[str, Callable[..., Any]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "tanh": np.tanh, "sin": np.sin,
    "cos": np.cos, "atan2": np.arctan2, "pow": np.power,
}  # fmt: skip


def run(fn: str, width: int, *operands: Array) -> Array:
    """A definition's lets between loads and a store."""
    found = definition(fn, width)
    k = Builder(fn, (1, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", Scalar.F32, width, "read") for p in found.parameters]
    dst = k.buffer("dst", Scalar.F32, width, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        value = k.let(k.load(source, k.global_id(0)), parameter.ident)
        assert isinstance(value, Name)
        assert value.ident == parameter.ident
    for let in found.body:
        k.emit(let)
    last = found.body[-1]
    k.store(dst, k.global_id(0), Name(F32.with_width(width), last.ident))
    result = np.zeros_like(operands[0])
    with np.errstate(all="ignore"):
        interpret(k.build(), (len(result) // width, 1, 1), [*operands, result])
    return result


def ulps(found: Array, want: Array) -> float:
    """The largest distance, in units of the last place of the f32 that is meant."""
    rounded = want.astype(np.float32)
    assert np.array_equal(np.isfinite(found), np.isfinite(rounded))
    good = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[good])).astype(np.float64)
    return float((np.abs(found[good].astype(np.float64) - want[good]) / unit).max())


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize(
    ("fn", "least", "most", "allowed"),
    [("erf", -5, 5, 4), ("tanh", -12, 12, 4), ("sin", -3, 3, 4), ("cos", -1.5, 1.5, 4)],
)
def test_functions_of_one_number(
    fn: str, least: float, most: float, allowed: float, width: int
) -> None:
    x = np.linspace(least, most, 4000).astype(np.float32)
    assert ulps(run(fn, width, x), _EXACT[fn](x.astype(np.float64))) <= allowed


@pytest.mark.parametrize("fn", ["sin", "cos"])
def test_waves_far_from_zero(fn: str) -> None:
    x = np.random.default_rng(1).uniform(-(2.0**15), 2.0**15, 4000).astype(np.float32)
    assert np.abs(run(fn, 1, x) - _EXACT[fn](x.astype(np.float64))).max() < 3e-7
    beyond = np.float32([1e6, -3e7, 1e20, 3e38, -2e38, 1e10])
    assert (np.abs(run(fn, 1, beyond)) <= 1).all()


def test_angles() -> None:
    x, y = np.random.default_rng(2).normal(0, 5, (2, 4000)).astype(np.float32)
    want = np.arctan2(y.astype(np.float64), x.astype(np.float64))
    assert ulps(run("atan2", 2, y, x), want) <= 6


def test_powers() -> None:
    rng = np.random.default_rng(3)
    x = np.abs(rng.normal(0, 3, 4000)).astype(np.float32) + np.float32(0.01)
    y = rng.normal(0, 3, 4000).astype(np.float32)
    assert ulps(run("pow", 1, x, y), np.power(x.astype(np.float64), y.astype(np.float64))) <= 4


@pytest.mark.parametrize("fn", DEFINED)
def test_special_numbers(fn: str) -> None:
    """NaN, infinities, zeros and their signs, in all pairs; the last bits are the others'
    matter."""
    pairs = np.array(np.meshgrid(_SPECIAL, _SPECIAL)).reshape(2, -1).astype(np.float32)
    operands = [p.copy() for p in pairs[: len(definition(fn, 1).parameters)]]
    if fn in ("sin", "cos"):  # which are only sure to be in [-1, 1] so far out
        operands = [np.where(np.abs(x) == np.float32(3e38), np.float32(7), x) for x in operands]
    if fn == "pow":  # a zero's sign, and that of what is infinite because of it, are open
        operands = [np.where(x == 0, np.float32(0), x) for x in operands]
    with np.errstate(all="ignore"):
        want = _EXACT[fn](*(x.astype(np.float64) for x in operands)).astype(np.float32)
    found = run(fn, 1, *operands)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-7)
    signed = (want != 0) & ~np.isnan(want)
    assert np.array_equal(np.signbit(found[signed]), np.signbit(want[signed]))
