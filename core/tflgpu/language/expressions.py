"""Expressions of the kernel tree.

Every node is an immutable value whose type is known when it is made, so that a mistake is
reported at the author's own line. Expressions have no side effects; what they mean is defined
by NumPy: each class says what it gives of its operands' values (`Expr.evaluate`).

Integers: 32 bits, wrapping; division and remainder truncate toward zero, as in C; a shift is by 0
to 31 bits, and of i32 to the right keeps the sign. Floats: IEEE binary32 or binary16; whether a
multiply and an add contract is up to the device.

NaN and infinities are values like any others; `tflgpu.language.evaluate` says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Union

import numpy as np

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.author import refused
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.evaluate import binary, call, constant, convert
from tflgpu.language.hints import Hints
from tflgpu.language.types import I32, Scalar, Type
from tflgpu.values import frozen

Number = Union[int, float, bool]
Operand = Union["Expr", int, float, bool]

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "rem", "min", "max"})
BITWISE = frozenset({"and", "or", "xor", "shl", "shr"})
LOGICAL = frozenset({"land", "lor"})
COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


#: What Python's operators build. Which operands may meet, and as what, is decided by
#: `tflgpu.language.make`, which builds on the classes here; `tflgpu.language.tree` brings it.
_combine: Callable[[str, Operand, Operand], Expr]


def combine_operands_with(rule: Callable[[str, Operand, Operand], Expr]) -> None:
    """Let ``rule(op, a, b)`` make the expression of every Python operator."""
    global _combine
    _combine = rule


def _operator(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: _combine(op, self, other)


def _reflected(op: str) -> Callable[[Expr, Operand], Expr]:
    return lambda self, other: _combine(op, other, self)


class Expr(Hints):
    """Base of all expressions. Python's operators build trees, ``==`` among them; what it has
    besides is refused with a hint (`tflgpu.language.hints`).

    A class of expressions is an attrs class whose operands are the fields annotated ``Expr`` or
    ``tuple[Expr, ...]``. It says here what the rest of the language asks of it; a printer's method
    for it has its name (`tflgpu.language.node_writer`).
    """

    #: NumPy's numbers leave operators to it, too.
    __array_ufunc__: ClassVar[None] = None
    #: It is one value, whatever ``==`` builds.
    __hash__ = object.__hash__

    type: Type
    #: It reads a name, an id or memory, so that what it gives does not follow from its operands
    #: alone. The interpreter computes it, in the place of `evaluate`.
    reads: ClassVar[bool] = False
    #: Its lanes are lanes that it was given, perhaps negated. What makes others out of f16 lanes
    #: takes a device with f16 arithmetic.
    keeps_lanes: ClassVar[bool] = False

    def evaluate(self, *operands: Array) -> Array:
        """What it gives of its operands' values: the language's definition of it.

        Args:
            operands: One array an operand: [n], or [n, lanes] of a vector, where n invocations
                evaluate it; a first dimension of 1 stands for the same value in all of them.
        """
        raise KernelError(f"expression {type(self).__name__} does not say what it gives")

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __mod__, __rmod__ = _operator("rem"), _reflected("rem")
    __lshift__, __rlshift__ = _operator("shl"), _reflected("shl")
    __rshift__, __rrshift__ = _operator("shr"), _reflected("shr")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))

    def __truediv__(self, other: Operand) -> Expr:
        return _combine("div", self._float(), other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _combine("div", other, self._float())

    def __floordiv__(self, other: Operand) -> Expr:
        return _combine("div", self._whole(), other)

    def __rfloordiv__(self, other: Operand) -> Expr:
        return _combine("div", other, self._whole())

    def _float(self) -> Expr:
        if not self.type.is_float:
            raise refused("use // for whole numbers")
        return self

    def _whole(self) -> Expr:
        if self.type.is_float:
            raise refused("use / for floats")
        return self

    def __and__(self, other: Operand) -> Expr:
        return _combine("land" if self.type.scalar is Scalar.BOOL else "and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return _combine("lor" if self.type.scalar is Scalar.BOOL else "or", self, other)

    __xor__ = _operator("xor")
    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def eq(self, other: Operand) -> Expr:
        """Lane-wise equality: ``==``."""
        return _combine("eq", self, other)

    def ne(self, other: Operand) -> Expr:
        """Lane-wise inequality: ``!=``."""
        return _combine("ne", self, other)

    __eq__ = eq  # type: ignore[assignment]
    __ne__ = ne  # type: ignore[assignment]

    def __neg__(self) -> Expr:
        if self.type.scalar is Scalar.BOOL:
            raise refused("use ~ to negate a boolean")
        return Unary(self.type, "neg", self)

    def __pos__(self) -> Expr:
        return self

    def __abs__(self) -> Expr:
        if self.type.scalar is Scalar.BOOL:
            raise refused("abs of a boolean: k.cast it")
        return self if self.type.scalar is Scalar.U32 else Call(self.type, "abs", (self,))

    def __invert__(self) -> Expr:
        scalar = self.type.scalar
        if scalar.is_float:
            raise refused("~ of a float: use - to negate a number")
        if scalar is not Scalar.BOOL:
            return self ^ (-1 if scalar is Scalar.I32 else 0xFFFFFFFF)
        if isinstance(self, Const):
            return Const(self.type, not self.value)
        return Unary(self.type, "not", self)

    def lane(self, index: int) -> Expr:
        """One lane of a vector (lane 0 of a scalar is the scalar)."""
        if not 0 <= index < self.type.width:
            raise refused(f"lane {index} of a {self.type}")
        if self.type.width == 1:
            return self
        if isinstance(self, Vec):
            return self.parts[index]
        return Lane(self.type.with_width(1), self, index)

    @property
    def lanes(self) -> tuple[Expr, ...]:
        """All lanes."""
        return tuple(self.lane(i) for i in range(self.type.width))


@frozen(eq=False)
class Const(Expr):
    """A literal; for a vector type every lane has the value."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    value: Number

    def evaluate(self, *operands: Array) -> Array:
        """The literal itself."""
        return constant(self.type, self.value)


