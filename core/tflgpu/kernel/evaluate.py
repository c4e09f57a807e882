"""What each operation and function of the kernel language computes, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernel.tree import Number
from tflgpu.kernel.types import Scalar, Type

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift, "land": np.logical_and, "lor": np.logical_or,
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip

_exact_erf = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_exact_erf(x.astype(np.float64))).astype(x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x.astype(np.float64)))


def _fma(a: Array, b: Array, c: Array) -> Array:
    # One rounding, as a fused device gives; f64 holds the product of two f32 exactly.
    wide: Array = np.multiply(a, b, dtype=np.float64)
    return np.asarray(wide + c)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("...i,...i->...", a.astype(np.float64), b.astype(np.float64)))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": _rsqrt, "sin": np.sin, "cos": np.cos,
    "tanh": np.tanh, "erf": _erf, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "pow": np.power, "atan2": np.arctan2, "fma": _fma, "abs": np.abs,
    "sign": np.sign, "dot": _dot,
}  # fmt: skip


def constant(type: Type, value: Number) -> Array:
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
    return np.asarray(_FUNCTIONS[fn](*args)).astype(args[0].dtype, copy=False)


def convert(x: Array, scalar: Scalar) -> Array:
    """Value conversion of lanes; float to integer truncates, clamps to the range, and makes 0
    of a NaN."""
    if scalar in (Scalar.I32, Scalar.U32) and x.dtype.kind == "f":
        info = np.iinfo(scalar.numpy)
        wide = np.trunc(x.astype(np.float64))
        wide = np.where(np.isnan(wide), 0, np.clip(wide, info.min, info.max))
        return np.asarray(wide.astype(scalar.numpy))
    return x.astype(scalar.numpy)
