"""The kernel tree: statements, and the kernel that holds them. Its expressions are those of
`tflgpu.language.expressions`, and can be had from here too.

Statements are immutable, as expressions are. What they mean is defined by the NumPy interpreter
(`tflgpu.language.interpreter`); one that decides about no others says it itself (`Stmt.run`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.expressions import (
    ARITHMETIC,
    BITWISE,
    COMPARE,
    LOGICAL,
    Binary,
    Bitcast,
    Buffer,
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
    Shared,
    SharedLoad,
    Splat,
    Unary,
    Vec,
    combine_operands_with,
)
from tflgpu.language.types import Scalar
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.running import Running

#: Raise it when a tree comes to mean something else: it is in the key of what is kept on disk.
LANGUAGE_VERSION = 3

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
    "Buffer",
    "Builtin",
    "Call",
    "Cast",
    "Const",
    "Expr",
    "For",
    "If",
    "Kernel",
    "Lane",
    "Let",
    "Load",
    "Name",
    "Number",
    "Operand",
    "Return",
    "Select",
    "Shared",
    "SharedLoad",
    "SharedStore",
    "Splat",
    "Stmt",
    "Store",
    "Unary",
    "Var",
    "Vec",
    "combine_operands_with",
]


class Stmt:
    """Base of all statements.

    A class of statements is an attrs class whose operands are the fields annotated ``Expr``. It
    says here what the rest of the language asks of it; a printer's method for it has its name
    (`tflgpu.language.node_writer.method_name`). Those that hold blocks, leave one, or set a
    variable are known to the checks, the interpreter and the printers themselves.
    """

    #: Where `tflgpu.language.walk` keeps the way through its expressions.
    __slots__ = ("walked",)
    walked: Any
    #: What messages call it, where all invocations of a workgroup must get to it together, or "".
    collective: ClassVar[str] = ""

    @property
    def declares(self) -> tuple[str, ...]:
        """The names that it defines."""
        return ()

    def problem(self, kernel: Kernel) -> str | None:
        """What is wrong with it in a kernel, wherever it stands there; None where that is
        nothing."""
        return None

    def run(self, here: Running, *values: Array) -> None:
        """Do what it does, for the invocations that get to it.

        Args:
            here: These invocations, what names stand for, and memory.
            values: Its operands' values: [n] or [n, lanes], 1 for n where all have the same.

        Raises:
            KernelError: that would be undefined on a device.
        """
        raise KernelError(f"statement {type(self).__name__} does not say what it does")


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

    buffer: Buffer
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

    def run(self, here: Running, *values: Array) -> None:
        """Write one element for each invocation."""
        index, value = map(here.each, values)
        here.memory[self.buffer.name].store(index, value, self.scalar, here.who)


@frozen(eq=False)
class SharedStore(Stmt):
    """Write element ``index`` of a shared array."""

    array: Shared
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

    def run(self, here: Running, *values: Array) -> None:
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
    ``stop`` is computed once or every time round.
    """

    index: Name
    start: Expr
    stop: Expr
    step: int
    body: tuple[Stmt, ...]
    unroll: bool = False

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

    def run(self, here: Running, *values: Array) -> None:
        """Forget who touched shared memory before."""
        arrived = here.arrived("a barrier")
        for array in here.shared.values():
            array.barrier(arrived)


@frozen(eq=False)
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
