"""Printed functions against the interpreter that defines them, for backends whose API bounds some
of them otherwise than by units of the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tflgpu.conformance.node_table import (
    GROUPS,
    NodeCase,
    build_table,
    result_of,
    table,
    table_arrays,
    ulps,
)
from tflgpu.language.interpreter import interpret
from tflgpu.language.types import Scalar

#: How far off NumPy's transcendental functions of f32 may be.
NUMPY_ULP = 4
_F32 = 2.0**-23

#: Functions whose error Vulkan and WGSL bound otherwise than by units of the result: an absolute
#: bound, from the unit of 1 in the lanes' type and the operands.
LOOSE: dict[str, Callable[..., Any]] = {
    "exp": lambda eps, x: (3 + 2 * np.abs(x)) * np.exp(x) * _F32,
    "log": lambda eps, x: np.where((x >= 0.5) & (x <= 2), 2.0**-21, 3 * np.abs(np.log(x)) * _F32),
    # As exp2(y * log2(x)): 3 + 2|t| of the result, and the error of t, in which log2 has 3 units
    # or 2**-21.
    "pow": lambda eps, x, y: (
        np.power(x, y)
        * (
            (3 + 2 * np.abs(y * np.log2(x))) * _F32
            + np.abs(y) * np.maximum(2.0**-21, 4 * np.abs(np.log2(x)) * _F32)
        )
    ),
    # x * y + z in two roundings.
    "fma": lambda eps, a, b, c: np.abs(a * b) * eps,
}  # fmt: skip


def wrong_functions(
    runner: Any, scalar: Scalar, width: int, loose: Mapping[str, Callable[..., Any]],
    allowed: Callable[[NodeCase, Scalar], float],
) -> dict[str, object]:  # fmt: skip
    """By name, what is further off than ``loose`` bounds it, or else than so many units."""
    cases = table(scalar)
    kernel = build_table(cases, scalar, width)
    arrays, own = table_arrays(cases, scalar, width, seed=1)
    got = runner.run(kernel, GROUPS, arrays)
    interpret(kernel, GROUPS, arrays)
    off: dict[str, object] = {}
    for number, case in enumerate(cases):
        found, want = (result_of(cases, number, a, width) for a in (got, arrays))
        if case.name in loose:
            at = _first_beyond(loose[case.name], own[number], found, want)
            if at is not None:
                off[case.name] = (found[at], want[at], [a[at] for a in own[number]])
        elif (distance := ulps(found, want)) > allowed(case, scalar):
            off[case.name] = distance
    return off


def _first_beyond(
    bound: Callable[..., Any], own: list[np.ndarray], found: np.ndarray, want: np.ndarray
) -> int | None:
    eps = float(np.finfo(want.dtype).eps)
    with np.errstate(all="ignore"):
        allowed = bound(eps, *(a.astype(np.float64) for a in own))
        # One unit more, in which the result itself is rounded, and NumPy's part.
        allowed = allowed + (1 + NUMPY_ULP) * np.spacing(np.abs(want)).astype(np.float64)
        distance = np.abs(found.astype(np.float64) - want.astype(np.float64))
    wrong = np.flatnonzero((found != want) & ~(distance <= allowed))
    return int(wrong[0]) if wrong.size else None
