"""What each operation and function of the kernel language computes, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernel.types import Scalar

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "land": np.logical_and, "lor": np.logical_or,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def _erf(x: Array) -> Array:
    found: Array = np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64))
    return found.astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x), x.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    # One rounding, as a fused device gives; f64 holds the product of two f32 exactly.
    wide = a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)
    return wide.astype(a.dtype)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": _rsqrt, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "pow": np.power, "atan2": np.arctan2, "fma": _fma, "abs": np.abs,
    "sign": np.sign,
}  # fmt: skip


def binary(op: str, a: Array, b: Array) -> Array:
    """``a op b``, lane by lane."""
    if op in ("div", "rem"):
        if a.dtype.kind == "f":
            return np.asarray(np.divide(a, b), a.dtype)
        # Truncation toward zero, as in C; a zero divisor is undefined, so any number will do.
        wide_a, wide_b = a.astype(np.int64), np.where(b == 0, 1, b).astype(np.int64)
        quotient = np.sign(wide_a) * np.sign(wide_b) * (np.abs(wide_a) // np.abs(wide_b))
        result = quotient if op == "div" else wide_a - quotient * wide_b
        return result.astype(a.dtype)
    return np.asarray(_BINARY[op](a, b))


def call(fn: str, args: Sequence[Array]) -> Array:
    """A function of the language."""
    if fn == "dot":
        return np.asarray(np.sum(args[0] * args[1], axis=-1, dtype=args[0].dtype))
    return np.asarray(_FUNCTIONS[fn](*args)).astype(args[0].dtype, copy=False)


def convert(x: Array, scalar: Scalar) -> Array:
    """Value conversion of lanes; float to integer truncates and clamps to the range."""
    if scalar in (Scalar.I32, Scalar.U32) and x.dtype.kind == "f":
        info = np.iinfo(scalar.numpy)
        wide = np.nan_to_num(np.trunc(x.astype(np.float64)))
        return np.clip(wide, info.min, info.max).astype(scalar.numpy)
    return x.astype(scalar.numpy)
