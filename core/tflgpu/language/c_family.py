"""The base of printers of C's descendants (OpenCL C; CUDA's and Metal's languages are others):
types, numbers, choices, and f16.

Devices without arithmetic of f16 load and store it all the same. There an f16 value is only moved
about, and is held as the f32 that it equals; arithmetic on it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tflgpu.language.caps import Features
from tflgpu.language.code import ADD, ATOM, MUL, TERNARY, UNARY, Code, shortest
from tflgpu.language.matrix import (
    MatrixAdd,
    MatrixFill,
    MatrixLoad,
    MatrixMultiply,
    MatrixRole,
    MatrixStmt,
    lanes_of,
)
from tflgpu.language.overflow import made_of_data
from tflgpu.language.printer import Printer
from tflgpu.language.tree import Binary, Call, Cast, Const, Expr, Kernel, Select, SharedArray, Unary
from tflgpu.language.types import Scalar, Type, type_of

NAMES = {
    Scalar.F16: "half",
    Scalar.F32: "float",
    Scalar.I32: "int",
    Scalar.U32: "uint",
    Scalar.BOOL: "bool",
    Scalar.I8: "char",
    Scalar.U8: "uchar",
    Scalar.I16: "short",
}
#: The least number that rounds to infinity.
_OVERFLOW = {Scalar.F16: 65520.0, Scalar.F32: float.fromhex("0x1.ffffffp127")}


def float_number(value: float, scalar: Scalar) -> Code:
    """A float in the fewest digits that give it back, NaN and infinities by their macros. What
    overflows in ``scalar`` is infinite."""
    if math.isnan(value):
        return Code("NAN")
    if math.isinf(value) or abs(value) >= _OVERFLOW[scalar]:
        return Code("INFINITY") if value > 0 else Code("-INFINITY", UNARY)
    text = shortest(value, scalar) + "f"
    return Code(text, UNARY if text.startswith("-") else ATOM)


#: What overflows. (Shifts to the left do not, in OpenCL C.)
_OVERFLOWING = frozenset({"add", "sub", "mul"})


class CPrinter(Printer):
    """Prints one kernel. Functions of `half` values go through float, and sums and products of i32
    that may wrap around are those of unsigned numbers (`tflgpu.language.overflow`).

    Attributes:
        uses_half: The text has `half` values, and not only loads and stores of them.
    """

    def __init__(self, kernel: Kernel, has: Features) -> None:
        super().__init__(kernel, has)
        self.uses_half = False
        self._type_names: dict[str, str] = {}
        self._data = made_of_data(kernel)
        self._words: dict[
            int, Code
        ] = {}  # what became an i32 by `_wrapped`, by id of the expression

    # What a dialect has to say

    def vector_name(self, scalar: Scalar, width: int) -> str:
        """How a vector's type is written."""
        return f"{NAMES[scalar]}{width}"

    def select_lanes(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        """A choice for each lane."""
        raise NotImplementedError

    def whole_call(self, expr: Call, args: Sequence[Code]) -> Code:
        """A function of whole numbers."""
        raise NotImplementedError

    def float_call(self, fn: str, width: int, args: Sequence[Code]) -> Code:
        """A function of f32, ``isnan`` among them."""
        raise NotImplementedError

    def convert_words(self, source: Type, target: Type, x: Code) -> Code:
        """A conversion between types that are not f16."""
        raise NotImplementedError

    def convert_halves(self, source: Type, target: Type, x: Code) -> Code:
        """One of vectors, between f16 and f32."""
        raise NotImplementedError

    def shared_pointer(self, array: SharedArray, element: Scalar, index: str) -> str:
        """A pointer to an element of a shared array, seen as one of single lanes."""
        raise NotImplementedError

    # Types and numbers

    def type_name(self, type: Type) -> str:
        """How a value's type is written."""
        found = self._type_names.get(type.text)
        if found is None:
            found = self._type_names[type.text] = self._type_name(type)
        return found

    def _type_name(self, type: Type) -> str:
        scalar = type.scalar
        if self.is_half(type):
            self.uses_half = True
        elif scalar is Scalar.F16:
            scalar = Scalar.F32
        return NAMES[scalar] if type.width == 1 else self.vector_name(scalar, type.width)

    def float_literal(self, value: float, scalar: Scalar) -> Code:
        """A finite or special float."""
        code = float_number(value, scalar)
        if not self.is_half(type_of(scalar)):
            return code
        self.uses_half = True
        return Code(f"(half){code.atom}", UNARY)

    def declare(self, ident: str, type: Type, value: str, mutable: bool) -> str:
        """A let or a variable."""
        return f"{'' if mutable else 'const '}{self.type_name(type)} {ident} = {value};"

    def helper(self, name: str, *args: Code) -> Code:
        """A call of a function that `prelude` writes; those of halves say so in their name."""
        self.uses_half = self.uses_half or "half" in name
        return super().helper(name, *args)

    # Expressions

    def unary(self, expr: Unary, x: Code) -> Code:
        """Negation, arithmetic or logical."""
        if id(expr) not in self._data:
            return super().unary(expr, x)
        return self._wrapped(expr, Code("-" + self._word(expr.operand, x).atom, UNARY))

    def binary(self, expr: Binary, a: Code, b: Code) -> Code:
        """An operator."""
        if not self.wraps(expr):
            return super().binary(expr, a, b)
        sides = self._word(expr.left, a), self._word(expr.right, b)
        return self._wrapped(expr, self.infix(expr.op, *sides))

    def wraps(self, expr: Binary) -> bool:
        """Whether an operator is that of unsigned numbers, and takes both operands as they are."""
        return id(expr) in self._data and expr.op in _OVERFLOWING

    def _word(self, expr: Expr, code: Code) -> Code:
        """An i32 as the u32 of the same bits."""
        kind = expr.type.with_scalar(Scalar.U32)
        if isinstance(expr, Const):
            return self.const(Const(kind, expr.value))
        found = None if self.has_temporary(expr) else self._words.get(id(expr))
        return found or self.convert_words(expr.type, kind, code)

    def _wrapped(self, expr: Expr, word: Code) -> Code:
        """The i32 of the same bits as ``word``, which an operation around it may take as it is."""
        self._words[id(expr)] = word
        return self.convert_words(expr.type.with_scalar(Scalar.U32), expr.type, word)

    def select(self, expr: Select, cond: Code, a: Code, b: Code) -> Code:
        """``a`` where ``cond`` holds, else ``b``."""
        if expr.cond.type.width > 1:
            return self.select_lanes(expr, cond, a, b)
        parts = (each.at(TERNARY + 1) for each in (cond, a, b))
        return Code("{} ? {} : {}".format(*parts), TERNARY)

    def call(self, expr: Call, *args: Code) -> Code:
        """A function."""
        kind, fn = expr.args[0].type, expr.fn
        if not kind.is_float:
            return self.whole_call(expr, args)
        if not self.is_half(kind):
            return self.float_call(fn, kind.width, args)
        if fn == "fma":
            return self.infix("add", self.infix("mul", args[0], args[1]), args[2])
        wide = kind.with_scalar(Scalar.F32)
        found = self.float_call(fn, kind.width, [self.convert(kind, wide, a) for a in args])
        if not expr.type.is_float:
            return found
        return self.convert(expr.type.with_scalar(Scalar.F32), expr.type, found)

    def cast(self, expr: Cast, x: Code) -> Code:
        """A value conversion."""
        return self.convert(expr.operand.type, expr.type, x)

    def converted(self, source: Type, target: Type, x: Code) -> Code:
        """An f16 as f32, or back."""
        return self.convert(source, target, x) if self.has.f16_arithmetic else x

    def convert(self, source: Type, target: Type, x: Code) -> Code:
        """``x`` converted; f16 goes through f32."""
        a, b, wide = source.scalar, target.scalar, target.with_scalar(Scalar.F32)
        if Scalar.F16 not in (a, b):
            return self.convert_words(source, target, x)
        if b is Scalar.F16:
            if source != wide:
                x = self.convert_words(source, wide, x)
            return self._halves(wide, target, x) if self.has.f16_arithmetic else x
        if self.has.f16_arithmetic:
            x = self._halves(source, wide, x)
        return x if target == wide else self.convert_words(wide, target, x)

    def _halves(self, source: Type, target: Type, x: Code) -> Code:
        self.uses_half = True
        if target.width > 1:
            return self.convert_halves(source, target, x)
        return Code(f"({NAMES[target.scalar]}){x.atom}", UNARY)

    # Matrices

    def matrix(self, stmt: MatrixStmt, *operands: Code) -> list[str]:
        """A matrix statement as a call of one of the functions `matrix_fill`, `matrix_load_a`,
        `matrix_load_b`, both also with `_transposed`, `matrix_multiply`, `matrix_add` and
        `matrix_store`, on values of the types `matrix_operand` and `matrix_sums`, which `prelude`
        defines where a device has them.
        """
        return [self._matrix(stmt, *operands)]

    def _matrix(self, stmt: MatrixStmt, *operands: Code) -> str:
        names = self.names
        if isinstance(stmt, MatrixFill):
            value = float_number(stmt.value, Scalar.F32).text
            return f"matrix_sums {names[stmt.target.ident]} = matrix_fill({value});"
        if isinstance(stmt, MatrixMultiply):
            target, a, b = (names[each.ident] for each in (stmt.target, stmt.a, stmt.b))
            return f"{target} = matrix_multiply({target}, {a}, {b});"
        if isinstance(stmt, MatrixAdd):
            target, other = names[stmt.target.ident], names[stmt.other.ident]
            factor = float_number(stmt.factor, Scalar.F32).text
            return f"{target} = matrix_add({target}, {other}, {factor});"
        role = stmt.target.role if isinstance(stmt, MatrixLoad) else stmt.source.role
        width = lanes_of(stmt.array.type, role)
        index = f"{operands[0].at(MUL)} * {width}" if width > 1 else operands[0].at(ADD)
        pointer = self.shared_pointer(stmt.array, role.scalar, index)
        stride = stmt.stride * width
        if isinstance(stmt, MatrixLoad):
            part = "a" if stmt.target.role is MatrixRole.A else "b"
            part += "_transposed" if stmt.transposed else ""
            target = names[stmt.target.ident]
            return f"const matrix_operand {target} = matrix_load_{part}({pointer}, {stride});"
        return f"matrix_store({pointer}, {stride}, {names[stmt.source.ident]});"

    # f16

    def is_half(self, type: Type) -> bool:
        """Whether values of a type are halves."""
        return type.scalar is Scalar.F16 and self.has.f16_arithmetic
