"""NaN and infinities in WGSL, whose implementations may compute as if there were neither.

``min`` and ``max`` may give either operand where one is NaN, naga makes of ``x != x`` a comparison
that is false for a NaN, and ``pow`` is ``exp2(y * log2(x))``: NaN for all negative x. What the kernel
language asks for (`tflgpu.language.evaluate`) is made here, with questions of bits, in which there is
nothing to assume. Literals for NaN and infinity are none (a module in which a constant expression
overflows is refused), so they are read from a variable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tflgpu.language.numbers import Foregone

#: Writes a helper, given its name and its number of lanes.
_Body = Callable[[str, int], list[str]]
#: Comparisons that are false for a NaN and whose outcome a compiler may take for an extreme's.
ORDERED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def vector(scalar: str, lanes: int) -> str:
    """A type's name."""
    return scalar if lanes == 1 else f"vec{lanes}<{scalar}>"


def is_nan(x: str, lanes: int, scalar: str = "f32") -> str:
    """An expression: which lanes of a name are NaN."""
    return _size(x, lanes, ">", scalar)


def not_finite(x: str, lanes: int) -> str:
    """An expression: which lanes of a name (of f32) are NaN or infinite."""
    return _size(x, lanes, ">=")


def _is_number(x: str, lanes: int, scalar: str) -> str:
    return _size(x, lanes, "<=", scalar)


def _size(x: str, lanes: int, sign: str, scalar: str = "f32") -> str:
    """The bits, without that of the sign, next to those of infinity."""
    u, f = vector("u32", lanes), vector("f32", lanes)
    wide = x if scalar == "f32" else f"{f}({x})"
    return f"((bitcast<{u}>({wide}) << {u}(1u)) {sign} {u}(0xff000000u))"


def value(name: str, bits: str, lanes: int) -> list[str]:
    """Lines that declare a number by its bits: in every lane, and read at run time."""
    f = vector("f32", lanes)
    return [
        f"    var {name}_bits: u32 = {bits};",
        f"    let {name}: {f} = {f}(bitcast<f32>({name}_bits));",
    ]


def _isnan(name: str, lanes: int, scalar: str) -> list[str]:
    kind, result = vector(scalar, lanes), vector("bool", lanes)
    return [
        f"fn {name}(x: {kind}) -> {result} {{",
        f"    return {is_nan('x', lanes, scalar)};",
        "}",
    ]


def _ordered(name: str, lanes: int, scalar: str, sign: str) -> list[str]:
    """A comparison that is false for a NaN, whatever becomes of it.

    A compiler that takes all floats for numbers makes of ``select(b, a, a < b)``, or of an ``if``
    that assigns, a minimum that passes over a NaN (NVIDIA's does), or asks the opposite and
    exchanges the two. Where the bits have been asked as well, both give the same.
    """
    kind, result = vector(scalar, lanes), vector("bool", lanes)
    numbers = f"{_is_number('a', lanes, scalar)} & {_is_number('b', lanes, scalar)}"
    return [
        f"fn {name}(a: {kind}, b: {kind}) -> {result} {{",
        f"    return (a {sign} b) & {numbers};",
        "}",
    ]


def _sign(name: str, lanes: int, scalar: str) -> list[str]:
    kind = vector(scalar, lanes)
    return [
        f"fn {name}(x: {kind}) -> {kind} {{",
        f"    return select(sign(x), x, {is_nan('x', lanes, scalar)});",
        "}",
    ]


def _extreme(name: str, lanes: int, scalar: str, op: str) -> list[str]:
    kind = vector(scalar, lanes)
    return [
        f"fn {name}(a: {kind}, b: {kind}) -> {kind} {{",
        f"    let number = select({op}(a, b), b, {is_nan('b', lanes, scalar)});",
        f"    return select(number, a, {is_nan('a', lanes, scalar)});",
        "}",
    ]


def _limited(name: str, lanes: int, scalar: str, op: str) -> list[str]:
    """The same where the limit is no NaN."""
    kind = vector(scalar, lanes)
    return [
        f"fn {name}(x: {kind}, limit: {kind}) -> {kind} {{",
        f"    return select({op}(x, limit), x, {is_nan('x', lanes, scalar)});",
        "}",
    ]


