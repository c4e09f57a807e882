"""Which operands a printer hides from a compiler that computes as if there were no NaN."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tflgpu.language.builder import Builder
from tflgpu.language.numbers import hidden_sides
from tflgpu.language.tree import Binary, Expr, Name
from tflgpu.language.types import F32, F32x4

NEITHER, LEFT, RIGHT = (False, False), (True, False), (False, True)
#: What a compiler would know that keeps no NaN, and one that does.
CASES: dict[
    str, tuple[Callable[[Expr, Expr], Expr], tuple[bool, bool], tuple[bool, bool]]
] = {
    "x + y": (lambda x, y: x + y, NEITHER, NEITHER),
    "x - y": (lambda x, y: x - y, RIGHT, NEITHER),
    "x - x": (lambda x, y: x - x, RIGHT, NEITHER),
    "x - 1": (lambda x, y: x - 1.0, NEITHER, NEITHER),
    "1 - x": (lambda x, y: 1.0 - x, RIGHT, NEITHER),
    "x * y": (lambda x, y: x * y, NEITHER, NEITHER),
    "x * 2": (lambda x, y: x * 2.0, NEITHER, NEITHER),
    "x * -2": (lambda x, y: x * -2.0, RIGHT, NEITHER),
    "-2 * x": (lambda x, y: -2.0 * x, LEFT, NEITHER),
    "x * 0": (lambda x, y: x * 0.0, RIGHT, RIGHT),
    "-0 * x": (lambda x, y: -0.0 * x, LEFT, LEFT),
    "x / y": (lambda x, y: x / y, RIGHT, NEITHER),
    "x / 2": (lambda x, y: x / 2.0, NEITHER, NEITHER),
    "0 / x": (lambda x, y: 0.0 / x, (True, True), LEFT),
    "x + 0": (lambda x, y: x + 0.0, NEITHER, NEITHER),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [F32, F32x4], ids=str)
def test_hidden_sides(name: str, kind: object) -> None:
    write, want, kept = CASES[name]
    found = write(Name(kind, "x"), Name(kind, "y"))
    assert isinstance(found, Binary)
    assert hidden_sides(found) == want
    assert hidden_sides(found, keeps_nan=True) == kept


def test_a_literal_in_every_lane_is_one() -> None:
    k = Builder("splat", (1, 1, 1))
    found = Name(F32x4, "x") * k.splat(k.const(0.0, F32), 4)
    assert isinstance(found, Binary)
    assert hidden_sides(found) == RIGHT
