"""``sin``, ``cos`` and ``atan2`` in WGSL, which defines its own too loosely for a model.

WGSL's sin and cos are only promised to 2^-11, and only within [-pi, pi] (NVIDIA's are off by more
than 1e-3 at 1e4), and atan2 to 4096 units in the last place; what it gives of zeros is open. These
are computed from +, *, / and fma, as in the Vulkan backend. Polynomials are weighted least-squares
fits (Lawson's iteration) to float64 values on the intervals given; the figure beside each is its
own largest error in exact arithmetic.
"""

from __future__ import annotations

import math

from tflgpu_wgpu.special import is_nan, not_finite, value, vector

# (atan(x) / x - 1) / x^2 in x^2, |x| <= 1; 1.9e-8 of atan(x) / x
_ATAN = (-0.3333316743373871, 0.19994136691093445, -0.14214205741882324, 0.10678929090499878,
         -0.07580552995204926, 0.04355324059724808, -0.01658099703490734,
         0.0029745432548224926)  # fmt: skip
# (sin(x) / x - 1) / x^2 and (cos(x) - 1 + x^2 / 2) / x^4 in x^2, |x| <= 0.8; 4e-9 and 1e-10
_SIN = (-0.16666653752326965, 0.008332131430506706, -0.00019510838319547474)
_COS = (0.04166664555668831, -0.0013887305976822972, 2.4431203200947493e-05)
# pi / 2 in parts: the first three have 9 bits at most, so that multiples of them up to 2^15 are
# exact on a device whose fma rounds twice, too.
_HALF_PI = (1.5703125, 0.00048351287841796875, 3.1385570764541626e-07, 6.07710062827671e-11)
_LARGEST_REST = "0.8f"  # a quarter turn is cut at pi / 4 = 0.785
_SIGN = "0x80000000u"


def wave(name: str, lanes: int, quarters: int) -> list[str]:
    """``sin(x + quarters * pi / 2)``: x is a number of quarter turns and a rest."""
    f, i = vector("f32", lanes), vector("i32", lanes)
    lines = [
        f"fn {name}(x: {f}) -> {f} {{",
        *value("nan", "0x7fc00000u", lanes),
        f"    let endless = {not_finite('x', lanes)};",
        f"    let size: {f} = select(x, {f}(0.0f), endless);",
        f"    let turns: {f} = round(size * {2 / math.pi!r}f);",
        f"    var rest: {f} = size;",
    ]
    lines += [f"    rest = fma(-turns, {f}({part!r}f), rest);" for part in _HALF_PI]
    return [
        *lines,
        # Of numbers so large that their turns are not whole the rest could be anything.
        f"    rest = max(rest, {f}(-{_LARGEST_REST}));",
        f"    rest = min(rest, {f}({_LARGEST_REST}));",
        f"    let t: {f} = rest * rest;",
        f"    let sine: {f} = fma(rest, t * {_polynomial(_SIN, 't', f)}, rest);",
        f"    let bend: {f} = t * {_polynomial(_COS, 't', f)} - 0.5f;",
        f"    let cosine: {f} = fma(t, bend, {f}(1.0f));",
        # Four quarters are none. Taken off before the conversion, which thus has nothing to limit.
        f"    let quarter: {i} = {i}(turns - 4.0f * floor(turns * 0.25f)) + {i}({quarters});",
        f"    let found: {f} = select(sine, cosine, (quarter & {i}(1)) == {i}(1));",
        f"    let turned: {f} = select(found, -found, (quarter & {i}(2)) == {i}(2));",
        "    return select(turned, nan, endless);",
        "}",
    ]


def atan2(name: str, lanes: int) -> list[str]:
    """As C99's (annex F.9.1.4), also of zeros: the signs of both operands are read from their
    bits, as a device may take small numbers for zero and a zero's sign decides about pi."""
    f, u = vector("f32", lanes), vector("u32", lanes)
    return [
        f"fn {name}(y: {f}, x: {f}) -> {f} {{",
        *value("nan", "0x7fc00000u", lanes),
        f"    let tall: {f} = abs(y);",
        f"    let wide: {f} = abs(x);",
        f"    let largest: {f} = max(tall, wide);",
        f"    let smallest: {f} = min(tall, wide);",
        # Two infinities have no quotient, but an angle; that of two zeros is 0.
        f"    let slope: {f} = select(smallest / largest, {f}(1.0f), smallest == largest);",
        f"    let ratio: {f} = select(slope, {f}(0.0f), largest == {f}(0.0f));",
        f"    let t: {f} = ratio * ratio;",
        f"    let flat: {f} = fma(ratio, t * {_polynomial(_ATAN, 't', f)}, ratio);",
        f"    let steep: {f} = select(flat, {math.pi / 2!r}f - flat, tall > wide);",
        f"    let behind = (bitcast<{u}>(x) & {u}({_SIGN})) == {u}({_SIGN});",
        f"    let angle: {f} = select(steep, {math.pi!r}f - steep, behind);",
        f"    let bits: {u} = bitcast<{u}>(angle) | (bitcast<{u}>(y) & {u}({_SIGN}));",
        f"    return select(bitcast<{f}>(bits), nan, {is_nan('y', lanes)} | {is_nan('x', lanes)});",
        "}",
    ]


def _polynomial(coefficients: tuple[float, ...], x: str, type: str) -> str:
    """Horner's scheme."""
    text = f"{type}({coefficients[-1]!r}f)"
    for c in reversed(coefficients[:-1]):
        text = f"fma({text}, {x}, {type}({c!r}f))"
    return text
