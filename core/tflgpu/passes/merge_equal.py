"""Nodes that compute the same of the same become one, once all other passes are done.

    CAST(x) -> MUL c -> COS, CAST(x) -> MUL c -> COS          CAST(x) -> MUL c -> COS

Each layer of a language model's export makes its mask and its cosines anew. Only for devices with
kernels, and of what has no state, no quantization, and an operand that is computed.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.passes.base import Pass, PassContext

#: Larger constants are equal only where they are one.
_SMALL_BYTES = 256


def run(graph: Graph, context: PassContext) -> int:
    """Keep the first of each; nodes are in order, so that one walk finds chains, too."""
    rewriter, first = Rewriter(graph), dict[Hashable, Node]()
    for node in rewriter.nodes() if context.kernels else ():
        key = _key(context, node)
        other = node if key is None else first.setdefault(key, node)
        if other is node or any(rewriter.is_output(v) for v in node.outputs):
            continue
        other.origins = merged_origins(other, node)
        rewriter.remove(node)
        for old, new in zip(node.outputs, other.outputs, strict=True):
            rewriter.replace_uses(old, new)
        rewriter.count()
    return rewriter.edits


def _key(context: PassContext, node: Node) -> Hashable | None:
    """Equal for nodes that compute the same; None of one that stays."""
    op, read = context.op(node), [v for v in node.inputs if v is not None]
    values = (*read, *node.outputs)
    if op is None or op.owner or op.state is not None or all(v.is_const for v in read):
        return None
    if any(v.quant is not None or v.is_variable for v in values):
        return None
    results = tuple((v.shape, v.dtype) for v in node.outputs)
    operands = tuple(None if v is None else _operand(v) for v in node.inputs)
    # Their text tells -0.0 from 0.0, which are equal.
    key = (node.op, node.version, node.attrs, repr(node.attrs), operands, results)
    try:
        hash(key)
    except TypeError:  # attributes that have no hash
        return None
    return key


def _operand(value: Value) -> Hashable:
    contents = value.contents
    if not isinstance(contents, np.ndarray) or contents.nbytes > _SMALL_BYTES:
        return value.id if contents is None else id(contents)
    return contents.dtype.str, contents.shape, contents.tobytes()


PASS = Pass("merge_equal", run, phase=40)
