"""The kernel tree: expressions, statements, and the kernel that holds them.

Every node is an immutable value whose type is known when it is made, so that a mistake is
reported at the author's own line. Expressions have no side effects; what they mean is defined
by the NumPy interpreter (`tflgpu.language.interpret`).

Integers: 32 bits, wrapping; division and remainder truncate toward zero, as in C; a shift is by 0
to 31 bits, and of i32 to the right keeps the sign. Floats: IEEE binary32 or binary16; whether a
multiply and an add contract is up to the device.

NaN and infinities are values like any others; `tflgpu.language.evaluate` says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

import attrs

from tflgpu.errors import KernelError
from tflgpu.language.types import I32, Scalar, Type

Number = Union[int, float, bool]
Operand = Union["Expr", int, float, bool]

ARITHMETIC = frozenset({"add", "sub", "mul", "div", "rem", "min", "max"})
BITWISE = frozenset({"and", "or", "xor", "shl", "shr"})
LOGICAL = frozenset({"land", "lor"})
COMPARE = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})


#: What Python's operators build. Which operands may meet, and as what, is decided one file above,
#: which builds on the classes here and so puts itself in when it is imported; the package's
#: `__init__` imports it, so it is always there.
_combine: Callable[[str, Operand, Operand], Expr]


def combine_operands_with(rule: Callable[[str, Operand, Operand], Expr]) -> None:
    """Let ``rule(op, a, b)`` make the expression of every Python operator."""
    global _combine
    _combine = rule


def _binary(op: str, a: Operand, b: Operand) -> Expr:
    return _combine(op, a, b)


class Expr:
    """Base of all expressions. Python operators build trees; comparisons of equality are the
    methods `eq` and `ne`, because `==` stays Python's."""

    type: Type

    def __add__(self, other: Operand) -> Expr:
        return _binary("add", self, other)

    def __radd__(self, other: Operand) -> Expr:
        return _binary("add", other, self)

    def __sub__(self, other: Operand) -> Expr:
        return _binary("sub", self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return _binary("sub", other, self)

    def __mul__(self, other: Operand) -> Expr:
        return _binary("mul", self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return _binary("mul", other, self)

    def __truediv__(self, other: Operand) -> Expr:
        if not self.type.is_float:
            raise KernelError("use // for whole numbers")
        return _binary("div", self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return _binary("div", other, self)

    def __floordiv__(self, other: Operand) -> Expr:
        if self.type.is_float:
            raise KernelError("use / for floats")
        return _binary("div", self, other)

    def __mod__(self, other: Operand) -> Expr:
        return _binary("rem", self, other)

    def __and__(self, other: Operand) -> Expr:
        return _binary("land" if self.type.scalar is Scalar.BOOL else "and", self, other)

    def __or__(self, other: Operand) -> Expr:
        return _binary("lor" if self.type.scalar is Scalar.BOOL else "or", self, other)

    def __xor__(self, other: Operand) -> Expr:
        return _binary("xor", self, other)

    def __lshift__(self, other: Operand) -> Expr:
        return _binary("shl", self, other)

    def __rshift__(self, other: Operand) -> Expr:
        return _binary("shr", self, other)

    def __lt__(self, other: Operand) -> Expr:
        return _binary("lt", self, other)

    def __le__(self, other: Operand) -> Expr:
        return _binary("le", self, other)

    def __gt__(self, other: Operand) -> Expr:
        return _binary("gt", self, other)

    def __ge__(self, other: Operand) -> Expr:
        return _binary("ge", self, other)

    def eq(self, other: Operand) -> Expr:
        """Lane-wise equality."""
        return _binary("eq", self, other)

    def ne(self, other: Operand) -> Expr:
        """Lane-wise inequality."""
        return _binary("ne", self, other)

    def __neg__(self) -> Expr:
        if self.type.scalar is Scalar.BOOL:
            raise KernelError("use ~ to negate a boolean")
        return Unary(self.type, "neg", self)

    def __invert__(self) -> Expr:
        if self.type.scalar is not Scalar.BOOL:
            raise KernelError("~ negates booleans only")
        if isinstance(self, Const):
            return Const(self.type, not self.value)
        return Unary(self.type, "not", self)

    def __bool__(self) -> bool:
        raise KernelError("an expression has no value while the kernel is built; use k.if_()")

    def lane(self, index: int) -> Expr:
        """One lane of a vector (lane 0 of a scalar is the scalar)."""
        if not 0 <= index < self.type.width:
            raise KernelError(f"lane {index} of a {self.type}")
        if self.type.width == 1:
            return self
        if isinstance(self, Vec):
            return self.parts[index]
        return Lane(self.type.with_width(1), self, index)

    @property
    def lanes(self) -> tuple[Expr, ...]:
        """All lanes."""
        return tuple(self.lane(i) for i in range(self.type.width))


@attrs.frozen(eq=False)
class Const(Expr):
    """A literal; for a vector type every lane has the value."""

    type: Type
    value: Number


@attrs.frozen(eq=False)
class Name(Expr):
    """A let, a variable or a loop index, read."""

    type: Type
    ident: str
    mutable: bool = False


@attrs.frozen(eq=False)
class Builtin(Expr):
    """``global_id``, ``local_id`` or ``group_id`` along an axis: i32."""

    kind: str
    axis: int
    type: Type = I32


@attrs.frozen(eq=False)
class Unary(Expr):
    """``neg`` or ``not``."""

    type: Type
    op: str
    x: Expr


@attrs.frozen(eq=False)
class Binary(Expr):
    """Two operands of one type; comparisons give bool lanes."""

    type: Type
    op: str
    a: Expr
    b: Expr


@attrs.frozen(eq=False)
class Call(Expr):
    """A function of `tflgpu.language.functions.FUNCTIONS`."""

    type: Type
    fn: str
    args: tuple[Expr, ...]


@attrs.frozen(eq=False)
class Select(Expr):
    """``a`` where ``cond`` holds, else ``b``; both are evaluated. A scalar ``cond`` chooses
    whole vectors."""

    type: Type
    cond: Expr
    a: Expr
    b: Expr


@attrs.frozen(eq=False)
class Cast(Expr):
    """Lane-wise value conversion; bool gives 0 or 1. Float to integer truncates, limits to the
    integer's range, and makes 0 of a NaN. To bool: whether it is not zero (a NaN is not). f32 to
    f16 rounds to nearest even; what is beyond its range is infinite, and a NaN stays one."""

    type: Type
    x: Expr


@attrs.frozen(eq=False)
class Bitcast(Expr):
    """The bits of f32, i32 or u32 lanes read as another of these types. What a device makes of
    a NaN on the way is open."""

    type: Type
    x: Expr


@attrs.frozen(eq=False)
class Vec(Expr):
    """A vector of as many scalars as its type has lanes."""

    type: Type
    parts: tuple[Expr, ...]


@attrs.frozen(eq=False)
class Splat(Expr):
    """A vector with one scalar in every lane."""

    type: Type
    x: Expr


@attrs.frozen(eq=False)
class Lane(Expr):
    """One lane of a vector, chosen while the kernel is built."""

    type: Type
    x: Expr
    index: int


@attrs.frozen
class Buffer:
    """A kernel's buffer parameter: elements of ``width`` lanes of ``scalar``."""

    name: str
    scalar: Scalar
    width: int
    access: str  # "read", "write" or "read_write"

    @property
    def value_type(self) -> Type:
        """The type that a load gives: storage-only integers widen to i32."""
        scalar = Scalar.I32 if self.scalar.is_storage_only else self.scalar
        return Type(scalar, self.width)


@attrs.frozen
class Shared:
    """An array of ``count`` elements shared by a workgroup; contents start undefined."""

    name: str
    type: Type
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes it takes; a 3-lane element takes the room of 4."""
        lanes = 4 if self.type.width == 3 else self.type.width
        return self.count * lanes * self.type.scalar.itemsize


@attrs.frozen(eq=False)
class Load(Expr):
    """Element ``index`` of a buffer, or, with ``scalar``, lane ``index`` counted over all lanes.

    A load from an f16 buffer gives f16; see `Builder.load` for reading it as f32.
    """

    type: Type
    buffer: Buffer
    index: Expr
    scalar: bool = False


@attrs.frozen(eq=False)
class SharedLoad(Expr):
    """Element ``index`` of a shared array."""

    type: Type
    array: Shared
    index: Expr


class Stmt:
    """Base of all statements."""

    #: Where `tflgpu.language.walk` keeps the way through its expressions.
    __slots__ = ("walked",)
    walked: Any


@attrs.frozen(eq=False)
class Let(Stmt):
    """Name a value that does not change."""

    ident: str
    value: Expr


@attrs.frozen(eq=False)
class Var(Stmt):
    """Declare a variable with its first value."""

    ident: str
    value: Expr


@attrs.frozen(eq=False)
class Assign(Stmt):
    """Set a variable."""

    target: Name
    value: Expr


@attrs.frozen(eq=False)
class Store(Stmt):
    """Write element ``index`` of a buffer (lane ``index`` with ``scalar``).

    The value's lanes are the buffer's; f32 into an f16 buffer is rounded as by a `Cast`, i32 into
    a storage-only integer buffer must be in its range.
    """

    buffer: Buffer
    index: Expr
    value: Expr
    scalar: bool = False


@attrs.frozen(eq=False)
class SharedStore(Stmt):
    """Write element ``index`` of a shared array."""

    array: Shared
    index: Expr
    value: Expr


@attrs.frozen(eq=False)
class If(Stmt):
    """``then`` where ``cond`` holds, else ``orelse``."""

    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@attrs.frozen(eq=False)
class For(Stmt):
    """``index`` runs from ``start`` while it is below ``stop``, by ``step`` (> 0).

    The bounds are values that do not change while the loop runs, so it does not matter whether
    ``stop`` is computed once or every time round.
    """

    index: Name
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]
    unroll: bool = False


@attrs.frozen(eq=False)
class Break(Stmt):
    """Leave the innermost loop."""


@attrs.frozen(eq=False)
class Return(Stmt):
    """This invocation is done; no barrier may follow."""


@attrs.frozen(eq=False)
class Barrier(Stmt):
    """Every invocation of the workgroup arrives, then all see each other's shared writes."""


@attrs.frozen(eq=False)
class Kernel:
    """A complete kernel.

    ``workgroup`` is the number of invocations of a workgroup along each axis; the number of
    workgroups belongs to the dispatch.
    """

    name: str
    workgroup: tuple[int, int, int]
    buffers: tuple[Buffer, ...]
    shared: tuple[Shared, ...]
    body: tuple[Stmt, ...]

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory a workgroup takes."""
        return sum(array.nbytes for array in self.shared)
