"""FLOOR_DIV of floats on devices whose division is as exact as Vulkan and WGSL ask for: 2.5 units
in the last place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.kernels.binary import _floor_div, _floor_mod
from tflgpu.language import evaluate
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar

_ROWS = 6144


def _operands(kind: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    a = rng.uniform(-9, 9, _ROWS)
    b = rng.uniform(0.3, 2, _ROWS) * rng.choice([-1, 1], _ROWS)
    if kind == "huge quotients":
        a *= 10.0 ** rng.uniform(8, 37.0, _ROWS)
    elif kind == "one digit too many":  # whole numbers in between are halves of a unit there
        a = rng.uniform(2**24, 2**26, _ROWS) * rng.choice([-1, 1], _ROWS) * b
    elif kind == "whole quotients":
        b = b.astype(np.float16)
        a = rng.integers(-(2**12), 2**12, _ROWS) * b.astype(np.float64)
    return a.astype(np.float32), b.astype(np.float32)


def _sloppy(divide: Callable[..., Any]) -> Callable[..., Any]:
    rng = np.random.default_rng(6)

    def divided(op: str, a: Any, b: Any) -> Any:
        found = divide(op, a, b)
        if op != "div" or found.dtype.kind != "f":
            return found
        for _ in range(2):
            away = rng.choice(np.float32([-np.inf, 0, np.inf]), found.shape)
            nudged = np.nextafter(found, away)
            found = np.where((away == 0) | ~np.isfinite(found), found, nudged)
        return found

    return divided


@pytest.mark.parametrize(
    "kind", ["huge quotients", "one digit too many", "whole quotients", "usual"]
)
@pytest.mark.parametrize("exact", [True, False], ids=["an exact division", "a sloppy one"])
def test_floored(kind: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(evaluate, "_divide", _sloppy(evaluate._divide))
    a, b = _operands(kind)
    k = Builder("floored", (64, 1, 1))
    one, two = (k.buffer(n, Scalar.F32, 4, "read") for n in ("one", "two"))
    outs = [k.buffer(n, Scalar.F32, 4, "write") for n in ("quotient", "rest")]
    i = k.let(k.global_id(0))
    for out, rule in zip(outs, (_floor_div, _floor_mod), strict=True):
        k.store(out, i, rule(k, k.let(k.load(one, i)), k.let(k.load(two, i))))
    arrays = [a, b, np.zeros_like(a), np.zeros_like(a)]
    interpret(k.build(), (_ROWS // 256, 1, 1), arrays)
    np.testing.assert_array_equal(arrays[3], np.mod(a, b))
    want = np.floor(a.astype(np.float64) / b.astype(np.float64)).astype(np.float32)
    near = np.abs(want) < 2**24
    np.testing.assert_array_equal(arrays[2][near], want[near])
    far = arrays[2] != want
    # Of quotients that a float cannot hold, one in a million may lie too close to a half.
    assert far.sum() <= (0 if near.all() else 1), (a[far], b[far], arrays[2][far], want[far])
