"""An average over a whole image becomes MEAN, whose kernel shares the sum between invocations.

AVERAGE_POOL_2D {window = image}          MEAN {axes=[1, 2], keep_dims}
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Graph
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.pool import PoolAttrs, pool_window
from tflgpu.ops.reduce import Reduce
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext


def run(graph: Graph, context: PassContext) -> int:
    """Rewrite every one without an activation."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("AVERAGE_POOL_2D"):
        if (
            not isinstance(node.attrs, PoolAttrs)
            or not context.is_linear(node)
            or not is_plain(node)
        ):
            continue
        if node.attrs.stored is not None:
            continue
        window, (_, height, width, _) = pool_window(node), node.input(0).shape
        # Padding does not count in the average, so a window that reaches over the image is one too.
        covers = (
            (window.out_h, window.out_w) == (1, 1)
            and window.kernel_h - window.pad_top >= height
            and window.kernel_w - window.pad_left >= width
        )
        if covers:
            axes = rewriter.const(np.array([1, 2], np.int32), "axes")
            rewriter.replace([node], "MEAN", Reduce(keep_dims=True), [node.input(0), axes])
            rewriter.count()
    return rewriter.edits


PASS = Pass("global_pool", run, phase=10)
