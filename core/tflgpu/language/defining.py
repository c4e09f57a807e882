"""The base of printers of C-like languages that lack functions, leave results open, let an
implementation compute as if there were no NaN, or fold constants by rules of their own: languages
of graphics (WGSL).

What is missing is printed as functions, from the kernel language's own definitions
(`tflgpu.language.definitions`, `guards`, `exact`), each for one type and number of lanes. What a
kernel computes of literals alone is printed as a literal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.caps import Features
from tflgpu.language.code import UNARY, Code
from tflgpu.language.definitions import DEFINED, Definition, definition
from tflgpu.language.exact import EXACT, exact
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.guards import GUARDS, ORDERED, guard
from tflgpu.language.numbers import UNDONE, extreme_of, hidden_sides, never_nan
from tflgpu.language.printer import Printer
from tflgpu.language.signs import not_negative
from tflgpu.language.tree import Binary, Call, Cast, Expr, Kernel, Let, Name, Stmt, Unary
from tflgpu.language.types import Scalar, Type
from tflgpu.language.walk import statements, walk


def rounded_names(kernel: Kernel) -> frozenset[str]:
    """The lets whose value is f16 so that it is rounded: it was f32, and will be again. A driver
    may compute such a pair of conversions as none (NVIDIA's does); then other means round."""
    return frozenset(
        stmt.ident
        for stmt in statements(kernel.body)
        if isinstance(stmt, Let) and is_rounded(stmt.value, frozenset())
    )


def is_rounded(expr: Expr, names: frozenset[str]) -> bool:
    """Whether an expression is f16 and was f32; ``names`` are the kernel's `rounded_names`."""
    if isinstance(expr, Name):
        return expr.ident in names
    return (
        isinstance(expr, Cast)
        and expr.type.scalar is Scalar.F16
        and expr.operand.type.scalar is Scalar.F32
    )


def constant_values(kernel: Kernel) -> dict[int, Array]:
    """The values of all expressions that depend on nothing: [1] or [1, lanes], by id."""
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for stmt in statements(kernel.body):
            way = walk(stmt)
            for expr, parts in zip(way.order, way.parts, strict=True):
                if id(expr) in values:  # of another statement too
                    continue
                operands = [way.order[part] for part in parts]
                known = [values[id(each)] for each in operands if id(each) in values]
                if len(known) == len(parts) and not expr.reads:
                    values[id(expr)] = expr.evaluate(*known)
    return values


#: The first parts of the names of all functions that a text may have; the others are numbers of
#: lanes.
_STEMS = frozenset(DEFINED) | frozenset(
    f"{op}_{scalar}" for op in (*GUARDS, *EXACT) for scalar in ("f32", "f16", "i32")
)
_OWN_NAMES = re.compile(rf"({'|'.join(sorted(_STEMS))})_\d")


def definition_of(name: str) -> Definition:
    """That of a function's name: of one of the language's and a number of lanes, or of an
    operation, the lanes' type and their number."""
    stem, width = name.rsplit("_", 1)
    if stem in DEFINED:
        return definition(stem, int(width))
    op, _, scalar = stem.rpartition("_")
    return (guard if op in GUARDS else exact)(op, Type(Scalar(scalar), int(width)))


@cache
def lines_of_function(
    printer: Callable[..., DefiningPrinter], name: str, has: Features
) -> tuple[list[str], set[str]]:
    """The text of `definition_of` a name as a class of printers has it, and the functions that it
    uses."""
    found = definition_of(name)
    made = printer(found.as_kernel(name), has)
    return made.function(name, found), made.helpers


class DefiningPrinter(Printer):
    """Prints one kernel, or, by `function`, the one function that it was made for."""

    def __init__(self, kernel: Kernel, has: Features) -> None:
        super().__init__(kernel, has)
        #: Within a definition operands are taken for numbers, and functions for the API's own.
        self._defines = False
        self.constants = constant_values(kernel)
        self._not_negative = not_negative(kernel)
        self._rounded = rounded_names(kernel)

    @classmethod
    def is_reserved(cls, ident: str) -> bool:
        """Whether a kernel's own name must not be this."""
        return _OWN_NAMES.fullmatch(ident) is not None or super().is_reserved(ident)

    # What a dialect has to say

    def open_function(self, name: str, parameters: str, result: Type) -> str:
        """A function's line, up to the opening brace."""
        raise NotImplementedError

    def parameter(self, ident: str, type: Type) -> str:
        """One of its parameters."""
        raise NotImplementedError

    def hidden(self, type: Type, x: Code) -> Code:
        """A float as one of which a compiler knows nothing, where it could conclude too much
        (`tflgpu.language.numbers.hidden_sides`). Here it is as it is, for languages whose compilers
        compute what they are told."""
        return x

    # Functions

    def functions(self, others: Collection[str]) -> list[str]:
        """All that was used, and what these use in turn, but for helpers of other kinds."""
        lines: list[str] = []
        printed = set(others)
        printer: Callable[..., DefiningPrinter] = type(self)
        while rest := sorted(self.helpers - printed):
            for name in rest:
                text, used = lines_of_function(printer, name, self.has)
                lines += text
                self.helpers |= used
            printed.update(rest)
        return lines

    def function(self, name: str, found: Definition) -> list[str]:
        """The text of a definition."""
        self._defines = True
        lines = self.lines_of(found.body)
        parameters = (self.parameter(self.names[p.ident], p.type) for p in found.parameters)
        result = self.names[found.body[-1].ident]
        opening = self.open_function(name, ", ".join(parameters), found.result)
        return [opening, *lines, f"    return {result};", "}"]

    def written(self, stem: str, width: int, *args: Code) -> Code:
        """A call of such a function."""
        return self.helper(f"{stem}_{width}", *args)

    # Literals

    def literal(self, type: Type, value: Array) -> Code:
        """A value that is known: [1] or [1, lanes]."""
        lanes = [self.scalar_literal(type.scalar, lane) for lane in value.reshape(-1).tolist()]
        if type.width == 1:
            return lanes[0]
        # One literal is meant for every lane.
        differ = len({lane.text for lane in lanes}) > 1
        return self.function_of(self.type_name(type), *lanes[: None if differ else 1])

    def method_for(self, node: Expr | Stmt) -> Callable[..., Any]:
        """The method for a class of nodes; what is computed of literals alone becomes a literal."""
        method = super().method_for(node)
        if isinstance(node, Stmt):
            return method

        def print_value(expr: Expr, *args: Code) -> Code:
            value = self.constants.get(id(expr))
            return method(expr, *args) if value is None else self.literal(expr.type, value)

        return print_value

    def zero(self, type: Type) -> Code:
        """That of a type, in every lane."""
        return self.literal(type, np.zeros(1, type.scalar.numpy))

    # Expressions

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        """An operator, or what stands in for it."""
        kind = expr.left.type
        if expr.op == "rem" and kind.scalar is Scalar.I32 and not self._positive(expr):
            return self.written("rem_i32", kind.width, a, b)
        if self._defines:
            if expr.op in ("land", "lor"):
                return self.infix("and" if expr.op == "land" else "or", a, b)  # no branches
        elif kind.is_float:
            if expr.op in ORDERED and not (never_nan(expr.left) and never_nan(expr.right)):
                return self.written(f"{expr.op}_{kind.scalar.value}", kind.width, a, b)
            left, right = hidden_sides(expr)
            if left or right:
                a, b = self.hidden(kind, a) if left else a, self.hidden(kind, b) if right else b
                return super().binary(expr, a, b)
        if expr.op in ("add", "sub", "mul", "div", "rem"):
            a, b = self.unsplat(expr, a, b)
        return super().binary(expr, a, b)

    def unary(self, expr: Unary, x: Code) -> Code:
        """Negation, arithmetic or logical."""
        found = super().unary(expr, x)
        return self.hidden(expr.type, found) if self._may_hide(expr) else found

    def _may_hide(self, expr: Expr) -> bool:
        return expr.type.is_float and not self._defines

    def _positive(self, expr: Binary) -> bool:
        """Whether no operand is negative: wgpu makes of ``%`` an instruction that Vulkan leaves
        undefined where one is."""
        return {id(expr.left), id(expr.right)} <= self._not_negative

    def min_max(self, expr: Binary, a: Code, b: Code) -> Code:
        """The smaller or the larger."""
        if not expr.type.is_float or self._defines:
            return self.function_of(expr.op, a, b)
        kind, width = expr.type.scalar.value, expr.type.width
        op, x, is_turned = extreme_of(expr)
        if is_turned:
            a, b = b, a
        if op == expr.op:
            return self.written(f"{op}_{kind}", width, a, b)
        if (
            isinstance(x, Binary)
            and x.op in ("min", "max")
            and x.op != expr.op
            and never_nan(x.right)
            and not self.has_temporary(x)
            and id(x) not in self.constants
        ):  # one question for both limits
            inner, limit = self.code_of(x.left), self.code_of(x.right)
            return self.written(f"{x.op}_{expr.op}_{kind}", width, inner, limit, b)
        return self.written(f"{op}_{kind}", width, a, b)

    def call(self, expr: Call, *args: Code) -> Code:
        """A function."""
        found = self._call(expr, *args)
        return (
            self.hidden(expr.type, found) if expr.fn in UNDONE and self._may_hide(expr) else found
        )

    def _call(self, expr: Call, *args: Code) -> Code:
        kind = expr.args[0].type
        if kind.is_float and (expr.fn == "isnan" or (expr.fn in GUARDS and not self._defines)):
            return self.written(f"{expr.fn}_{kind.scalar.value}", kind.width, *args)
        if kind.scalar is Scalar.F16 and not FUNCTIONS[expr.fn].in_half:
            wide = kind.with_scalar(Scalar.F32)
            found = self._function(expr.fn, wide, *(self.converted(kind, wide, a) for a in args))
            return self.converted(expr.type.with_scalar(Scalar.F32), expr.type, found)
        return self._function(expr.fn, kind, *args)

    def _function(self, fn: str, kind: Type, *args: Code) -> Code:
        if fn in DEFINED and not self._defines:
            return self.written(fn, kind.width, *args)
        return self.function_of(self.function_names.get(fn, fn), *args)

    def cast(self, expr: Cast, x: Code) -> Code:
        """A value conversion."""
        source, target = expr.operand.type, expr.type
        if target.scalar is Scalar.BOOL:
            if source.is_float:  # a NaN is not zero
                return Code("!" + self.infix("eq", x, self.zero(source)).atom, UNARY)
            return self.infix("ne", x, self.zero(source))
        wide = source.with_scalar(Scalar.F32)
        if source.is_float and not target.is_float:
            x = x if source == wide else self.converted(source, wide, x)
            if self._defines:
                return self.converted(wide, target, x)
            return self.written(f"to_{target.scalar.value}_f32", target.width, x)
        if target.scalar is Scalar.F16 and not source.is_float:
            x, source = self.converted(source, wide, x), wide  # whose rounding is defined
        wide_again = target.scalar is Scalar.F32 and is_rounded(expr.operand, self._rounded)
        x = self.converted(source, target, x)
        return self.written("to_f16_and_back_f32", target.width, x) if wide_again else x
