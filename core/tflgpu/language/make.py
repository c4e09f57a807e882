"""Checked constructors of expressions: operands are matched, whole-number constants folded, and a
variable becomes the value that it has now.

`tflgpu.language.expressions` holds the values; what may be combined with what is decided here, so
that operators, `Builder` and rewriting obey the same rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from tflgpu.language.author import refused
from tflgpu.language.evaluate import constant, convert
from tflgpu.language.expressions import (
    ARITHMETIC,
    BITWISE,
    COMPARE,
    LOGICAL,
    Binary,
    Bitcast,
    Call,
    Cast,
    Const,
    Expr,
    Number,
    Operand,
    Select,
    Splat,
    Unary,
)
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.numbers import is_same
from tflgpu.language.types import BOOL, I32, F16x4, Scalar, Type, U32x2
from tflgpu.language.variables import Variable

_RANGES = {
    scalar._value_: (int(np.iinfo(scalar.numpy).min), int(np.iinfo(scalar.numpy).max))
    for scalar in Scalar
    if scalar.numpy.kind in "iu"
}


class _Small(dict[int, Const]):
    def __missing__(self, value: int) -> Const:
        return self.setdefault(value, Const(I32, value))


#: Literals of indices, each made once: kernels are full of them.
_small = _Small()
_MANY = 1 << 10


def read(value: Expr) -> Expr:
    """The expression itself; of a variable, the value that it has now.

    Raises:
        KernelError: it is no expression.
    """
    if type(value) is Variable:
        return value.read()
    if not isinstance(value, Expr):
        raise refused(f"{value!r} is no expression: k.const(value, type) makes one of a number")
    return value


def wrap(value: Operand, like: Type) -> Expr:
    """An expression for ``value``; a Python number becomes a constant of ``like``'s lanes.

    Raises:
        KernelError: it is no number, or one that does not fit the lanes' type.
    """
    if isinstance(value, Expr):
        return value.read() if type(value) is Variable else value
    if type(value) is int and like.scalar is Scalar.I32 and 0 <= value < _MANY:
        return _small[value]
    number: Number
    if not hasattr(value, "__float__"):
        raise refused(f"{value!r} is neither a number nor an expression")
    if like.is_float:
        number = float(value)
    elif like.scalar is Scalar.BOOL:
        if not isinstance(value, bool):
            raise refused(f"{value!r} is not a boolean")
        number = value
    else:
        if isinstance(value, float) or not hasattr(value, "__index__"):
            raise refused(f"{value!r} is not a whole number")
        number = int(value)
        least, most = _RANGES[like.scalar._value_]
        if not least <= number <= most:
            raise refused(f"{number} does not fit {like.scalar.value}")
    return Const(like.with_width(1), number)


def splat(value: Expr, width: int) -> Expr:
    """Make a scalar as wide as asked; a vector must have that width already.

    Raises:
        KernelError: a vector of another width.
    """
    if value.type.width == width:
        return value
    if value.type.width != 1:
        raise refused(f"a {value.type} where {width} lanes are needed")
    if isinstance(value, Const):
        return Const(value.type.with_width(width), value.value)
    return Splat(value.type.with_width(width), value)


def cast(value: Expr, scalar: Scalar) -> Expr:
    """Convert lanes to ``scalar``; nothing where they have that type.

    Raises:
        KernelError: a storage-only type.
    """
    value = read(value)
    if value.type.scalar is scalar:
        return value
    if not isinstance(scalar, Scalar):
        raise refused(f"cast to {scalar!r}, which is no Scalar")
    if scalar.is_storage_only:
        raise refused(f"{scalar.value} is a storage type; values are i32")
    if isinstance(value, Const):
        with np.errstate(all="ignore"):
            lane = convert(constant(value.type.with_width(1), value.value), scalar)
        return Const(value.type.with_scalar(scalar), lane[0].item())
    return Cast(value.type.with_scalar(scalar), value)


def bitcast(value: Expr, scalar: Scalar) -> Expr:
    """Read the lanes' bits as ``scalar``; nothing where they have that type. Four
    lanes of f16 are two of u32, of which each has the first of its two in the lower half.

    Raises:
        KernelError: one of the types does not have 32 bits, or is not a number; four lanes of f16
            are read as u32 alone, and two of u32 as f16.
    """
    value = read(value)
    kind = value.type
    if kind.scalar is scalar:
        return value
    if kind == F16x4 and scalar is Scalar.U32:
        return Bitcast(U32x2, value)
    if kind == U32x2 and scalar is Scalar.F16:
        return Bitcast(F16x4, value)
    for each in (value.type.scalar, scalar):
        if each not in (Scalar.F32, Scalar.I32, Scalar.U32):
            raise refused(f"bits of {value.type.scalar.value} as {scalar.value}: 32 bits only")
    return Bitcast(value.type.with_scalar(scalar), value)


_FOLDED: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "max": max,
}


def _fold_int(op: str, a: Expr, b: Expr) -> Expr | None:
    """Simplify index arithmetic, so that generated code stays readable."""
    va = int(a.value) if type(a) is Const else None
    vb = int(b.value) if type(b) is Const else None
    if va is None and vb is None:
        return None
    if va is not None and vb is not None:
        result: int | None = None
        if op in ("div", "rem"):
            if vb > 0 and va >= 0:
                result = va // vb if op == "div" else va % vb
        elif op in _FOLDED:
            result = _FOLDED[op](va, vb)
        fits = result is not None and -(2**31) <= result < 2**31
        return Const(a.type, result) if fits and result is not None else None
    if op in ("add", "sub") and vb == 0:
        return a
    if op == "add" and va == 0:
        return b
    if op == "mul" and (va == 0 or vb == 0):
        return Const(a.type, 0)
    if op in ("mul", "div") and vb == 1:
        return a
    if op == "mul" and va == 1:
        return b
    if op == "rem" and vb == 1:
        return Const(a.type, 0)
    return None


_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _fold_condition(op: str, a: Expr, b: Expr) -> Expr | None:
    """Leave out what a condition on scalars does not depend on: compilers warn of constants in
    one."""
    if op in COMPARE:
        if not (isinstance(a, Const) and isinstance(b, Const) and a.type.scalar is Scalar.I32):
            return None
        return Const(BOOL, _COMPARED[op](int(a.value), int(b.value)))
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Const):
            return other if bool(one.value) is (op == "land") else one
    return None


def binary(op: str, a: Operand, b: Operand) -> Expr:
    """A checked `Binary`: widths are matched by splatting, lane types must be equal.

    Raises:
        KernelError: the operands do not fit the operation or each other.
    """
    if type(a) is Variable:
        a = a.read()
    if type(b) is Variable:
        b = b.read()
    if isinstance(a, Expr):
        if not isinstance(b, Expr):
            b = wrap(b, a.type)
    elif isinstance(b, Expr):
        a = wrap(a, b.type)
    else:
        raise refused(f"{op}: no operand is an expression")
    kind, other = a.type, b.type
    if kind is not other:  # as a rule both are of one type, of which there is one object
        if kind.scalar is not other.scalar:
            raise refused(f"{op} of {kind} and {other}: cast one of them")
        width = max(kind.width, other.width)
        a, b = splat(a, width), splat(b, width)
        kind = a.type
    width, scalar = kind.width, kind.scalar
    if (
        scalar is Scalar.I32 and width == 1 and op in ARITHMETIC
    ):  # of indices: most of what there is
        folded = _fold_int(op, a, b)
        return Binary(kind, op, a, b) if folded is None else folded
    if op in COMPARE:
        if scalar is Scalar.BOOL and op not in ("eq", "ne"):
            raise refused(f"{op} does not order booleans")
        if scalar.is_float and op in ("eq", "ne") and is_same(a, b):
            # The usual question for a NaN, which a device's compiler may take for a constant.
            is_nan = call("isnan", a)
            return is_nan if op == "ne" else Unary(is_nan.type, "not", is_nan)
        told = _fold_condition(op, a, b) if width == 1 else None
        return Binary(BOOL.with_width(width), op, a, b) if told is None else told
    if op in LOGICAL:
        fits = scalar is Scalar.BOOL
    elif op in BITWISE:
        fits = scalar in (Scalar.I32, Scalar.U32)
    elif op in ARITHMETIC:
        fits = scalar is not Scalar.BOOL and not (op == "rem" and scalar.is_float)
    else:
        raise refused(f"unknown operation {op}")
    if not fits:
        raise refused(f"{op} of {kind}")
    if width == 1 and op in LOGICAL:
        told = _fold_condition(op, a, b)
        if told is not None:
            return told
    return Binary(kind, op, a, b)


def call(fn: str, *args: Operand) -> Expr:
    """A checked `Call`.

    Raises:
        KernelError: an unknown function, or arguments that do not fit it.
    """
    first = next((a for a in args if isinstance(a, Expr)), None)
    if first is None:
        raise refused(f"{fn}: no argument is an expression")
    like = first.type
    exprs = [a if isinstance(a, Expr) and type(a) is not Variable else wrap(a, like) for a in args]
    kind = exprs[0].type
    if any(e.type is not kind for e in exprs):
        width = max([e.type.width for e in exprs])
        exprs = [splat(e, width) for e in exprs]
        kind = exprs[0].type
    if any(e.type is not kind and e.type != kind for e in exprs):
        raise refused(f"{fn} of {', '.join(str(e.type) for e in exprs)}")
    function = FUNCTIONS.get(fn)
    if function is None:
        raise refused(f"unknown function {fn}")
    if len(exprs) != function.arity:
        raise refused(f"{fn} takes {function.arity} arguments, not {len(exprs)}")
    if not function.accepts(kind):
        raise refused(f"{fn} of {kind}; it takes {function.wanted}")
    return Call(function.result(kind), fn, tuple(exprs))


def condition(value: Expr) -> Expr:
    """What a condition asks; Python's own True and False are refused.

    Raises:
        KernelError: it is no expression.
    """
    if isinstance(value, (bool, np.bool_)):
        raise refused(
            f"the condition is {value}, which is known while the kernel is built: use Python's "
            "own if"
        )
    return read(value)


def select(cond: Expr, a: Operand, b: Operand) -> Expr:
    """A checked `Select`; a scalar condition may choose between vectors.

    Raises:
        KernelError: the condition is not boolean, or the values differ in type.
    """
    cond = condition(cond)
    if cond.type.scalar is not Scalar.BOOL:
        raise refused(f"a condition is boolean, not {cond.type}")
    like = a if isinstance(a, Expr) else b
    if not isinstance(like, Expr):
        raise refused("select: give at least one value as an expression")
    left, right = wrap(a, like.type), wrap(b, like.type)
    width = max(left.type.width, right.type.width, cond.type.width)
    left, right = splat(left, width), splat(right, width)
    if left.type != right.type:
        raise refused(f"select of {left.type} and {right.type}")
    if cond.type.width not in (1, width):
        raise refused(f"select: condition {cond.type} for {left.type}")
    return Select(left.type, cond, left, right)
