"""What a kernel computes of literals alone, by the language's own rules: for printers of languages
that would compute it by others."""

from __future__ import annotations

from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language import evaluate
from tflgpu.language.tree import Binary, Call, Cast, Const, Expr, Kernel, Select, Splat, Unary, Vec
from tflgpu.language.walk import statements, walk


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
                value = _evaluate(expr, known) if len(known) == len(parts) else None
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
