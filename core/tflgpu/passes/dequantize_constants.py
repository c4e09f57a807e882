"""DEQUANTIZE of a constant becomes an f32 constant.

    f16 const -> DEQUANTIZE -> CONV_2D          f32 const -> CONV_2D

Models with 16-bit weights are stored so; 8-bit constants that are dequantized before use fold in
the same way.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ir.stored_reals import stored_reals
from tflgpu.ops.convert import Dequantize
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fold one of a constant."""
    data = node.input(0).data
    if data is None or not isinstance(node.attrs, Dequantize):
        return False
    if data.dtype.kind == "f":
        wide = data.dtype != np.float16
        contents = np.asarray(data, np.float32, order="C") if wide else stored_reals(data)
        rewriter.to_constant(node, [contents])
    elif node.attrs.quantization is not None:
        rewriter.to_constant(node, [stored_reals(data, node.attrs.quantization)])
    else:
        return False
    return True


PASS = Pass("dequantize_constants", per_node(_rewrite, "DEQUANTIZE"))
