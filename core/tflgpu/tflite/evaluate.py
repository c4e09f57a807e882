"""Evaluates an operator with known operands while a graph is built: its results are constants."""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError, TflgpuError
from tflgpu.errors.blame import few
from tflgpu.ir.graph import Node
from tflgpu.ops.base import OpDef
from tflgpu.ops.foreign import wrong_results
from tflgpu.ops.operand import constant_or_shape

# Operators of constants are evaluated while building up to this many elements read and written:
# enough for shape arithmetic and small tables. Larger ones are left to the pass that folds.
_FOLD_ELEMENTS = 1 << 14

#: What an op definition may stumble over where it did not foresee numbers as a file has them.
FAILURES = (ArithmeticError, ValueError, TypeError, LookupError, MemoryError)


def operands_of(node: Node) -> str:
    """A node's operands, at the end of a message."""
    return f" (operands: {few('-' if v is None else v for v in node.inputs)})"


def evaluate(node: Node, definition: OpDef, where: str) -> bool:
    """Turn the results of a small operator of constants into constants, and so zeros."""
    if definition.state is not None or not node.outputs:
        return False
    values = [v for v in (*node.inputs, *node.outputs) if v is not None]
    is_known = all(v.shape_known for v in values)
    if (
        is_known
        and definition.contents.zeros_where is not None
        and definition.contents.zeros_where(node)
    ):
        for value in node.outputs:
            value.data = np.zeros(value.shape, value.dtype.numpy)
            value.data.setflags(write=False)
        return True
    shape_only = definition.contents.shape_only
    # References see stored numbers without their scales, so quantized tensors are left alone where
    # the contents matter.
    seen = node.outputs if shape_only else values
    is_constant = shape_only or all(v is None or v.is_const for v in node.inputs)
    if not (is_known and is_constant) or any(v.quant is not None for v in seen):
        return False
    if sum(v.elements for v in values if v.is_const or v in node.outputs) > _FOLD_ELEMENTS:
        return False
    operands = [constant_or_shape(v) for v in node.inputs]
    try:
        with np.errstate(all="ignore"):
            results = definition.reference(node.attrs, operands)
    except TflgpuError as error:
        raise ModelError(f"{where}: {error}{operands_of(node)}") from error
    except FAILURES as error:
        raise ModelError(f"{where}: {type(error).__name__}: {error}{operands_of(node)}") from error
    problem = wrong_results(definition, results, [v.spec for v in node.outputs])
    if problem is not None:
        raise ModelError(f"{where}: {problem}")
    for value, result in zip(node.outputs, results, strict=True):
        value.data = np.ascontiguousarray(result).reshape(value.shape)
        value.data.setflags(write=False)
        value.computed = True
    return True
