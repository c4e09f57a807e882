"""A border of zeros moves into the convolution that reads it.

    x -> PAD -> CONV_2D {padding=VALID}          x -> CONV_2D {pads=...}

Pooling is left alone: a maximum over the border would count its zeros, and an average would
divide by their number.
"""

from __future__ import annotations

from tflgpu.ir.graph import Graph, Node
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.pad import borders
from tflgpu.ops.windows import Pads, WindowAttrs, conv_window
from tflgpu.passes.base import Pass
from tflgpu.passes.match import is_plain, scalar_of


def run(graph: Graph) -> int:
    """Merge every one, into each of its readers."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("CONV_2D", "DEPTHWISE_CONV_2D"):
        border = rewriter.producer(node.input(0), "PAD", "PADV2")
        if border is None or not isinstance(node.attrs, WindowAttrs) or not is_plain(border):
            continue
        added = _image_border(border)
        if added is None:
            continue
        own = _own_pads(node)
        pads = Pads(
            own.top + added.top,
            own.bottom + added.bottom,
            own.left + added.left,
            own.right + added.right,
        )
        if rewriter.sole_use(node.input(0)) is node:
            node.origins = merged_origins(border, node)
        rewriter.set_input(node, 0, border.input(0))
        rewriter.evolve(node, pads=pads)
        rewriter.count()
    return rewriter.edits


def _image_border(node: Node) -> Pads | None:
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


def _own_pads(node: Node) -> Pads:
    """The padding of a convolution as rows and columns."""
    window, given = conv_window(node), node.attrs.pads
    if given is not None:
        return Pads(given.top, given.bottom, given.left, given.right)
    _, height, width, _ = node.input(0).shape
    span_h = (window.kernel_h - 1) * window.dilation_h + 1
    span_w = (window.kernel_w - 1) * window.dilation_w + 1
    below = (window.out_h - 1) * window.stride_h + span_h - height - window.pad_top
    right = (window.out_w - 1) * window.stride_w + span_w - width - window.pad_left
    return Pads(window.pad_top, max(below, 0), window.pad_left, max(right, 0))


PASS = Pass("merge_padding", run, phase=20)
