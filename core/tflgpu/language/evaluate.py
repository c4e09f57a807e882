"""What each operation and function of the kernel language computes, on NumPy arrays.

NaN and infinities are values like any others: a kernel may meet them and relies on what becomes of
them, on every device.

* ``add``, ``sub``, ``mul``, ``div``, ``fma``, ``dot``, ``neg``: as IEEE 754 has it. What overflows
  is infinite; inf - inf, inf * 0 and 0 / 0 are NaN; any other x / 0 is infinite.
* ``min`` and ``max`` are NaN if either operand is (IEEE 754-2019, minimum and maximum), so
  `Builder.clamp` keeps a NaN too.
* Comparisons with a NaN are false, except ``ne``, which is true. ``isnan`` says what x.ne(x) does.
* `tree.Select` gives the chosen value, also where the other is a NaN.
* ``abs``, ``sign``, ``floor``, ``ceil``, ``round`` and ``trunc`` keep a NaN; the last four keep
  infinities.
* Functions of a NaN are NaN, but for the cases of ``pow`` below. At their ends:

  ========= ===============================================================
  exp       exp(-inf) = 0, exp(inf) = inf
  log       log(0) = -inf, log(inf) = inf, NaN below 0
  sqrt      sqrt(inf) = inf, NaN below 0
  rsqrt     rsqrt(0) is infinite, rsqrt(inf) = 0, NaN below 0
  sin, cos  NaN of infinities; far from 0 see below
  tanh, erf 1 and -1 of infinities
  atan2     as C's: atan2(inf, inf) = pi / 4, atan2(1, inf) = 0, atan2(-0, -1) = -pi; the signs
            of operands count also where they are zeros, or subnormal numbers taken for zero
  pow       as C99's: pow(x, 0) = 1 and pow(1, y) = 1 also for NaN; of a negative x the powers
            with whole exponents, NaN for others; pow(0, y) is infinite for negative y
  ========= ===============================================================

* Conversions: see `tree.Cast` and `tree.Store`. A NaN's sign and payload are open everywhere.

Open are: the sign of a zero that an operation gives (but loads, stores, `tree.Select`, ``neg`` and
``abs`` are exact), and with it that of what is infinite because of it; the order of the two zeros
in ``min`` and ``max``; whether subnormal numbers are taken for zero; ``sin`` and ``cos`` of numbers
beyond 2^15, which are only sure to lie in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.types import Scalar, Type

# NumPy's minimum and maximum are the language's: NaN if either operand is one.
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "land": np.logical_and, "lor": np.logical_or,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def constant(type: Type, value: float) -> Array:
    """A literal: [1] or [1, lanes]."""
    shape = (1, type.width) if type.width > 1 else (1,)
    return np.full(shape, value, type.scalar.numpy)


def binary(op: str, a: Array, b: Array) -> Array:
    """``a op b``, lane by lane."""
    if op in ("div", "rem"):
        return _divide(op, a, b)
    if op in ("shl", "shr"):
        b = b & b.dtype.type(31)  # beyond 31 is undefined; this is what most devices do
    return np.asarray(_BINARY[op](a, b))


def _divide(op: str, a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    divisor: Any = b[0] if b.shape == (1,) else b
    quick = np.floor_divide if op == "div" else np.remainder
    if np.min(a) >= 0 and np.min(b) > 0:
        return np.asarray(quick(a, divisor))  # rounding down is rounding toward zero
    # A zero divisor is undefined, so any number will do.
    wide_a, wide_b = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
    quotient = np.sign(wide_a) * np.sign(wide_b) * (np.abs(wide_a) // np.abs(wide_b))
    result = quotient if op == "div" else wide_a - quotient * wide_b
    return np.asarray(result.astype(a.dtype))


def call(fn: str, args: Sequence[Array]) -> Array:
    """A function of the language."""
    function = FUNCTIONS[fn]
    dtype = args[0].dtype if function.gives is None else function.gives.numpy
    return np.asarray(function.compute(*args)).astype(dtype, copy=False)


def convert(x: Array, scalar: Scalar) -> Array:
    """Value conversion of lanes; float to integer truncates, clamps to the range, and makes 0
    of a NaN."""
    if scalar in (Scalar.I32, Scalar.U32) and x.dtype.kind == "f":
        info = np.iinfo(scalar.numpy)
        wide = np.trunc(x.astype(np.float64))
        wide = np.where(np.isnan(wide), 0, np.clip(wide, info.min, info.max))
        return np.asarray(wide.astype(scalar.numpy))
    return x.astype(scalar.numpy)