def _limited_twice(name: str, lanes: int, scalar: str, first: str, second: str) -> list[str]:
    kind = vector(scalar, lanes)
    return [
        f"fn {name}(x: {kind}, a: {kind}, b: {kind}) -> {kind} {{",
        f"    return select({second}({first}(x, a), b), x, {is_nan('x', lanes, scalar)});",
        "}",
    ]


def _pow(name: str, lanes: int) -> list[str]:
    """As C99's (annex F.9.4.4)."""
    f = vector("f32", lanes)
    return [
        f"fn {name}(x: {f}, y: {f}) -> {f} {{",
        *value("nan", "0x7fc00000u", lanes),
        *value("inf", "0x7f800000u", lanes),
        f"    let zero: {f} = {f}(0.0f);",
        f"    let one: {f} = {f}(1.0f);",
        f"    let size: {f} = abs(x);",
        f"    let of_zero: {f} = select(inf, zero, y > zero);",
        f"    var result: {f} = select(exp2(y * log2(size)), of_zero, x == zero);",
        # The logarithm of 1 is 0, and 0 times an infinite exponent is not.
        "    result = select(result, one, size == one);",
        f"    let half: {f} = y * 0.5f;",
        # Of a negative number there are the powers with whole exponents, and those of -inf.
        "    let even = floor(half) == half;",
        f"    let broken: {f} = select(nan, result, size == inf);",
        f"    let signed: {f} = select(broken, select(-result, result, even), floor(y) == y);",
        "    result = select(result, signed, x < zero);",
        f"    result = select(result, nan, {is_nan('x', lanes)} | {is_nan('y', lanes)});",
        "    return select(result, one, (y == zero) | (x == one));",
        "}",
    ]


def _foregone(name: str, lanes: int, scalar: str, kind: Foregone) -> list[str]:
    """A result that is one number or NaN (see `tflgpu.language.numbers`)."""
    t, suffix = vector(scalar, lanes), "f" if scalar == "f32" else "h"
    number = "1.0" if kind is Foregone.ONE_OF_FINITE_NONZERO else "0.0"
    finite, zero = _size("x", lanes, "<", scalar), f"(x == {t}(0.0{suffix}))"
    fits = {
        Foregone.ZERO_OF_FINITE: finite,
        Foregone.ZERO_OF_NONZERO: f"!({zero} | {is_nan('x', lanes, scalar)})",
        Foregone.ONE_OF_FINITE_NONZERO: f"{finite} & !{zero}",
    }[kind]
    return [
        f"fn {name}(x: {t}) -> {t} {{",
        *value("nan", "0x7fc00000u", lanes),
        f"    let lost: {t} = {t}(nan);",
        f"    return select(lost, {t}({number}{suffix}), {fits});",
        "}",
    ]


def _of_type(scalar: str) -> dict[str, _Body]:
    found: dict[str, _Body] = {
        f"isnan_{scalar}": partial(_isnan, scalar=scalar),
        f"sign_{scalar}": partial(_sign, scalar=scalar),
        f"max_min_{scalar}": partial(_limited_twice, scalar=scalar, first="max", second="min"),
        f"min_max_{scalar}": partial(_limited_twice, scalar=scalar, first="min", second="max"),
        f"at_most_{scalar}": partial(_limited, scalar=scalar, op="min"),
        f"at_least_{scalar}": partial(_limited, scalar=scalar, op="max"),
    }
    for op, sign in ORDERED.items():
        found[f"{op}_{scalar}"] = partial(_ordered, scalar=scalar, sign=sign)
    for op in ("min", "max"):
        found[f"{op}_{scalar}"] = partial(_extreme, scalar=scalar, op=op)
    for kind in Foregone:
        found[f"{kind.name.lower()}_{scalar}"] = partial(_foregone, scalar=scalar, kind=kind)
    return found


#: Helpers by their stems, as `tflgpu_wgpu.functions` has them.
SPECIAL: dict[str, _Body] = {
    **_of_type("f32"),
    **_of_type("f16"),
    "pow": _pow,
}
