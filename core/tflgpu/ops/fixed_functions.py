"""The logistic function and tanh of 16-bit fixed-point numbers, and 1 / sqrt of whole ones, as
TFLite's integer LSTMs compute them: by polynomials and Newton's method, each step rounded.

What comes is some steps off from the rounded function, so a function that is computed and rounded
is not the same. A function of 16 bits is one table of 65536 results here, `table[q + 32768]` for
the operand q, whose real number is ``q * 2 ** (bits - 15)``; results are steps of 1 / 32768.

Sources: gemmlowp's `fixedpoint/fixedpoint.h` (exp_on_negative_values, logistic, tanh, which
TFLite's `kernels/internal/reference/portable_tensor_utils.cc` calls as ApplySigmoid and ApplyTanh)
and TFLite's `kernels/internal/quantization_util.h` (GetInvSqrtQuantizedMultiplierExp).
"""

from __future__ import annotations

import functools

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ops.fixed_point import Multiplier

_LOW, _HIGH = -(1 << 15), (1 << 15) - 1
#: Most bits before the point that `tanh` takes.
MOST_BITS = 6


def divide(x: Array, bits: int) -> Array:
    """``x / 2 ** bits``, rounded to the nearest, halves away from zero."""
    if bits == 0:
        return x
    mask = (1 << bits) - 1
    return np.asarray((x >> bits) + ((x & mask) > (mask >> 1) + (x < 0)))


def product(a: Array | int, b: Array | int, half: int = 14) -> Array:
    """Of two fractions; of 16 bits where ``half`` is 14, of 32 where it is 30. Halves go up."""
    return np.asarray((np.asarray(a, np.int64) * b + (1 << half)) >> (half + 1))


def _clipped(x: Array) -> Array:
    return np.asarray(np.clip(x, _LOW, _HIGH))


def _wrapped(x: Array) -> Array:
    """The low 16 bits, with their sign."""
    return x.astype(np.int16).astype(np.int64)


def _constant(wide: int) -> int:
    """A fraction of 32 bits in 16."""
    return int(divide(np.asarray(wide, np.int64), 16))


def _exp(x: Array, bits: int) -> Array:
    """The exponential of numbers <= 0 with ``bits`` before the point, as fractions."""
    point = 15 - bits
    quarter = 1 << (point - 2)
    part = (x & (quarter - 1)) - quarter  # from -1/4 to below 0
    # Around -1/8 by Taylor's series.
    at = _clipped(part << bits) + (1 << 12)
    square = product(at, at)
    cube, fourth = product(square, at), product(square, square)
    series = divide(product(divide(fourth, 2) + cube, _constant(715827883)) + square, 1)
    base = _constant(1895147668)  # exp(-1/8)
    found = _clipped(base + product(base, at + series))
    rest = part - x
    factors = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)
    for exponent, factor in enumerate(factors, -2):  # exp(-(2 ** exponent))
        if bits > exponent:
            taken = (rest & (1 << (point + exponent))) != 0
            found = np.where(taken, product(found, _constant(factor)), found)
    if bits > 5:
        found = np.where(x < -(32 << point), 0, found)
    return np.where(x == 0, _HIGH, found)


def _reciprocal(x: Array) -> Array:
    """2 / (1 + x) of fractions, with 2 bits before the point, by Newton's method."""
    half = (x + _HIGH + 1) // 2
    found = _constant(1515870810) + product(half, _constant(-1010580540))
    one = 1 << 13
    for _ in range(3):
        left = one - product(half, found)
        found = found + _clipped(product(found, left) << 2)
    return found


@functools.lru_cache(None)
def logistic() -> Array:
    """1 / (1 + exp(-x)) of operands with 3 bits before the point, as i16."""
    x = np.arange(_LOW, _HIGH + 1)
    size = _wrapped(np.where(x > 0, x, -x))
    # Half of it, with 1 bit before the point.
    positive = _clipped(_reciprocal(_exp(_wrapped(-size), 3)) << 1)
    found = np.where(x > 0, positive, _HIGH - positive)
    return _fixed(np.where(x == 0, 1 << 14, found))


@functools.lru_cache(None)
def tanh(bits: int) -> Array:
    """The tanh of operands with so many bits before the point, 0 to `MOST_BITS`, as i16."""
    x = np.arange(_LOW, _HIGH + 1)
    negative = np.where(x < 0, x, _wrapped(-x))
    size = _clipped((_reciprocal(_exp(negative, bits + 1)) - (1 << 13)) << 2)
    return _fixed(np.where(x == 0, 0, np.where(x < 0, -size, size)))


@functools.lru_cache(None)
def logistic_by_f32() -> Array:
    """The same as `logistic`, computed in f32 and cut off towards 0."""
    real = (np.arange(_LOW, _HIGH + 1) * 2.0**-12).astype(np.float32)
    power = np.exp(-real.astype(np.float64)).astype(np.float32)
    return _cut_off(np.float32(1) / (np.float32(1) + power))


@functools.lru_cache(None)
def tanh_by_f32(bits: int) -> Array:
    """The same as `tanh`, computed in f32 and cut off towards 0."""
    real = (np.arange(_LOW, _HIGH + 1) * 2.0 ** (bits - 15)).astype(np.float32)
    return _cut_off(np.tanh(real.astype(np.float64)).astype(np.float32))


def _cut_off(x: Array) -> Array:
    return _fixed(_clipped(np.trunc(x * np.float32(1 << 15))))


def _fixed(table: Array) -> Array:
    found = table.astype(np.int16)
    found.setflags(write=False)
    return found


def look_up(table: Array, x: Array) -> Array:
    """Entries of a table for 16-bit numbers, as 64-bit ones."""
    return np.asarray(table[x.astype(np.int64) - _LOW].astype(np.int64))


@functools.lru_cache(1 << 12)
def inverse_root(number: int) -> Multiplier:
    """1 / sqrt of a whole number, which is not negative; of 0 that of 1."""
    if number <= 1:
        return Multiplier((1 << 31) - 1, 0)
    shift = 11
    while number >= 1 << 29:
        number, shift = number // 4, shift + 1
    pairs = (31 - number.bit_length()) // 2 - 1
    shift -= pairs
    number <<= 2 * pairs

    def times(a: int, b: int) -> int:
        return int(product(a, b, 30))

    def up(x: int, bits: int) -> int:
        return min(max(x << bits, -(1 << 31)), (1 << 31) - 1)

    source = number >> 1  # 3 bits before the point
    half = (source + 1) // 2
    three_halves = (1 << 28) + (1 << 27)
    x = 1 << 28
    for _ in range(5):
        cube = up(times(times(x, x), x), 6)
        x = up(times(three_halves, x) - times(half, cube), 3)
    x = times(x, 1518500250)  # sqrt(2) / 2
    if shift < 0:
        x, shift = x << -shift, 0
    return Multiplier(x, -shift)
