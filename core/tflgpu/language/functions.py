"""The functions of the kernel language as one table: what each takes, gives and computes.

A new function is a row here, one in each printer's own table, and one in
`tflgpu.conformance.function_table`, which says what it should give. What becomes of NaN and
infinities is told in `tflgpu.language.evaluate`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.types import Scalar, Type, type_of
from tflgpu.values import frozen

FLOATS = frozenset({Scalar.F32, Scalar.F16})
#: Floats and signed integers.
NUMBERS = FLOATS | {Scalar.I32}


@frozen
class Function:
    """One function; its arguments are all of one type.

    Attributes:
        compute: Its definition, on NumPy arrays of the arguments' lanes. What it gives is
            converted to the type of the result, so it may compute with more bits.
        arity: Number of arguments.
        takes: What its arguments' lanes may be.
        gives: What the result's lanes are; None: what the arguments' are.
        joins_lanes: It takes vectors and makes one lane of them. Others work lane by lane.
        in_half: An API's own on f16 is exact, or as precise as its operators; where an API leaves
            functions of f16 loose, printers take the others through f32.
    """

    compute: Callable[..., Any]
    arity: int = 1
    takes: frozenset[Scalar] = FLOATS
    gives: Scalar | None = None
    joins_lanes: bool = False
    in_half: bool = False

    def accepts(self, kind: Type) -> bool:
        """Whether arguments may be of this type."""
        return kind.scalar in self.takes and (kind.width > 1 or not self.joins_lanes)

    def result(self, kind: Type) -> Type:
        """The type of the result of arguments of type ``kind``."""
        if self.gives is None and not self.joins_lanes:
            return kind
        return type_of(self.gives or kind.scalar, 1 if self.joins_lanes else kind.width)

    @property
    def wanted(self) -> str:
        """What it accepts, in words."""
        names = " or ".join(sorted(scalar.value for scalar in self.takes))
        return f"vectors of {names}" if self.joins_lanes else names


_exact_erf = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_exact_erf(x.astype(np.float64)))


def _rsqrt(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x.astype(np.float64)))


def _fma(a: Array, b: Array, c: Array) -> Array:
    # One rounding, as a fused device gives; f64 holds the product of two f32 exactly.
    wide: Array = np.multiply(a, b, dtype=np.float64)
    return np.asarray(wide + c)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(np.einsum("...i,...i->...", a.astype(np.float64), b.astype(np.float64)))


def _dot4_i8(a: Array, b: Array) -> Array:
    left, right = (
        np.ascontiguousarray(x)[..., None].view(np.int8).astype(np.int32) for x in (a, b)
    )
    return np.asarray((left * right).sum(axis=-1))


FUNCTIONS: dict[str, Function] = {
    "exp": Function(np.exp),
    "log": Function(np.log),
    "sqrt": Function(np.sqrt),
    "rsqrt": Function(_rsqrt),
    "sin": Function(np.sin),
    "cos": Function(np.cos),
    "tanh": Function(np.tanh),
    "erf": Function(_erf),
    "floor": Function(np.floor, in_half=True),
    "ceil": Function(np.ceil, in_half=True),
    "round": Function(np.rint, in_half=True),  # halves to the even neighbour
    "trunc": Function(np.trunc, in_half=True),
    "pow": Function(np.float_power, arity=2),  # power with 0.5 alone is a root: NaN of -inf
    "atan2": Function(np.arctan2, arity=2),
    "fma": Function(_fma, arity=3, in_half=True),
    "abs": Function(np.abs, takes=NUMBERS, in_half=True),
    "sign": Function(np.sign, takes=NUMBERS, in_half=True),
    "isnan": Function(np.isnan, gives=Scalar.BOOL),
    "dot": Function(_dot, arity=2, joins_lanes=True, in_half=True),
    # Of four signed bytes in each operand, the sum of the products.
    "dot4_i8": Function(_dot4_i8, arity=2, takes=frozenset({Scalar.U32}), gives=Scalar.I32),
}
