"""The spectrum of real numbers, where only its size or one of its parts is wanted, as matrix products.

    x -> RFFT2D -> RESHAPE -> COMPLEX_ABS -> y

    x -> FULLY_CONNECTED, cosines -> SQUARE -> ADD -> SQRT -> y
      -> FULLY_CONNECTED, sines   -> SQUARE ->

No device has complex numbers, which would cut the front end of every model of sound in two. A transform
of a few hundred numbers is a small product for one. Only for devices, in F32 (f16 would round the
cosines), along one dimension, and where no numbers are cut off. Its errors are those of sums of so many
products; unlike the transform's own they do not shrink with the logarithm of the length, and sizes whose
squares overflow become infinite.
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.binary import Fused
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass
from tflgpu.passes.context import PassContext

_PARTS = ("COMPLEX_ABS", "REAL", "IMAG")
_RESHAPES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
#: Longer ones have too many products, and tables of many megabytes.
_LONGEST = 1024


def run(graph: Graph, context: PassContext) -> int:
    """Rewrite every transform of which only parts are read."""
    site = context.site
    if not context.kernels or site is None or site.precision is not Precision.F32:
        return 0
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("RFFT2D"):
        between: list[Node] = []
        ends: list[Node] = []
        if _fits(node) and _follow(rewriter, node.outputs[0], between, ends):
            _rewrite(rewriter, node, between, ends)
            rewriter.count()
    return rewriter.edits


def _fits(node: Node) -> bool:
    x, lengths = node.input(0), node.input(1).data
    if lengths is None or x.dtype is not DType.F32 or x.quant is not None or not x.elements:
        return False
    height, width = (int(n) for n in lengths)
    return height == 1 == x.shape[-2] and x.shape[-1] <= width <= _LONGEST


def _follow(rewriter: Rewriter, value: Value, between: list[Node], ends: list[Node]) -> bool:
    """Whether all that becomes of a spectrum is parts of it; which, and what gives it other shapes."""
    if rewriter.is_output(value):
        return False
    for use in rewriter.uses(value):
        if use.op in _PARTS:
            ends.append(use)
        elif use.op in _RESHAPES and use.input(0) is value and use not in between:
            between.append(use)
            if not _follow(rewriter, use.outputs[0], between, ends):
                return False
        else:
            return False
    return True


def _rewrite(rewriter: Rewriter, node: Node, between: list[Node], ends: list[Node]) -> None:
    x = node.input(0)
    width, taken = int(node.const(1)[1]), x.shape[-1]
    rows = x.elements // taken
    flat = rewriter.value((rows, taken), DType.F32, f"{x.name}/rows")
    first = node
    rewriter.insert(
        "RESHAPE", ReshapeAttrs(flat.shape), [x], [flat], before=first, origins=node.origins
    )
    parts = []
    for name, table in zip(("real", "imaginary"), _tables(width, taken), strict=True):
        made = rewriter.value((rows, width // 2 + 1), DType.F32, f"{node.outputs[0].name}/{name}")
        rewriter.insert(
            "FULLY_CONNECTED", FullyConnected(), [flat, rewriter.const(table, made.name), None],
            [made], before=first, origins=node.origins,
        )  # fmt: skip
        parts.append(made)
    real, imaginary = parts
    for end in ends:
        source = {"REAL": real, "IMAG": imaginary}.get(end.op)
        if source is None:
            source = _size(rewriter, real, imaginary, end)
        rewriter.replace([end], "RESHAPE", ReshapeAttrs(end.outputs[0].shape), [source])
    for gone in (*reversed(between), node):
        rewriter.remove(gone)


def _size(rewriter: Rewriter, real: Value, imaginary: Value, end: Node) -> Value:
    def made(op: str, attributes: object, *operands: Value) -> Value:
        result = rewriter.value(real.shape, DType.F32, f"{end.outputs[0].name}/{op}")
        rewriter.insert(op, attributes, operands, [result], before=end, origins=end.origins)
        return result

    squares = [made("SQUARE", NoAttrs(), part) for part in (real, imaginary)]
    return made("SQRT", NoAttrs(), made("ADD", Fused(), *squares))


def _tables(width: int, taken: int) -> tuple[Array, Array]:
    """Cosines and sines, f32[width / 2 + 1, taken]."""
    turns = np.outer(np.arange(width // 2 + 1), np.arange(taken)) % width
    angles = turns * (2 * np.pi / width)
    return np.cos(angles).astype(np.float32), (-np.sin(angles)).astype(np.float32)


PASS = Pass("spectrum", run)
