"""An average over a whole image becomes MEAN, whose kernel shares the sum between invocations.

AVERAGE_POOL_2D {window = image}          MEAN {axes=[1, 2], keep_dims}
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.pool import PoolAttrs, pool_window
from tflgpu.ops.reduce import Reduce
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Rewrite one without an activation."""
    if not isinstance(node.attrs, PoolAttrs) or not context.is_linear(node) or not is_plain(node):
        return False
    if node.attrs.stored is not None:
        return False
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
        return True
    return False


PASS = Pass("global_pool", per_node(_rewrite, "AVERAGE_POOL_2D"), phase=10)
