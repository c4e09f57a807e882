"""NaN in WGSL, whose implementations may compute as if there were none.

``isnan`` asks the bits, in which there is nothing to assume (naga makes of ``x != x`` a comparison
that is false for a NaN). What else keeps a NaN is the kernel language's (`tflgpu.language.guards`).
Literals for NaN and infinity are none (a module in which a constant expression overflows is refused),
so they are read from a variable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial


def vector(scalar: str, lanes: int) -> str:
    """A type's name."""
    return scalar if lanes == 1 else f"vec{lanes}<{scalar}>"


def is_nan(x: str, lanes: int, scalar: str = "f32") -> str:
    """An expression: which lanes of a name are NaN, by its bits without that of the sign."""
    u, f = vector("u32", lanes), vector("f32", lanes)
    wide = x if scalar == "f32" else f"{f}({x})"
    return f"((bitcast<{u}>({wide}) << {u}(1u)) > {u}(0xff000000u))"


def _isnan(name: str, lanes: int, scalar: str) -> list[str]:
    kind, result = vector(scalar, lanes), vector("bool", lanes)
    return [
        f"fn {name}(x: {kind}) -> {result} {{",
        f"    return {is_nan('x', lanes, scalar)};",
        "}",
    ]


#: Helpers by their stems, as `tflgpu_wgpu.functions` has them.
SPECIAL: dict[str, Callable[[str, int], list[str]]] = {
    f"isnan_{scalar}": partial(_isnan, scalar=scalar) for scalar in ("f32", "f16")
}
