"""Operations whose result APIs leave open for some operands, in the language's own operations.

* ``isnan``: an API may compute as if there were no NaN, but in bits there is nothing to assume.
* ``to_i32`` and ``to_u32``: floats outside an integer's range, and NaN.
* ``to_f16_and_back``: an f32 rounded to f16. A driver may leave the two conversions out
  (`tflgpu.language.defining`), and SPIR-V's OpQuantizeToF16 is something else: it flushes
  subnormals and makes infinity of all above 65504.
* ``rem``: the remainder of i32 where an operand is negative (`tflgpu.language.signs`).

How such a definition is read says `tflgpu.language.definitions`: within one a conversion is the
API's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tflgpu.language.definitions import Definition, Writer, define
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar, Type

_SIGN = 0x80000000
_INFINITY = 0x7F800000
#: Of each integer type: its ends, and the largest f32 below the upper one, so that the conversion
#: never sees more.
_RANGES = {
    Scalar.I32: (-(2**31), 2**31 - 1, 2.0**31 - 2.0**7),
    Scalar.U32: (0, 2**32 - 1, 2.0**32 - 2.0**8),
}


def _isnan(k: Writer, x: Expr) -> Expr:
    return (k.bitcast(k.cast(x, Scalar.F32), Scalar.U32) << 1) > 2 * _INFINITY


def _to_whole(target: Scalar) -> Callable[..., Expr]:
    low, high, below = _RANGES[target]

    def write(k: Writer, x: Expr) -> Expr:
        inside = k.let(k.cast(k.min(k.max(x, float(low)), below), target), "inside")
        limited = k.select(x > below, k.const(high, inside.type), inside)
        return k.select(k.is_nan(x), k.const(0, inside.type), limited)

    return write


def _to_f16_and_back(k: Writer, x: Expr) -> Expr:
    bits = k.let(k.bitcast(x, Scalar.U32), "bits")
    size = k.let(bits & (_SIGN - 1), "size")
    # Normal numbers have 11 bits, 13 fewer than an f32; halves go to the even neighbour.
    normal = (size + 0xFFF + ((size >> 13) & 1)) & 0xFFFFE000
    # Subnormal ones are multiples of 2^-24.
    steps = k.of_each(k.bitcast(size, Scalar.F32) * 2.0**24, "round")
    tiny = k.bitcast(steps * 2.0**-24, Scalar.U32)
    finite = k.let(k.select(size >= 0x38800000, normal, tiny), "finite")
    beyond = k.const(_INFINITY, size.type)
    rounded = k.select(finite > 0x477FE000, beyond, finite)  # 65504
    number = k.select(size > _INFINITY, size, rounded)
    return k.bitcast(number | (bits & _SIGN), Scalar.F32)


def _rem(k: Writer, a: Expr, b: Expr) -> Expr:
    return a - a // b * b


#: By name: what writes the operation, and its parameters.
EXACT: dict[str, tuple[Callable[..., Expr], tuple[str, ...]]] = {
    "isnan": (_isnan, ("x",)),
    "to_i32": (_to_whole(Scalar.I32), ("x",)),
    "to_u32": (_to_whole(Scalar.U32), ("x",)),
    "to_f16_and_back": (_to_f16_and_back, ("x",)),
    "rem": (_rem, ("a", "b")),
}


@cache
def exact(name: str, kind: Type) -> Definition:
    """An operation of `EXACT` on operands of a type."""
    return define(*EXACT[name], kind)
