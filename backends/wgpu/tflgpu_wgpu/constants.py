"""What a kernel computes of literals alone, by the kernel language's own rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array
from tflgpu.kernel import evaluate
from tflgpu.kernel.tree import Binary, Call, Cast, Const, Expr, Kernel, Select, Splat, Unary, Vec
from tflgpu.kernel.walk import children, operands, postorder, statements


def constant_values(kernel: Kernel) -> dict[int, Array]:
    """The values of all expressions that depend on nothing: [1] or [1, lanes], by id."""
    values: dict[int, Array] = {}
    roots = [o for stmt in statements(kernel.body) for o in operands(stmt)]
    for expr in postorder(roots):
        parts = children(expr)
        known = [values[id(p)] for p in parts if id(p) in values]
        if len(known) == len(parts):
            with np.errstate(all="ignore"):
                value = _evaluate(expr, known)
            if value is not None:
                values[id(expr)] = value
    return values


def _evaluate(expr: Expr, parts: list[Array]) -> Array | None:
    if isinstance(expr, Const):
        return evaluate.constant(expr.type, expr.value)
    if isinstance(expr, Binary):
        return evaluate.binary(expr.op, *parts)
    if isinstance(expr, Call):
        return evaluate.call(expr.fn, parts)
    if isinstance(expr, Cast):
        return evaluate.convert(parts[0], expr.type.scalar)
    if isinstance(expr, Unary):
        return np.asarray(np.logical_not(parts[0]) if expr.op == "not" else np.negative(parts[0]))
    if isinstance(expr, Splat):
        return np.repeat(parts[0][:, None], expr.type.width, axis=1)
    if isinstance(expr, Vec):
        return np.stack(parts, axis=-1)
    if isinstance(expr, Select):
        cond: Any = parts[0] if parts[0].ndim == parts[1].ndim else parts[0][:, None]
        return np.asarray(np.where(cond, parts[1], parts[2]))
    return None
