"""Expressions: every node becomes an instruction or a few, operands first."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.definitions import Definition
from tflgpu.language.exact import exact
from tflgpu.language.guards import ORDERED
from tflgpu.language.numbers import hidden_sides, never_nan
from tflgpu.language.tree import (
    Binary,
    Bitcast,
    Builtin,
    Call,
    Cast,
    Const,
    Expr,
    Kernel,
    Lane,
    Name,
    Select,
    Splat,
    Unary,
    Vec,
)
from tflgpu.language.types import BOOL, Scalar
from tflgpu.language.walk import Walk, walk

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.grammar import Glsl, Op
from tflgpu_vulkan.spirv.memory import Memory
from tflgpu_vulkan.spirv.target import Target
from tflgpu_vulkan.spirv.values import Values

_FLOAT: dict[str, Op | Glsl] = {
    "add": Op.FAdd,
    "sub": Op.FSub,
    "mul": Op.FMul,
    "div": Op.FDiv,
    "eq": Op.FOrdEqual,
    "ne": Op.FUnordNotEqual,
    "lt": Op.FOrdLessThan,
    "le": Op.FOrdLessThanEqual,
    "gt": Op.FOrdGreaterThan,
    "ge": Op.FOrdGreaterThanEqual,
    "min": Glsl.NMin,
    "max": Glsl.NMax,
}
_WHOLE: dict[str, Op | Glsl] = {
    "add": Op.IAdd,
    "sub": Op.ISub,
    "mul": Op.IMul,
    "and": Op.BitwiseAnd,
    "or": Op.BitwiseOr,
    "xor": Op.BitwiseXor,
    "shl": Op.ShiftLeftLogical,
    "eq": Op.IEqual,
    "ne": Op.INotEqual,
}
_SIGNED: dict[str, Op | Glsl] = {
    **_WHOLE,
    "div": Op.SDiv,
    "shr": Op.ShiftRightArithmetic,
    "lt": Op.SLessThan,
    "le": Op.SLessThanEqual,
    "gt": Op.SGreaterThan,
    "ge": Op.SGreaterThanEqual,
    "min": Glsl.SMin,
    "max": Glsl.SMax,
}
_UNSIGNED: dict[str, Op | Glsl] = {
    **_WHOLE,
    "div": Op.UDiv,
    "rem": Op.UMod,
    "shr": Op.ShiftRightLogical,
    "lt": Op.ULessThan,
    "le": Op.ULessThanEqual,
    "gt": Op.UGreaterThan,
    "ge": Op.UGreaterThanEqual,
    "min": Glsl.UMin,
    "max": Glsl.UMax,
}
_BOOL: dict[str, Op | Glsl] = {
    "land": Op.LogicalAnd,
    "lor": Op.LogicalOr,
    "eq": Op.LogicalEqual,
    "ne": Op.LogicalNotEqual,
}
_OPERATIONS = {
    Scalar.F32: _FLOAT,
    Scalar.F16: _FLOAT,
    Scalar.I32: _SIGNED,
    Scalar.U32: _UNSIGNED,
    Scalar.BOOL: _BOOL,
}


class Expressions(Values, Memory):
    """Evaluates expressions where the function is being written.

    Attributes:
        names: What a name stands for: a value, or the variable that has it.
    """

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        super().__init__(kernel, target, guard)
        self.names: dict[str, Id] = {}
        #: What a statement has loaded of its variables.
        self._loaded: dict[str, Id] = {}
        self._methods: dict[type[Expr], Callable[..., Id]] = {}

    def evaluate(self, way: Walk) -> list[Id]:
        """The values of a statement's expressions; what they share is computed once."""
        values: list[Id] = []
        outer, self._loaded = self._loaded, {}
        methods, value_at = self._methods, values.__getitem__
        for expr, parts in zip(way.order, way.parts, strict=True):
            method = methods.get(type(expr))
            if method is None:
                method = methods[type(expr)] = self.method_for(expr)
            values.append(method(expr, *map(value_at, parts)))
        self._loaded = outer
        return [values[root] for root in way.roots]

    def forget_methods(self) -> None:
        """To be called when all is written: they are this object's own, and would keep the kernel
        until Python's collector comes by."""
        self._methods.clear()

    def _const(self, expr: Const) -> Id:
        return self.const(expr.type, expr.value)

    def _name(self, expr: Name) -> Id:
        found = self.names[expr.ident]
        if not expr.mutable:
            return found
        loaded = self._loaded.get(expr.ident)
        if loaded is None:
            loaded = self._loaded[expr.ident] = self.emit(Op.Load, expr.type, found)
        return loaded

    def _builtin(self, expr: Builtin) -> Id:
        return self.builtin(expr.kind, expr.axis)

    def _unary(self, expr: Unary, x: Id) -> Id:
        if expr.op == "not":
            return self.emit(Op.LogicalNot, expr.type, x)
        if not expr.type.is_float:
            return self.emit(Op.SNegate, expr.type, x)
        found = self.emit(Op.FNegate, expr.type, x)
        return found if self.defines or self.keeps_nan(expr.type) else self.hidden(expr.type, found)

    def _binary(self, expr: Binary, a: Id, b: Id) -> Id:
        kind = expr.left.type
        if expr.op in ("min", "max") and kind.is_float and not self.defines:
            return self.extreme(expr, a, b)
        if kind.is_float and not self.defines:
            left, right = hidden_sides(expr, keeps_nan=self.keeps_nan(kind))
            a = self.hidden(kind, a) if left else a
            b = self.hidden(kind, b) if right else b
        if expr.op == "rem" and kind.scalar is Scalar.I32:
            # Vulkan leaves OpSRem of negative numbers undefined.
            return self.written(exact("rem", kind), a, b)
        found = self.instruction(_OPERATIONS[kind.scalar][expr.op], expr.type, a, b)
        asks = kind.is_float and not self.defines and not self.keeps_nan(kind)
        if asks and expr.op in ORDERED:
            # A compiler that takes all floats for numbers makes extremes of selects by it.
            for side, value in ((expr.left, a), (expr.right, b)):
                if not never_nan(side):
                    number = self.emit(Op.LogicalNot, expr.type, self.is_nan(kind, value))
                    found = self.emit(Op.LogicalAnd, expr.type, found, number)
        return found

    def _call(self, expr: Call, *args: Id) -> Id:
        return self.call(expr.fn, expr.args[0].type, args)

    def written(self, found: Definition, *args: Id) -> Id:
        """A function that the language defines, written where it is called."""
        outer, result = (self.names, self.defines), args[0]
        self.names = {p.ident: arg for p, arg in zip(found.parameters, args, strict=True)}
        self.defines = True
        try:
            for let in found.body:
                (result,) = self.evaluate(walk(let))
                self.names[let.ident] = result
        finally:
            self.names, self.defines = outer
        return result

    def _select(self, expr: Select, cond: Id, a: Id, b: Id) -> Id:
        if expr.cond.type.width < expr.type.width:
            cond = self.splat(BOOL.with_width(expr.type.width), cond)
        return self.emit(Op.Select, expr.type, cond, a, b)

    def _cast(self, expr: Cast, x: Id) -> Id:
        return self.convert(expr.operand.type, expr.type, x)

    def _bitcast(self, expr: Bitcast, x: Id) -> Id:
        return self.emit(Op.Bitcast, expr.type, x)

    def _vec(self, expr: Vec, *parts: Id) -> Id:
        return self.emit(Op.CompositeConstruct, expr.type, *parts)

    def _splat(self, expr: Splat, x: Id) -> Id:
        return self.splat(expr.type, x)

    def _lane(self, expr: Lane, x: Id) -> Id:
        return self.emit(Op.CompositeExtract, expr.type, x, expr.index)
