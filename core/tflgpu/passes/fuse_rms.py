"""The small nodes of an RMS norm become RMS_NORMALIZATION, where a device has kernels.

    MUL(x, RSQRT(ADD(MEAN(SQUARE(x)), epsilon)))        over the last axis, dimensions kept

What scales it, a MUL by a number a channel, joins its kernel. Files whose converter kept the name
have a composite instead (`tflgpu.compiler.composites`).
"""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.passes.base import Pass, PassContext, both_orders, per_node
from tflgpu.passes.fuse_normalization import Reader, averages, axes_of


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fuse a product of a tensor and 1 / its root mean square, where a device has kernels: one node
    would run by NumPy, and the chain need not."""
    reader, result = Reader(rewriter, context), node.outputs[0]
    if not context.kernels:
        return False
    if reader.maker(result, "MUL") is not node or result.dtype not in (DType.F32, DType.F16):
        return False
    for x, other in both_orders(node):
        for epsilon, mean, nodes in averages(reader, other, "RSQRT"):
            square = reader.maker(mean.input(0), "SQUARE")
            chain = () if square is None else (square, mean, *nodes)
            alone = all(rewriter.sole_use(each.outputs[0]) is not None for each in chain)
            squared = square is not None and square.input(0) is x and x.shape == result.shape
            if squared and alone and axes_of(mean) == (len(x.shape) - 1,):
                made = rewriter.replace([node], RMS, NormAttrs(epsilon), [x])
                made.origins = merged_origins(*chain, node)
                return True
    return False


PASS = Pass("fuse_rms", per_node(_rewrite, "MUL"), phase=10)
