"""A border of zeros moves into the convolution that reads it.

    x -> PAD -> CONV_2D {padding=VALID}          x -> CONV_2D {pads=...}

Pooling is left alone: a maximum over the border would count its zeros, and an average would
divide by their number.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain, scalar_of
from tflgpu.ops.facets import Pads
from tflgpu.ops.pad import borders
from tflgpu.passes.base import Pass, PassContext, per_node


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Merge one, into each of its readers."""
    kind = context.filter_of(node)
    if kind is None or kind.zeros is None or not kind.pads:
        return False
    border = rewriter.producer(node.input(kind.source), "PAD", "PADV2")
    added = None if border is None or not is_plain(border) else image_border(border)
    if border is None or added is None:
        return False
    # An image without pixels gets some by its border, and no filter takes none; a window that
    # fits nowhere is an error with pads, and an empty result without.
    if 0 in (*border.input(0).shape, *node.outputs[0].shape):
        return False
    pads = kind.zeros(node) + added
    if rewriter.sole_use(node.input(kind.source)) is node:
        node.origins = merged_origins(border, node)
    rewriter.set_input(node, kind.source, border.input(0))
    rewriter.evolve(node, **{kind.pads: pads})
    return True


def image_border(node: Node) -> Pads | None:
    """The border of zeros that a node adds around images, None if it adds anything else."""
    paddings = node.input(1).data
    if paddings is None or paddings.shape != (4, 2):
        return None
    if node.op == "PADV2" and scalar_of(node.input(2)) != 0:
        return None
    batch, rows, columns, channels = borders(paddings)
    if (*batch, *channels) != (0, 0, 0, 0):
        return None
    return Pads(*rows, *columns)


PASS = Pass("merge_padding", per_node(_rewrite), phase=20)
