"""Functions that WGSL lacks, or defines too loosely, written in WGSL for each number of lanes.

* ``tanh`` and ``erf``: WGSL has no erf, and drivers compute tanh from exponentials, which
  overflow for large arguments and cancel near zero. The polynomials were fitted for this project
  (weighted least squares with reweighting towards equal relative error, in f64); in f32 both are
  within 4 units in the last place where the device's ``exp`` is within its bounds.
* ``sin``, ``cos``, ``atan2``: see `tflgpu_wgpu.angles`.
* float to integer: WGSL limits to the floats inside the integer's range, and leaves NaN open; the
  kernel language wants the integer's own limits, and 0.
* ``round_to_f16``: f32 to f16 and back, which a driver may leave out (`tflgpu_wgpu.rounding`).
* ``rem``: the remainder of i32, where an operand may be negative (see `tflgpu_wgpu.signs`).
* NaN (`tflgpu_wgpu.special` has what is about nothing else): WGSL lets an implementation compute as
  if there were none, so wherever one has to come through, its bits are looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from tflgpu_wgpu.angles import atan2, wave
from tflgpu_wgpu.special import SPECIAL, is_nan, vector

_TANH = (-0.3333333134651184, 0.13332931697368622, -0.053876303136348724,
         0.021121395751833916, -0.0062835924327373505)  # fmt: skip
# erf(x) / x over x*x up to 1, and log(1 - erf(x)) over x from 1 to 4.
_ERF = (1.1283791065216064, -0.3761235475540161, 0.112804114818573, -0.02671770565211773,
        0.004924786742776632, -0.0005660143797285855)  # fmt: skip
_LOG_ERFC = (-0.0006357275997288525, -1.1258608102798462, -0.6402440071105957,
             -0.1012294813990593, 0.02091229148209095, -0.0027091631200164557,
             0.00016132341988850385)  # fmt: skip


def helper(name: str) -> list[str]:
    """The lines of a function; ``name`` is a stem, an underscore and the number of lanes."""
    stem, lanes = name.rsplit("_", 1)
    return _BODIES[stem](name, int(lanes))


def _polynomial(coefficients: tuple[float, ...], x: str, type: str) -> str:
    """Horner's scheme."""
    text = f"{type}({coefficients[-1]!r}f)"
    for c in reversed(coefficients[:-1]):
        text = f"({text} * {x} + {c!r}f)"
    return text


def _tanh(name: str, lanes: int) -> list[str]:
    f = vector("f32", lanes)
    return [
        f"fn {name}(x: {f}) -> {f} {{",
        # Beyond 10 the result is 1 in f32, and the exponential stays finite.
        f"    let a: {f} = min(abs(x), {f}(10.0f));",
        f"    let t: {f} = a * a;",
        f"    let near: {f} = a + a * t * {_polynomial(_TANH, 't', f)};",
        "    let far = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);",
        f"    let y: {f} = select(far, near, a < {f}(0.6f));",
        f"    return select(select(y, -y, x < {f}(0.0f)), x, {is_nan('x', lanes)});",
        "}",
    ]


def _erf(name: str, lanes: int) -> list[str]:
    f = vector("f32", lanes)
    return [
        f"fn {name}(x: {f}) -> {f} {{",
        # Beyond 4 the result is 1 in f32.
        f"    let a: {f} = min(abs(x), {f}(4.0f));",
        f"    let t: {f} = min(a * a, {f}(1.0f));",
        f"    let near: {f} = a * {_polynomial(_ERF, 't', f)};",
        f"    let far: {f} = 1.0f - exp({_polynomial(_LOG_ERFC, 'a', f)});",
        f"    let y: {f} = select(far, near, a < {f}(1.0f));",
        f"    return select(select(y, -y, x < {f}(0.0f)), x, {is_nan('x', lanes)});",
        "}",
    ]


def _to_integer(name: str, lanes: int, signed: bool) -> list[str]:
    f, target = vector("f32", lanes), vector("i32" if signed else "u32", lanes)
    low, high = ("-2147483648.0f", "2147483648.0f") if signed else ("0.0f", "4294967296.0f")
    most = "2147483647i" if signed else "4294967295u"
    # The largest float below `high`, so that the conversion never sees more.
    below = "2147483520.0f" if signed else "4294967040.0f"
    return [
        f"fn {name}(x: {f}) -> {target} {{",
        f"    let inside: {target} = {target}(clamp(x, {f}({low}), {f}({below})));",
        f"    let limited: {target} = select(inside, {target}({most}), x >= {f}({high}));",
        f"    return select(limited, {target}(0), {is_nan('x', lanes)});",
        "}",
    ]


def _round_to_f16(name: str, lanes: int) -> list[str]:
    f, u = vector("f32", lanes), vector("u32", lanes)
    return [
        f"fn {name}(x: {f}) -> {f} {{",
        f"    let bits: {u} = bitcast<{u}>(x);",
        f"    let size: {u} = bits & {u}(0x7fffffffu);",
        # Normal numbers have 11 bits, 13 fewer than an f32; halves go to the even neighbour.
        f"    let odd: {u} = (size >> {u}(13u)) & {u}(1u);",
        f"    let normal: {u} = (size + {u}(0xfffu) + odd) & {u}(0xffffe000u);",
        # Subnormal ones are multiples of 2^-24.
        f"    let tiny: {u} = bitcast<{u}>(round(bitcast<{f}>(size) * 0x1p24f) * 0x1p-24f);",
        f"    let finite: {u} = select(tiny, normal, size >= {u}(0x38800000u));",
        f"    let rounded: {u} = select(finite, {u}(0x7f800000u), finite > {u}(0x477fe000u));",
        f"    let number: {u} = select(rounded, size, size > {u}(0x7f800000u));",
        f"    return bitcast<{f}>(number | (bits & {u}(0x80000000u)));",
        "}",
    ]


def _remainder(name: str, lanes: int) -> list[str]:
    i = vector("i32", lanes)
    return [f"fn {name}(a: {i}, b: {i}) -> {i} {{", "    return a - a / b * b;", "}"]


_BODIES: dict[str, Callable[[str, int], list[str]]] = {
    "rem": _remainder,
    "round_to_f16": _round_to_f16,
    "tanh": _tanh,
    "erf": _erf,
    "sin": lambda name, lanes: wave(name, lanes, 0),
    "cos": lambda name, lanes: wave(name, lanes, 1),
    "atan2": atan2,
    "to_i32": lambda name, lanes: _to_integer(name, lanes, signed=True),
    "to_u32": lambda name, lanes: _to_integer(name, lanes, signed=False),
    **SPECIAL,
}
#: The first parts of all names that `helper` may be asked for.
STEMS = frozenset(_BODIES)
#: Functions of the kernel language that are helpers here.
HELPED = frozenset({"tanh", "erf", "pow", "atan2", "sin", "cos"})
