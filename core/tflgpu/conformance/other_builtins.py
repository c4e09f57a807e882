"""TFLite's builtin operators that no op definition stands for: what runs them, or what is
missing."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.bodies import RUN_BY_HOST
from tflgpu.tflite.schema import BUILTIN_CODES, CUSTOM, PLACEHOLDER


@attrs.frozen
class Other:
    """A builtin operator without an op definition.

    Attributes:
        runs: "LiteRT", "host", or "no".
        why: Why no device runs it; where nothing does, what is missing.
    """

    runs: str
    why: str


_RANDOM = (
    "random numbers are those of LiteRT's generators, which go on from run to run; its "
    "kernel runs it"
)
_NOBODY = "not defined here, and LiteRT has no kernel for it either"

#: Operators that LiteRT (2.3) has a kernel for, with what is special about them.
_IN_LITERT: Mapping[str, Other] = {
    **dict.fromkeys(
        ("RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL"), Other("LiteRT", _RANDOM)
    ),
    "STABLEHLO_RNG_BIT_GENERATOR": Other(
        "LiteRT", "its state is of 64-bit numbers, which no device has; LiteRT's kernel runs it"
    ),
    "STABLEHLO_COMPOSITE": Other(
        "host", "read as the operators that it is made of, wherever these run"
    ),
    "SKIP_GRAM": Other("host", "the interpreter runs what has to do with texts (strings)"),
}
_HOST = Other("host", "the interpreter runs it between compiled pieces")


def names() -> tuple[str, ...]:
    """TFLite's builtin operators, by the schema's enumeration; not the codes that are none."""
    none = (CUSTOM, PLACEHOLDER)
    return tuple(name for name, code in BUILTIN_CODES.items() if code not in none)


def others() -> dict[str, Other]:
    """All that no op definition stands for."""
    found = {}
    for name in sorted(set(names()) - set(builtin_ops())):
        found[name] = _HOST if name in RUN_BY_HOST else _IN_LITERT.get(name, Other("no", _NOBODY))
    return found
