"""Variables of a kernel that is being written, and what expressions have read of them.

A tree has no such thing as an old value: a `Name` gives what its variable has when the statement
around it runs. Python's names make it look otherwise:

    old = x + 0.0
    k.set(x, x * 10.0)
    k.store(dst, i, old)  # would store the new value

So an expression may be used until a variable that it reads is set, and in the block in which it was
made. Memory that a kernel reads and writes is treated alike: a store to it, or a barrier behind
which there is what others have stored, gives it another value. A variable that an `if` or a loop
sets has another value behind it; in an ``else`` it has the one that it had before the `if`; and in
a loop that sets it, nothing that read it before the loop is used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tflgpu.errors import KernelError
from tflgpu.language.author import Place, here, shown
from tflgpu.language.expressions import Expr, Name, Operand

_INSTEAD = "Name the old value before: old = k.let(...)"


class Writer(Protocol):
    """What writes a kernel's statements: a builder."""

    reads: Reads

    def set(self, target: Variable, value: Operand) -> None:
        """Assign a variable."""


def _in_place(combine: Callable[[Any, Any], Any]) -> Callable[[Variable, Operand], Variable]:
    def method(self: Variable, other: Operand) -> Variable:
        self.k.set(self, combine(self, other))
        return self

    return method


class Variable(Expr):
    """What `Builder.var` gives. ``x += 1`` writes the statement ``k.set(x, x + 1)``.

    It is no node of the tree: an expression that is made with it has a `Name` in its place, which
    reads the variable where the expression is used. `Reads` sees to it that this is
    the value that the variable had where the expression was made.
    """

    def __init__(self, name: Name, k: Writer) -> None:
        self.type, self.ident, self.k = name.type, name.ident, k
        #: What a statement that sets it names.
        self.target = name

    def read(self) -> Name:
        """The value that it has now."""
        return self.k.reads.read(self)

    def lane(self, index: int) -> Expr:
        """One lane of the value that it has now."""
        return self.read().lane(index)

    @property
    def lanes(self) -> tuple[Expr, ...]:
        """All lanes of the value that it has now."""
        return self.read().lanes

    def __neg__(self) -> Expr:
        return -self.read()

    def __invert__(self) -> Expr:
        return ~self.read()

    def __abs__(self) -> Expr:
        return abs(self.read())

    __iadd__ = _in_place(operator.add)
    __isub__ = _in_place(operator.sub)
    __imul__ = _in_place(operator.mul)
    __itruediv__ = _in_place(operator.truediv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __imod__ = _in_place(operator.mod)
    __iand__ = _in_place(operator.and_)
    __ior__ = _in_place(operator.or_)
    __ixor__ = _in_place(operator.xor)
    __ilshift__ = _in_place(operator.lshift)
    __irshift__ = _in_place(operator.rshift)


class _Block:
    """A block of statements: the kernel's body, or that of an `if` or of a loop.

    Attributes:
        parent: The block around it.
        is_loop: Whether it is a loop's.
        before: The variables that it sets, and the numbers of the values that they had before.
        used: In a loop: what it uses that was read before it, by variable, and where it does.
        last: The block that ended last in it.
    """

    __slots__ = ("before", "is_loop", "last", "parent", "used")

    def __init__(self, parent: _Block | None, is_loop: bool, before: dict[str, int]) -> None:
        self.parent, self.is_loop, self.before = parent, is_loop, before
        self.used: dict[str, tuple[_Read, Place]] = {}
        self.last: _Block | None = None


class _Read:
    """Which value of a variable a `Name` stands for, or which of some memory a load gives, and
    where it was made."""

    __slots__ = ("block", "expr", "ident", "place", "value")

    def __init__(self, expr: Expr, ident: str, value: int, block: _Block, place: Place) -> None:
        self.expr, self.ident = expr, ident
        self.value, self.block, self.place = value, block, place


class Reads:
    """What expressions of one kernel have read, and which values its variables have now."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._block = _Block(None, False, {})
        #: By variable: the number of its value, and where it was set last.
        self._values: dict[str, int] = {}
        self._set_at: dict[str, Place] = {}
        self._count = 0
        #: By the id of an expression, which is kept so that no other gets that.
        self.known: dict[int, _Read] = {}

    def read(self, variable: Variable) -> Name:
        """A name of the value that a variable has now."""
        name = Name(variable.type, variable.ident, True)
        self.load(name, variable.ident)
        return name

    def load(self, expr: Expr, ident: str) -> None:
        """``expr`` gives the value that memory, or a variable, has now."""
        value = self._values.get(ident, 0)
        self.known[id(expr)] = _Read(expr, ident, value, self._block, here())

    def set(self, ident: str) -> None:
        """A variable, or memory, gets another value here.

        Raises:
            KernelError: in a loop that uses what was read of it before the loop.
        """
        place = self._set_at[ident] = here()
        block: _Block | None = self._block
        while block is not None:
            if ident in block.used:
                read, used = block.used[ident]
                raise self._refusal(
                    read,
                    f"which is set at {shown(place)} in a loop: used in that loop, at "
                    f"{shown(used)}, it would give another value each time. {_INSTEAD}",
                )
            block = block.parent
        self._block.before.setdefault(ident, self._values.get(ident, 0))
        self._values[ident] = self._another()

    def check(self, expressions: Iterable[Expr]) -> None:
        """What a statement uses here, operands and all that they are made of.

        Raises:
            KernelError: a variable or memory that one of them reads has, or may have, another
                value by now.
        """
        # Every statement is looked at: the loop runs in C.
        for read in filter(None, map(self.known.get, map(id, expressions))):
            self._check(read)

    def _check(self, read: _Read) -> None:
        ident = read.ident
        if read.value != self._values.get(ident, 0):
            raise self._refusal(
                read,
                f"which was set at {shown(self._set_at[ident])}: used at {shown(here())}, it "
                f"would give the new value. {_INSTEAD}",
            )
        block = self._block
        while block is not read.block:
            if block.is_loop and ident not in block.used:
                block.used[ident] = read, here()
            if block.parent is None and type(read.expr) is not Name:
                return  # nothing was stored since
            if block.parent is None:
                raise self._refusal(
                    read,
                    f"inside an if or a loop, and is used behind that, at {shown(here())}. Where "
                    f"that is to change {ident}, write {ident} += ... or k.set",
                )
            block = block.parent

    def _refusal(self, read: _Read, why: str) -> KernelError:
        return KernelError(
            f"{self._kernel}: the expression made at {shown(read.place)} reads {read.ident}, {why}"
        )

    def enter(self, *, is_loop: bool = False, is_else: bool = False) -> None:
        """A block begins: that of an if or of a loop, or the one that runs instead of the last
        one."""
        outer = self._block
        before = dict(outer.last.before) if is_else and outer.last is not None else {}
        self._values.update(before)
        self._block = _Block(outer, is_loop, before)

    def leave(self) -> None:
        """The block ends."""
        block, outer = self._block, self._block.parent
        assert outer is not None
        for ident, value in block.before.items():
            outer.before.setdefault(ident, value)
            self._values[ident] = self._another()
        self._block, outer.last = outer, block
        block.parent = None  # neither waits for Python's collector

    def _another(self) -> int:
        self._count += 1
        return self._count
