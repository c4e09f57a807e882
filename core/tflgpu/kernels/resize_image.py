"""CAST, SLICE and the RESIZE_BILINEAR that reads them, as one kernel: a part of an image is
resized.

    u8 [1, 480, 640, 4] -> CAST -> SLICE -> RESIZE_BILINEAR -> f32 [1, 257, 257, 3]

Pixels are converted when they are read, and those that no result needs are not read: neither the
whole image as floats nor the part of it is ever written.
"""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.resize import mix_pixels
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import GroupRule, Maker, Site

_WHOLE = frozenset({DType.U8, DType.I8, DType.I32, DType.BOOL})


def _match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
    found = [node]
    made = maker(node.input(0))
    if made is not None and made.op == "SLICE" and _is_part(made):
        found.insert(0, made)
        made = maker(made.input(0))
    if (
        made is not None
        and made.op == "CAST"
        and made.input(0).dtype in _WHOLE
        and made.outputs[0].dtype is DType.F32
    ):
        found.insert(0, made)
    return found if len(found) > 1 else None


def _is_part(node: Node) -> bool:
    """Whether a SLICE leaves out pixels, and channels behind those that it takes."""
    if any(node.input(i).contents is None for i in (1, 2)):
        return False
    first = node.const(1)
    return len(first) == 4 and not first[0] and not first[3]


def _build(low: Lowering) -> None:
    *before, node = low.nodes
    slices = [each for each in before if each.op == "SLICE"]
    corner = [int(n) for n in slices[0].const(1)[1:3]] if slices else (0, 0)
    k = low.kernel("resize_image")
    src = low.read_value(k, before[0].input(0), "src")
    mix_pixels(low, k, src, node.input(0).shape[1:3], corner)


RULES = (GroupRule("RESIZE_BILINEAR", "of_an_image", _match, _build),)
