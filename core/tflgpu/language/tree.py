"""The statements of a kernel.

Expressions are those of `tflgpu.language.expressions`, and can be had from here too, as can the
kernel that holds the statements.

Statements are immutable, as expressions are. What they mean is defined by the NumPy interpreter
(`tflgpu.language.interpreter`); one that decides about no others says it itself (`Stmt.run`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tflgpu.ir.dtypes import Array
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.expressions import (
    ARITHMETIC,
    BITWISE,
    COMPARE,
    LOGICAL,
    Binary,
    Bitcast,
    Builtin,
    Call,
    Cast,
    Const,
    Expr,
    Lane,
    Load,
    Name,
    Number,
    Operand,
    Select,
    SharedLoad,
    Splat,
    Unary,
    Vec,
    combine_operands_with,
)
from tflgpu.language.kernel import Kernel, Stmt
from tflgpu.language.make import binary
from tflgpu.language.types import Scalar
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.invocations import Invocations

__all__ = [
    "ARITHMETIC",
    "BITWISE",
    "COMPARE",
    "LOGICAL",
    "Assign",
    "Barrier",
    "Binary",
    "Bitcast",
    "Break",
    "Builtin",
    "Call",
    "Cast",
    "Const",
    "Expr",
    "For",
    "If",
    "Kernel",
    "KernelBuffer",
    "Lane",
    "Let",
    "Load",
    "Name",
    "Number",
    "Operand",
    "Return",
    "Select",
    "SharedArray",
    "SharedLoad",
    "SharedStore",
    "Splat",
    "Stmt",
    "Store",
    "Unary",
    "Var",
    "Vec",
]

combine_operands_with(binary)


@frozen(eq=False)
class Let(Stmt):
    """Name a value that does not change."""

    ident: str
    value: Expr

    @property
    def declares(self) -> tuple[str, ...]:
        """The name."""
        return (self.ident,)


@frozen(eq=False)
class Var(Stmt):
    """Declare a variable with its first value."""

    ident: str
    value: Expr

    @property
    def declares(self) -> tuple[str, ...]:
        """The variable."""
        return (self.ident,)


@frozen(eq=False)
class Assign(Stmt):
    """Set a variable."""

    target: Name
    value: Expr


@frozen(eq=False)
class Store(Stmt):
    """Write element ``index`` of a buffer (lane ``index`` with ``scalar``).

    The value's lanes are the buffer's; f32 into an f16 buffer is rounded as by a `Cast`, i32 into
    a storage-only integer buffer must be in its range.
    """

    buffer: KernelBuffer
    index: Expr
    value: Expr
    scalar: bool = False

    def problem(self, kernel: Kernel) -> str | None:
        """A buffer that cannot be written, or a value of another type."""
        buffer, given = self.buffer, self.value.type
        if buffer not in kernel.buffers or buffer.access == "read":
            return f"store to {buffer.name}, which is not a writable buffer of it"
        want = buffer.value_type.with_width(1 if self.scalar else buffer.width)
        narrows = want.scalar is Scalar.F16 and given == want.with_scalar(Scalar.F32)
        if given != want and not narrows:
            return f"{given} stored in {buffer.name} of {want}"
        return None

    def run(self, here: Invocations, *values: Array) -> None:
        """Write one element for each invocation."""
        index, value = map(here.each, values)
        here.memory[self.buffer.name].store(index, value, self.scalar, here.who)


@frozen(eq=False)
class SharedStore(Stmt):
    """Write element ``index`` of a shared array."""

    array: SharedArray
    index: Expr
    value: Expr

    def problem(self, kernel: Kernel) -> str | None:
        """An array that is not there, or a value of another type."""
        array, given = self.array, self.value.type
        if array not in kernel.shared:
            return f"store to shared array {array.name}, which is not one of it"
        if given != array.type:
            return f"{given} stored in {array.name} of {array.type}"
        return None

    def run(self, here: Invocations, *values: Array) -> None:
        """Write one element for each invocation."""
        index, value = map(here.each, values)
        here.shared[self.array.name].store(index, value, here.group, here.who)


@frozen(eq=False)
class If(Stmt):
    """``then`` where ``cond`` holds, else ``orelse``."""

    cond: Expr
    then: tuple[Stmt, ...]
    orelse: tuple[Stmt, ...] = ()


@frozen(eq=False)
class For(Stmt):
    """``index`` runs from ``start`` while it is below ``stop``, by ``step`` (> 0).

    The bounds are values that do not change while the loop runs, so it does not matter whether
    ``stop`` is computed once or every time round. ``unroll`` is a hint to the driver: to write the
    body out for each round, or not to (False), since code is fetched before it runs.
    """

    index: Name
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]
    unroll: bool | None = None

    @property
    def declares(self) -> tuple[str, ...]:
        """The index."""
        return (self.index.ident,)


@frozen(eq=False)
class Break(Stmt):
    """Leave the innermost loop."""


@frozen(eq=False)
class Return(Stmt):
    """This invocation is done; no barrier may follow."""


@frozen(eq=False)
class Barrier(Stmt):
    """Every invocation of the workgroup arrives, then all see each other's shared writes."""

    collective: ClassVar[str] = "barrier"

    def run(self, here: Invocations, *values: Array) -> None:
        """Forget who touched shared memory before."""
        arrived = here.arrived("a barrier")
        for array in here.shared.values():
            array.barrier(arrived)
