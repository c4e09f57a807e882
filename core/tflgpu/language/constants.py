"""What a kernel computes of literals alone, by the language's own rules: for printers of languages
that would compute it by others."""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.kernel import Kernel
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
                if len(known) == len(parts) and not expr.reads:
                    values[id(expr)] = expr.evaluate(*known)
    return values
