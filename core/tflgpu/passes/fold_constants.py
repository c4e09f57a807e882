"""Operators of constants become constants.

const -> RSQRT -> c            ->      const
x (any contents) -> SHAPE -> s         const
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import TflgpuError
from tflgpu.ir.budget import spend
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.base import OpDef
from tflgpu.ops.operand import constant_or_shape
from tflgpu.passes.base import Pass, PassContext, per_node

# A result may be this large, or as large as twice its operands: TILE and BROADCAST_TO are
# cheaper to run than to keep.
_FREE_BYTES = 1 << 16


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Compute one of constants; nodes are in order, so one walk folds all that there is."""
    definition = context.op(node)
    if definition is None or not _may_fold(node, definition):
        return False
    results = _evaluate(node, definition)
    if results is not None:
        rewriter.to_constant(node, results)
        return True
    return False


def _may_fold(node: Node, definition: OpDef) -> bool:
    if definition.state is not None or not node.outputs:
        return False
    # References see stored numbers without their scales; DEQUANTIZE has a pass of its own, which
    # comes first (by name), and leaves large numbers as they are stored.
    if any(v is not None and v.quant is not None for v in (*node.inputs, *node.outputs)):
        return False
    if not all(v.dtype.has_numpy for v in node.outputs):
        return False
    if not definition.contents.shape_only and any(
        v is not None and not v.is_const for v in node.inputs
    ):
        return False
    read = sum(v.nbytes for v in node.inputs if v is not None and v.is_const)
    return sum(v.nbytes for v in node.outputs) <= max(_FREE_BYTES, 2 * read)


def _evaluate(node: Node, definition: OpDef) -> list[Array] | None:
    try:
        spend("nbytes", sum(v.nbytes for v in node.outputs), node.label)
        with np.errstate(all="ignore"):
            results = definition.reference(node.attrs, [constant_or_shape(v) for v in node.inputs])
    except (TflgpuError, ArithmeticError, ValueError, TypeError, LookupError, MemoryError):
        return None  # what is wrong with it is said when it runs; what is too much runs, too
    for value, result in zip(node.outputs, results, strict=True):
        if result.shape != value.shape or DType.from_numpy(result.dtype) is not value.dtype:
            return None
    return [np.array(result) for result in results]


PASS = Pass("fold_constants", per_node(_rewrite))
