"""The small nodes of an RMS norm become RMS_NORMALIZATION, where a device has kernels.

    MUL(x, RSQRT(ADD(MEAN(SQUARE(x)), epsilon)))        over the last axis, dimensions kept

What scales it, a MUL by a number a channel, joins its kernel. Files whose converter kept the name
have a composite instead (`tflgpu.compiler.composites`).
"""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain, scalar_of
from tflgpu.ops.axes import integers
from tflgpu.ops.composite_norms import RMS, NormAttrs
from tflgpu.ops.reduce import Reduce, reduced_axes
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext
from tflgpu.passes.match import both_orders


def run(graph: Graph, context: PassContext) -> int:
    """Fuse every chain there is."""
    rewriter = Rewriter(graph)
    if not context.kernels:
        return 0  # one node would run by NumPy, and the chain need not
    for node in rewriter.nodes("MUL"):
        result = node.outputs[0]
        plain = is_plain(node) and context.is_linear(node)
        if not plain or result.dtype not in (DType.F32, DType.F16):
            continue
        for x, other in both_orders(node):
            found = _root(rewriter, context, x, other) if x.shape == result.shape else None
            if found is not None:
                epsilon, nodes = found
                made = rewriter.replace([node], RMS, NormAttrs(epsilon), [x])
                made.origins = merged_origins(*nodes, node)
                rewriter.count()
                break
    return rewriter.edits


def _root(
    rewriter: Rewriter, context: PassContext, x: Value, value: Value
) -> tuple[float, list[Node]] | None:
    """The epsilon of ``value`` = 1 / the root mean square of ``x``, and the nodes, whose results
    have no other reader."""

    def maker(value: Value, op: str) -> Node | None:
        node = rewriter.producer(value, op)
        plain = node is not None and is_plain(node) and context.is_linear(node)
        return node if plain and rewriter.sole_use(value) is not None else None

    root = maker(value, "RSQRT")
    total = None if root is None else maker(root.input(0), "ADD")
    if root is None or total is None:
        return None
    for square_mean, constant in both_orders(total):
        epsilon = scalar_of(constant)
        mean = maker(square_mean, "MEAN")
        if epsilon is None or not epsilon > 0 or mean is None or not _over_channels(mean):
            continue
        square = maker(mean.input(0), "SQUARE")
        if square is not None and square.input(0) is x:
            return epsilon, [square, mean, total, root]
    return None


def _over_channels(mean: Node) -> bool:
    """Whether a MEAN is over the last axis, and perhaps others of size 1, and keeps them."""
    data, shape = mean.input(1).data, mean.input(0).shape
    if data is None or not isinstance(mean.attrs, Reduce) or not mean.attrs.keep_dims:
        return False
    axes, last = reduced_axes(mean.op, integers(data), len(shape)), len(shape) - 1
    return last in axes and all(axis == last or shape[axis] == 1 for axis in axes)


PASS = Pass("fuse_rms", run, phase=10)
