"""NaN and angles in WGSL under what drivers make of it: a compiler that takes all floats for
numbers (NVIDIA's does), functions that are no better than WGSL asks for, and names that are
helpers' own."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.special_table import (
    Special,
    build_special,
    special_arrays,
    special_cases,
    wrong_results,
)
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar
from tflgpu_wgpu.dialect import WgslDialect

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
#: A comparison of two of the names that operands have in `build_special` and in helpers.
_COMPARISON = re.compile(
    r"(?<![\w.])([abxy](?:\.[xyzw])?) (<=|>=|<|>) ([abxy](?:\.[xyzw])?)(?![\w.])"
)
#: What depends on comparisons of two operands.
_PATTERN = re.compile(r"(select|select the other|assign|not)? ?(by )?(lt|le|gt|ge)")


def _chosen() -> list[Special]:
    return [c for c in special_cases(Scalar.F32, halves=False) if _PATTERN.fullmatch(c.name)]


@pytest.mark.parametrize("width", [1, 3, 4])
def test_a_compiler_that_knows_no_nan_changes_nothing(
    runner: Any, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To it ``a < b`` and ``!(a >= b)`` are the same."""
    cases = _chosen()
    assert len(cases) == 20
    kernel, groups = build_special(cases, Scalar.F32, width)
    printed, count = WgslDialect.source, 0

    def source(self: WgslDialect, *arguments: Any, **options: Any) -> str:
        nonlocal count
        text, count = _COMPARISON.subn(
            lambda m: f"(!({m[1]} {_OPPOSITE[m[2]]} {m[3]}))",
            printed(self, *arguments, **options),
        )
        return text

    monkeypatch.setattr(WgslDialect, "source", source)
    arrays = runner.run(kernel, groups, special_arrays(cases, Scalar.F32))
    assert count >= 4
    assert not wrong_results(cases, arrays)


@pytest.mark.parametrize("fn", ["sin", "cos", "atan2"])
@pytest.mark.parametrize("width", [1, 4])
def test_angles_are_written_out(runner: Any, fn: str, width: int) -> None:
    k = Builder("angles", (64, 1, 1))
    one, two = (k.buffer(n, Scalar.F32, width, "read") for n in ("one", "two"))
    out = k.buffer("out", Scalar.F32, width, "write")
    i = k.let(k.global_id(0))
    args = [k.let(k.load(b, i)) for b in (one, two)]
    k.store(out, i, k.call(fn, *args[: 2 if fn == "atan2" else 1]))
    kernel = k.build()
    assert not re.search(r"(?<!fn )\b(sin|cos|atan2)\(", WgslDialect().source(kernel))
    rng = np.random.default_rng(7)
    size = 8192
    x = (rng.choice([-1, 1], size) * 2.0 ** rng.uniform(-30, 15, size)).astype(np.float32)
    y = (rng.choice([-1, 1], size) * 2.0 ** rng.uniform(-30, 15, size)).astype(np.float32)
    x[:8] = 1e4, -1e4, 3e4, -3e4, 2.0**15, math.pi / 2, math.pi, 1e-30
    groups = (size // 64 // width, 1, 1)
    found = runner.run(kernel, groups, [x, y, np.zeros_like(x)])[2]
    exact: Callable[..., Any] = {"sin": np.sin, "cos": np.cos, "atan2": np.arctan2}[fn]
    want = exact(*(v.astype(np.float64) for v in (x, y)[: 2 if fn == "atan2" else 1]))
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1.5e-7 if fn != "atan2" else 0)
    if fn != "atan2":
        x = (10.0 ** rng.uniform(4, 38.5, size)).astype(np.float32)
        found = runner.run(kernel, groups, [x, y, np.zeros_like(x)])[2]
        assert (np.abs(found) <= 1).all()
        x[::2], x[1::2] = math.nan, math.inf
        assert np.isnan(runner.run(kernel, groups, [x, -x, np.zeros_like(x)])[2]).all()


def test_a_name_of_a_helper_is_the_helper_s(runner: Any) -> None:
    k = Builder("names", (1, 1, 1))
    src, out = (k.buffer(n, Scalar.F32, 1, a) for n, a in (("src", "read"), ("out", "write")))
    sine = k.let(k.call("sin", k.load(src, 0)), "sin_1")
    small = k.let(k.cast(sine < 0.5, Scalar.F32), "lt_f32_1")
    k.store(out, 0, k.call("sin", sine) + k.cast(small < sine, Scalar.F32))
    arrays = [np.float32([0.25]), np.zeros(1, np.float32)]
    found = runner.run(k.build(), (1, 1, 1), arrays)[1]
    np.testing.assert_allclose(found, np.sin(np.sin([0.25])), rtol=1e-5)