@frozen(eq=False)
class Name(Expr):
    """A let, a variable or a loop index, read."""

    reads: ClassVar[bool] = True
    keeps_lanes: ClassVar[bool] = True
    type: Type
    ident: str
    mutable: bool = False


@frozen(eq=False)
class Builtin(Expr):
    """``global_id``, ``local_id`` or ``group_id`` along an axis: i32."""

    reads: ClassVar[bool] = True
    keeps_lanes: ClassVar[bool] = True
    kind: str
    axis: int
    type: Type = I32


@frozen(eq=False)
class Unary(Expr):
    """``neg`` or ``not``."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    op: str
    operand: Expr

    def evaluate(self, *operands: Array) -> Array:
        """The opposite, lane by lane."""
        (x,) = operands
        return np.asarray(np.logical_not(x) if self.op == "not" else np.negative(x))


@frozen(eq=False)
class Binary(Expr):
    """Two operands of one type; comparisons give bool lanes."""

    type: Type
    op: str
    left: Expr
    right: Expr

    def evaluate(self, *operands: Array) -> Array:
        """``left op right``, lane by lane."""
        a, b = operands
        return binary(self.op, a, b)


@frozen(eq=False)
class Call(Expr):
    """A function of `tflgpu.language.functions.FUNCTIONS`."""

    type: Type
    fn: str
    args: tuple[Expr, ...]

    def evaluate(self, *operands: Array) -> Array:
        """The function's own definition."""
        return call(self.fn, operands)


@frozen(eq=False)
class Select(Expr):
    """``if_true`` where ``cond`` holds, else ``if_false``; both are evaluated. A scalar ``cond``
    chooses whole vectors."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    cond: Expr
    if_true: Expr
    if_false: Expr

    def evaluate(self, *operands: Array) -> Array:
        """The chosen lanes."""
        cond, a, b = operands
        return np.where(cond[:, None] if cond.ndim < a.ndim else cond, a, b)


@frozen(eq=False)
class Cast(Expr):
    """Lane-wise value conversion; bool gives 0 or 1. Float to integer truncates, limits to the
    integer's range, and makes 0 of a NaN. To bool: whether it is not zero (a NaN is not). f32 to
    f16 rounds to nearest even; what is beyond its range is infinite, and a NaN stays one."""

    type: Type
    operand: Expr

    def evaluate(self, *operands: Array) -> Array:
        """Lanes converted."""
        (x,) = operands
        return convert(x, self.type.scalar)


@frozen(eq=False)
class Bitcast(Expr):
    """The bits of f32, i32 or u32 lanes read as another of these types, or those of f16x4 as u32x2,
    and back. What a device makes of a NaN on the way is open."""

    type: Type
    operand: Expr

    def evaluate(self, *operands: Array) -> Array:
        """The same bits."""
        (x,) = operands
        return np.ascontiguousarray(x).view(self.type.scalar.numpy)


@frozen(eq=False)
class Vec(Expr):
    """A vector of as many scalars as its type has lanes."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    parts: tuple[Expr, ...]

    def evaluate(self, *operands: Array) -> Array:
        """The scalars side by side."""
        return np.stack(np.broadcast_arrays(*operands), axis=-1)


@frozen(eq=False)
class Splat(Expr):
    """A vector with one scalar in every lane."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    operand: Expr

    def evaluate(self, *operands: Array) -> Array:
        """The scalar as often as there are lanes."""
        (x,) = operands
        return np.broadcast_to(x[:, None], (len(x), self.type.width))


@frozen(eq=False)
class Lane(Expr):
    """One lane of a vector, chosen while the kernel is built."""

    keeps_lanes: ClassVar[bool] = True
    type: Type
    operand: Expr
    index: int

    def evaluate(self, *operands: Array) -> Array:
        """The chosen lane."""
        (x,) = operands
        return np.asarray(x[:, self.index])


@frozen(eq=False)
class Load(Expr):
    """Element ``index`` of a buffer, or, with ``scalar``, lane ``index`` counted over all lanes.

    A load from an f16 buffer gives f16; see `Builder.load` for reading it as f32.
    """

    reads: ClassVar[bool] = True
    keeps_lanes: ClassVar[bool] = True
    type: Type
    buffer: KernelBuffer
    index: Expr
    scalar: bool = False


@frozen(eq=False)
class SharedLoad(Expr):
    """Element ``index`` of a shared array."""

    reads: ClassVar[bool] = True
    keeps_lanes: ClassVar[bool] = True
    type: Type
    array: SharedArray
    index: Expr
