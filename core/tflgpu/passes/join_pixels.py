"""A window that moves by its own width over a model's image reads the pixels of a row as one.

    x [n, h, w, c] -> CONV_2D {filter [o, kh, kw, c], stride_w=kw} -> y
    x -> RESHAPE [n, h, w / kw, kw * c] -> CONV_2D {filter [o, kh, 1, kw * c], stride_w=1} -> y

Inputs of a model lie without gaps, so that nothing moves. Kernels read four numbers at once where
pixels have a multiple of four, and images have three: the patches of a vision transformer.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.facets import Pads
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Rewrite one, of a real image."""
    image, weights = node.input(0), node.input(1).data
    if image not in rewriter.graph.inputs or weights is None or not image.dtype.is_float:
        return False
    (batch, height, width, channels), (outputs, rows, columns, inner) = image.shape, weights.shape
    made = node.attrs
    moves_by_itself = made.stride_w == columns and made.dilation_w == 1 and width % columns == 0
    pads = made.pads or Pads()
    if not moves_by_itself or inner != channels or pads.left or pads.right:
        return False
    if channels % 4 == 0 or columns * channels % 4:
        return False
    shape = (batch, height, width // columns, columns * channels)
    spec = shape, image.dtype, image.name + "/pixels"
    joined = rewriter.result_of("RESHAPE", ReshapeAttrs(shape), [image], spec, before=node)
    rewriter.set_input(node, 0, joined)
    filters = weights.reshape(outputs, rows, 1, columns * channels)
    rewriter.set_input(node, 1, rewriter.const(filters, node.input(1).name))
    rewriter.evolve(node, stride_w=1)
    return True


PASS = Pass("join_pixels", per_node(_rewrite, "CONV_2D"), phase=30)
