"""The base of the printers of C-like shading languages (OpenCL C, WGSL).

`Printer` walks a kernel and lays out statements, names, precedence and shared sub-expressions,
which these languages have in common; where languages differ, a dialect overrides one small method.
The method for a class of nodes has its name (`load`, `shared_load`) and gets the node and the code
of its operands. The text depends on nothing but the kernel, so it can key a cache.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from tflgpu.language.caps import Features
from tflgpu.language.code import (
    ADD,
    ATOM,
    UNARY,
    Code,
    Names,
    infix,
)
from tflgpu.language.matrix import MATRIX_STATEMENTS, MatrixStmt
from tflgpu.language.needs import needs_of
from tflgpu.language.node_writer import NodeWriter
from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Binary,
    Bitcast,
    Break,
    Builtin,
    Call,
    Cast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Load,
    Name,
    Return,
    Select,
    SharedArray,
    SharedLoad,
    SharedStore,
    Splat,
    Stmt,
    Store,
    Unary,
    Var,
    Vec,
)
from tflgpu.language.types import Scalar, Type
from tflgpu.language.walk import statements, walk
from tflgpu.language.words import is_reserved

_MAX_DEPTH = 16  # operators nested in one line before a temporary is made

#: The methods that write what is not one line of operands.
_WRITERS: dict[type[Stmt], str] = {
    Let: "_let",
    Var: "_var",
    Assign: "_assign",
    If: "_if",
    For: "_for",
    Break: "_break",
    Return: "_return",
    **dict.fromkeys(MATRIX_STATEMENTS, "_matrix_statement"),
}


class Printer(NodeWriter):
    """Prints one kernel for a device that has some features. Make one for each kernel; call
    `source` once."""

    #: The language's names of functions, where they are others than the kernel language's.
    function_names: ClassVar[Mapping[str, str]] = {}
    #: The lines before a loop that is to be unrolled, and before one that is not to be.
    unroll_hint, loop_hint = "", ""

    def __init__(self, kernel: Kernel, has: Features) -> None:
        self.kernel = kernel
        self.has = has
        self.needs = needs_of(kernel)
        self.helpers: set[str] = set()  # prelude functions that the body turned out to use
        self._lines: list[str] = []
        self._depth = 0
        self._leaves: dict[
            object, Code
        ] = {}  # names and literals, of which most expressions are made
        self._codes: dict[int, Code] = {}  # of the current statement, by id of the expression
        self._temporaries: set[int] = set()
        idents = [b.name for b in kernel.buffers] + [a.name for a in kernel.shared] + [kernel.name]
        for stmt in statements(kernel.body):
            idents += stmt.declares
        self.names = Names(idents, self.is_reserved)
        self._handlers: dict[type[Expr], Callable[..., Code]] = {}

    # What a dialect has to say

    @classmethod
    def is_reserved(cls, ident: str) -> bool:
        """Whether a kernel's own name must not be this."""
        return is_reserved(ident)

    def type_name(self, type: Type) -> str:
        """How a value's type is written."""
        raise NotImplementedError

    def prelude(self) -> list[str]:
        """Lines before the kernel: extensions, and the functions named in ``helpers``."""
        raise NotImplementedError

    def open_kernel(self) -> list[str]:
        """Everything up to the opening brace."""
        raise NotImplementedError

    def declare(self, ident: str, type: Type, value: str, mutable: bool) -> str:
        """A let or a variable."""
        raise NotImplementedError

    def barrier(self, stmt: Barrier) -> str:
        """A barrier with its memory fence."""
        raise NotImplementedError

    def float_literal(self, value: float, scalar: Scalar) -> Code:
        """A finite or special float."""
        raise NotImplementedError

    def builtin(self, expr: Builtin) -> Code:
        """An invocation's id."""
        raise NotImplementedError

    def call(self, expr: Call, *args: Code) -> Code:
        """A function."""
        raise NotImplementedError

    def min_max(self, expr: Binary, a: Code, b: Code) -> Code:
        """The smaller or the larger."""
        raise NotImplementedError

    def select(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        """``a`` where ``cond`` holds, else ``b``."""
        raise NotImplementedError

    def cast(self, expr: Cast, x: Code) -> Code:
        """A value conversion."""
        raise NotImplementedError

    def bitcast(self, expr: Bitcast, x: Code) -> Code:
        """Bits read as another type."""
        raise NotImplementedError

    def load(self, expr: Load, index: Code) -> Code:
        """A buffer element or lane."""
        raise NotImplementedError

    def store(self, stmt: Store, index: Code, value: Code) -> str:
        """Write a buffer element or lane."""
        raise NotImplementedError

    def matrix(self, stmt: MatrixStmt, *operands: Code) -> list[str]:
        """A matrix statement, in languages that can have them."""
        raise NotImplementedError

    def shuffle_word(self, value: Code, type: Type, mask: int) -> Code:
        """The value of 32 bits a lane that the neighbour has, in languages that can have it."""
        raise NotImplementedError

    # What most of them share

    def argument(self, x: Code) -> str:
        """An argument of a function."""
        return x.text

    def function_of(self, name: str, *args: Code) -> Code:
        """A call of a function."""
        return Code(f"{name}({', '.join(map(self.argument, args))})")

    def helper(self, name: str, *args: Code) -> Code:
        """A call of a function that `prelude` writes."""
        self.helpers.add(name)
        return self.function_of(name, *args)

    def vec(self, expr: Vec, *parts: Code) -> Code:
        """A vector from scalars."""
        return self.function_of(self.type_name(expr.type), *parts)

    def splat(self, expr: Splat, x: Code) -> Code:
        """A vector from one scalar."""
        return self.function_of(self.type_name(expr.type), x)

    def converted(self, source: Type, target: Type, x: Code) -> Code:
        """A value as another type that has all its values, or as the language itself converts
        it."""
        return self.function_of(self.type_name(target), x)

    def declare_shared(self, array: SharedArray) -> str:
        """Declare a shared array inside the kernel; "" where `open_kernel` does it."""
        return ""

    def for_header(self, stmt: For, index: str, start: Code, stop: Code) -> list[str]:
        """Everything of a loop up to the opening brace."""
        step = f"{index}++" if stmt.step == 1 else f"{index} += {stmt.step}"
        first = self.declare(index, stmt.index.type, start.text, True)
        hint = {None: "", True: self.unroll_hint, False: self.loop_hint}[stmt.unroll]
        return [*([hint] if hint else []), f"for ({first} {index} < {stop.at(ADD)}; {step}) {{"]

    def subgroup_shuffle_xor(self, stmt: SubgroupShuffleXor, value: Code) -> str:
        """Name what a shuffle gives. APIs promise it of words only."""
        kind = stmt.type
        if kind.scalar is not Scalar.F16:
            found = self.shuffle_word(value, kind, stmt.mask)
        else:
            word = kind.with_scalar(Scalar.F32)
            found = self.shuffle_word(self.converted(kind, word, value), word, stmt.mask)
            found = self.converted(word, kind, found)
        return self.declare(self.names[stmt.ident], kind, found.text, False)

    def name(self, expr: Name) -> Code:
        """A let, variable or index."""
        ident = expr.ident
        found = self._leaves.get(ident)
        if found is None:
            found = self._leaves[ident] = Code(self.names[ident])
        return found

    def const(self, expr: Const) -> Code:
        """A literal."""
        # 0.0 and -0.0 are equal, and are two literals.
        key = (expr.type.text, expr.value or str(expr.value))
        found = self._leaves.get(key)
        if found is None:
            found = self._leaves[key] = self._literal(expr)
        return found

    def _literal(self, expr: Const) -> Code:
        scalar = self.scalar_literal(expr.type.scalar, expr.value)
        if expr.type.width == 1:
            return scalar
        return self.splat(Splat(expr.type, Const(expr.type.with_width(1), expr.value)), scalar)

    def scalar_literal(self, scalar: Scalar, value: Any) -> Code:
        """A literal of one lane."""
        if scalar.is_float:
            return self.float_literal(float(value), scalar)
        if scalar is Scalar.BOOL:
            return Code("true" if value else "false")
        if scalar is Scalar.U32:
            return Code(f"{int(value) % 2**32}u")
        if value == -(2**31):  # its absolute value is no literal
            return Code("-2147483647 - 1", ADD)
        return Code(str(int(value)), ATOM if value >= 0 else UNARY)

    def unary(self, expr: Unary, x: Code) -> Code:
        """Negation, arithmetic or logical."""
        return Code(("-" if expr.op == "neg" else "!") + x.atom, UNARY)

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        """An operator."""
        if expr.op in ("min", "max"):
            return self.min_max(expr, a, b)
        if expr.op in ("land", "lor") and expr.type.width > 1:
            # These languages join vectors of truth values by the operators of bits.
            return self.infix("and" if expr.op == "land" else "or", a, b)
        return self.infix(expr.op, a, b)

    def unsplat(self, expr: Binary, a: Code, b: Code) -> tuple[Code, Code]:
        """The operands of an operator, which spreads a scalar over the lanes of its other one."""
        if self._is_splat(expr.left) and self._is_splat(expr.right):
            return a, b
        return self._unsplat(expr.left, a), self._unsplat(expr.right, b)

    def _is_splat(self, expr: Expr) -> bool:
        splat = isinstance(expr, Splat) and not self.has_temporary(expr)
        return splat or (isinstance(expr, Const) and expr.type.width > 1)

    def _unsplat(self, expr: Expr, code: Code) -> Code:
        if not self._is_splat(expr):
            return code
        if isinstance(expr, Splat):
            return self.code_of(expr.operand)
        assert isinstance(expr, Const)
        return self.scalar_literal(expr.type.scalar, expr.value)

    def infix(self, op: str, a: Code, b: Code) -> Code:
        """``a op b``."""
        return infix(op, a, b)

    def lane(self, expr: Lane, x: Code) -> Code:
        """One lane of a vector."""
        return Code(f"{x.atom}.{'xyzw'[expr.index]}")

    def shared_load(self, expr: SharedLoad, index: Code) -> Code:
        """An element of a shared array."""
        return Code(f"{self.names[expr.array.name]}[{index.text}]")

    def shared_store(self, stmt: SharedStore, index: Code, value: Code) -> str:
        """Write an element of a shared array."""
        return f"{self.names[stmt.array.name]}[{index.text}] = {value.text};"

    # Structure

    def source(self) -> str:
        """The whole text.

        Raises:
            KernelError: the kernel needs what the device lacks, or the dialect lacks a method.
        """
        problem = self.needs.problem(self.has)
        if problem is not None:
            raise self.fail(problem)
        try:
            opening = self.open_kernel()
            body = self.lines_of(self.kernel.body)
            lines = [*self.prelude(), *opening, *body, "}"]
        except NotImplementedError as error:
            lacks = traceback.extract_tb(error.__traceback__)[-1].name
            raise self.fail(f"{type(self).__name__} has no method {lacks}") from error
        return "\n".join(lines) + "\n"

    def lines_of(self, body: Sequence[Stmt]) -> list[str]:
        """The inside of a function."""
        self._depth = 1
        for array in self.kernel.shared:
            self._line(self.declare_shared(array))
        self._block(body)
        # Methods of this printer's own, which would keep the kernel until Python's collector comes
        # by.
        self._handlers.clear()
        return self._lines

    def code_of(self, expr: Expr) -> Code:
        """The code of an expression under the one being printed."""
        return self._codes[id(expr)]

    def has_temporary(self, expr: Expr) -> bool:
        """Whether an expression under the one being printed was given a name of its own."""
        return id(expr) in self._temporaries

    def _line(self, text: str) -> None:
        if text:
            self._lines.append("    " * self._depth + text)

    def _block(self, body: Sequence[Stmt]) -> None:
        for stmt in body:
            self._statement(stmt)

    def _nested(self, body: Sequence[Stmt]) -> None:
        self._depth += 1
        self._block(body)
        self._depth -= 1

    def _statement(self, stmt: Stmt) -> None:
        writer, operands = _WRITERS.get(type(stmt)), self._prepare(stmt)
        if writer is None:
            self._line(self.method_for(stmt)(stmt, *operands))
        else:
            getattr(self, writer)(stmt, *operands)

    def _break(self, stmt: Break) -> None:
        self._line("break;")

    def _return(self, stmt: Return) -> None:
        self._line("return;")

    def _let(self, stmt: Let, value: Code) -> None:
        self._line(self.declare(self.names[stmt.ident], stmt.value.type, value.text, False))

    def _var(self, stmt: Var, value: Code) -> None:
        self._line(self.declare(self.names[stmt.ident], stmt.value.type, value.text, True))

    def _assign(self, stmt: Assign, target: Code, value: Code) -> None:
        self._line(f"{target.text} = {value.text};")

    def _if(self, stmt: If, cond: Code) -> None:
        self._line(f"if ({cond.text}) {{")
        self._nested(stmt.then)
        if stmt.orelse:
            self._line("} else {")
            self._nested(stmt.orelse)
        self._line("}")

    def _for(self, stmt: For, start: Code, stop: Code) -> None:
        for line in self.for_header(stmt, self.names[stmt.index.ident], start, stop):
            self._line(line)
        self._nested(stmt.body)
        self._line("}")

    def _matrix_statement(self, stmt: MatrixStmt, *operands: Code) -> None:
        for line in self.matrix(stmt, *operands):
            self._line(line)

    def _prepare(self, stmt: Stmt) -> list[Code]:
        """Print a statement's expressions. What several operators share, and what is nested too
        deep to read, gets a temporary before the statement: nothing in the language is
        evaluated lazily, so that is where it would be computed anyway."""
        order, parts_of, roots, shared = walk(stmt)
        codes: list[Code] = []
        by_id: dict[int, Code] = {}
        self._codes, self._temporaries = by_id, set()
        handlers, code_at = self._handlers, codes.__getitem__
        is_deep = len(order) >= _MAX_DEPTH  # or may be
        depths: list[int] = []
        for expr, parts in zip(order, parts_of, strict=True):
            kind = type(expr)
            handler = handlers.get(kind)
            if handler is None:
                handler = handlers[kind] = self.method_for(expr)
            code = handler(expr, *map(code_at, parts))
            if is_deep:
                depths.append(1 + max([depths[part] for part in parts], default=0))
            if parts and (is_deep or shared):
                place = len(codes)
                if (place in shared and not _is_trivial(expr)) or (
                    is_deep and depths[place] >= _MAX_DEPTH and place not in roots
                ):
                    ident = self.names.fresh("e")
                    self._line(self.declare(ident, expr.type, code.text, False))
                    code = Code(ident)
                    self._temporaries.add(id(expr))
                    if is_deep:
                        depths[place] = 0
            codes.append(code)
            by_id[id(expr)] = code
        return [codes[root] for root in roots]


def _is_trivial(expr: Expr) -> bool:
    """Whether repeating it costs and hides nothing."""
    if isinstance(expr, (Lane, Splat, Unary)):
        return isinstance(expr.operand, (Name, Const))
    return isinstance(expr, (Const, Name, Builtin))
