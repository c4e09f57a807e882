"""Functions that WGSL lacks, or defines too loosely, written in WGSL for each number of lanes.
Those that the kernel language itself defines are not here (`tflgpu.language.definitions`).

* float to integer: WGSL limits to the floats inside the integer's range, and leaves NaN open; the
  kernel language wants the integer's own limits, and 0.
* ``round_to_f16``: f32 to f16 and back, which a driver may leave out (`tflgpu.language.rounding`).
* ``rem``: the remainder of i32, where an operand may be negative (see `tflgpu.language.signs`).
* NaN (`tflgpu_wgpu.special` has what is about nothing else): WGSL lets an implementation compute as
  if there were none, so wherever one has to come through, its bits are looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.definitions import DEFINED, Definition, definition
from tflgpu.language.guards import GUARDS, guard
from tflgpu.language.types import Scalar, Type

from tflgpu_wgpu.special import SPECIAL, is_nan, vector


def definition_of(name: str) -> Definition | None:
    """That of a helper's name: a function and a number of lanes, or an operation, the lanes' type and
    their number."""
    stem, width = name.rsplit("_", 1)
    if stem in DEFINED:
        return definition(stem, int(width))
    op, _, scalar = stem.rpartition("_")
    return guard(op, Type(Scalar(scalar), int(width))) if op in GUARDS else None


def helper(name: str) -> list[str]:
    """The lines of a function; ``name`` is a stem, an underscore and the number of lanes."""
    stem, lanes = name.rsplit("_", 1)
    return _BODIES[stem](name, int(lanes))


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
    "to_i32": lambda name, lanes: _to_integer(name, lanes, signed=True),
    "to_u32": lambda name, lanes: _to_integer(name, lanes, signed=False),
    **SPECIAL,
}
#: The first parts of the names of all functions that a module may have.
STEMS = (
    frozenset(_BODIES)
    | frozenset(DEFINED)
    | frozenset(f"{op}_{scalar}" for op in GUARDS for scalar in ("f32", "f16"))
)
