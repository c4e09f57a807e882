"""Operations that keep NaN, on a machine whose own lose it: it is asked of nothing but the bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tflgpu.language import evaluate
from tflgpu.language.builder import Builder
from tflgpu.language.guards import GUARDS, guard
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Name
from tflgpu.language.types import Scalar, Type

Array = np.ndarray[Any, Any]
_VALUES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.5, 6e4, -3.0)


def _either(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, fn(a, b))


WANTED: dict[str, Callable[..., Any]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "min": _either(np.fmin),
    "max": _either(np.fmax),
    "at_most": lambda x, limit: np.where(np.isnan(x), x, np.fmin(x, limit)),
    "at_least": lambda x, limit: np.where(np.isnan(x), x, np.fmax(x, limit)),
    "max_min": lambda x, a, b: np.where(np.isnan(x), x, np.fmin(np.fmax(x, a), b)),
    "min_max": lambda x, a, b: np.where(np.isnan(x), x, np.fmax(np.fmin(x, a), b)),
    "sign": np.sign,
    "zero_of_finite": lambda x: np.where(np.isfinite(x), 0, np.nan),
    "zero_of_nonzero": lambda x: np.where((x == 0) | np.isnan(x), np.nan, 0),
    "one_of_finite_nonzero": lambda x: np.where(np.isfinite(x) & (x != 0), 1, np.nan),
}
_LIMITED = {"at_most": (2.5,), "at_least": (0.0,), "max_min": (0.0, 2.5), "min_max": (2.5, 0.0)}


def test_each_is_here() -> None:
    assert set(WANTED) == set(GUARDS)


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extremes pass over a NaN, comparisons with one hold, and its sign is 0."""
    module = import_module("tflgpu.language.expressions")
    wrong: dict[str, Callable[..., Any]] = {
        "min": np.fmin, "max": np.fmax, "sign": lambda x: np.nan_to_num(np.sign(x)),
        "lt": lambda a, b: ~(a >= b), "le": lambda a, b: ~(a > b),
        "gt": lambda a, b: ~(a <= b), "ge": lambda a, b: ~(a < b),
    }  # fmt: skip

    def binary(op: str, a: Array, b: Array) -> Array:
        if op in wrong and a.dtype.kind == "f":
            return np.asarray(wrong[op](a, b))
        return evaluate.binary(op, a, b)

    def call(fn: str, args: Any) -> Array:
        if fn in wrong:
            return np.asarray(wrong[fn](*args)).astype(args[0].dtype)
        return evaluate.call(fn, args)

    monkeypatch.setattr(module, "binary", binary)
    monkeypatch.setattr(module, "call", call)


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.F16], ids=lambda s: s.value)
@pytest.mark.parametrize("name", GUARDS)
def test_nan_is_kept(name: str, scalar: Scalar) -> None:
    pairs = np.array(np.meshgrid(_VALUES, _VALUES)).reshape(2, -1).astype(scalar.numpy)
    found = guard(name, Type(scalar, 2))
    operands = [*pairs[: len(found.parameters)]]
    if name in _LIMITED:
        operands = [pairs[0], *(np.full_like(pairs[0], limit) for limit in _LIMITED[name])]
    k = Builder(name, (1, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", scalar, 2, "read") for p in found.parameters]
    gives_truth = found.result.scalar is Scalar.BOOL
    dst = k.buffer("dst", Scalar.I32 if gives_truth else scalar, 2, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        k.let(k.load(source, k.global_id(0)), parameter.ident)
    for let in found.body:
        k.emit(let)
    value = Name(found.result, found.body[-1].ident)
    k.store(dst, k.global_id(0), k.cast(value, Scalar.I32) if gives_truth else value)
    got = np.zeros(pairs.shape[1], dst.scalar.numpy)
    with np.errstate(all="ignore"):
        interpret(k.build(), (len(got) // 2, 1, 1), [*operands, got])
        want = np.asarray(WANTED[name](*operands)).astype(got.dtype)
    np.testing.assert_array_equal(got, want)
