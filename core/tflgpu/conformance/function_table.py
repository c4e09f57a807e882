"""What every function of the kernel language should give, of numbers and of special values.

Both are written down here without the interpreter's help (`tflgpu.language.functions` defines what
it computes). `tflgpu.conformance.node_table` makes cases of ordinary numbers from these rows, and
`tflgpu.conformance.special_table` cases with NaN, infinities and zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar

_FLOATS = (Scalar.F32, Scalar.F16)
#: From here on three operands' product and sum may overflow in one order and not in another.
_HUGE = {Scalar.F32: 1e37, Scalar.F16: 500.0}
#: Vulkan and WGSL say nothing of quotients whose divisor is larger than 2^126.
LARGEST_DIVISOR = 2.0**126
_LARGEST_ANGLE = 2.0**15

#: Which rows of operands nothing is defined of.
Leave = Callable[[Sequence[Array], Scalar], Array]


@attrs.frozen
class FunctionRow:
    """One function on lanes of some types.

    Attributes:
        name: In `tflgpu.language.functions.FUNCTIONS`.
        number: The result, of Python's numbers, one lane at a time.
        array: The result, of arrays of f64 with special values in them; None: of whole numbers,
            which have none.
        ulp: The worst error that the OpenCL specification allows.
        domain: What numbers it is tried on (`tflgpu.conformance.node_table.operands`).
        scalars: The types of lanes that this row is about.
        exact: Whether finite results must be right to the last bit in ``array``'s cases.
        signed: Whether the sign of a zero among the operands decides.
        leaves_out: Special values about which nothing is defined.
    """

    name: str
    number: Callable[..., Any]
    array: Callable[..., Any] | None
    ulp: float = 0.0
    domain: str = "any"
    scalars: tuple[Scalar, ...] = _FLOATS
    exact: bool = True
    signed: bool = False
    leaves_out: Leave | None = None

    def build(self, k: Builder, *args: Expr) -> Expr:
        """The call, with truth values as 0 and 1, which buffers can hold."""
        found = k.call(self.name, *args)
        return k.cast(found, Scalar.I32) if found.type.scalar is Scalar.BOOL else found

    def result(self, scalar: Scalar) -> Scalar:
        """The lanes that `build` gives of operands of ``scalar``."""
        gives = FUNCTIONS[self.name].gives or scalar
        return Scalar.I32 if gives is Scalar.BOOL else gives


def beyond(x: Array, limit: float) -> Array:
    """Where finite numbers are larger than a limit, in size."""
    return np.asarray(np.isfinite(x) & (np.abs(x) > limit))


def huge(operands: Sequence[Array], scalar: Scalar) -> Array:
    """Where products of the operands may overflow in two roundings, but not in one."""
    return np.asarray(np.logical_or.reduce([beyond(x, _HUGE[scalar]) for x in operands]))


def _far(operands: Sequence[Array], scalar: Scalar) -> Array:
    return beyond(operands[0], _LARGEST_ANGLE)


def _long_sides(operands: Sequence[Array], scalar: Scalar) -> Array:
    return beyond(operands[0], LARGEST_DIVISOR) | beyond(operands[1], LARGEST_DIVISOR)


def _sign(a: float) -> int:
    return (a > 0) - (a < 0)


def _wrapped_abs(a: int) -> int:
    """The size of the smallest i32 is no i32: it stays what it is."""
    return a if a == -(2**31) else abs(a)


def _dot_of_bytes(a: int, b: int) -> int:
    """The sum of the products of the signed bytes of two words."""
    sides = ((n - 256 * (n > 127) for n in x.to_bytes(4, "little")) for x in (a, b))
    return sum(x * y for x, y in zip(*sides, strict=True))


_erf = np.vectorize(math.erf, otypes=[np.float64])

ROWS = (
    FunctionRow("exp", math.exp, np.exp, 3, "small", exact=False),
    FunctionRow("log", math.log, np.log, 3, "positive", exact=False),
    FunctionRow("sqrt", math.sqrt, np.sqrt, 3, "positive", exact=False),
    FunctionRow(
        "rsqrt", lambda a: 1 / math.sqrt(a), lambda a: 1 / np.sqrt(a), 2, "positive", exact=False
    ),
    FunctionRow("sin", math.sin, np.sin, 4, "small", exact=False, leaves_out=_far),
    FunctionRow("cos", math.cos, np.cos, 4, "small", exact=False, leaves_out=_far),
    FunctionRow("tanh", math.tanh, np.tanh, 5, "small", exact=False),
    FunctionRow("erf", math.erf, _erf, 16, "small", exact=False),
    FunctionRow("floor", math.floor, np.floor),
    FunctionRow("ceil", math.ceil, np.ceil),
    FunctionRow("round", round, np.rint),
    FunctionRow("trunc", math.trunc, np.trunc),
    FunctionRow("abs", abs, np.abs),
    FunctionRow("abs", _wrapped_abs, None, scalars=(Scalar.I32,)),
    FunctionRow("sign", _sign, np.sign),
    FunctionRow("sign", _sign, None, scalars=(Scalar.I32,)),
    FunctionRow("isnan", math.isnan, np.isnan),
    FunctionRow("pow", math.pow, np.power, 16, "positive", exact=False, signed=True),
    FunctionRow(
        "atan2", math.atan2, np.arctan2, 6, exact=False, signed=True, leaves_out=_long_sides
    ),
    FunctionRow(
        "fma", lambda a, b, c: a * b + c, lambda a, b, c: a * b + c, 1, exact=False, leaves_out=huge
    ),
    FunctionRow("dot4_i8", _dot_of_bytes, None, scalars=(Scalar.U32,)),
)


def rows_of(scalar: Scalar) -> list[FunctionRow]:
    """The functions that take lanes of ``scalar``."""
    return [row for row in ROWS if scalar in row.scalars]
