"""The spectrum of real numbers as matrix products, where only its magnitude or one part is used.

    x -> RFFT2D -> RESHAPE -> COMPLEX_ABS -> y

    x -> FULLY_CONNECTED, cosines -> SQUARE -> ADD -> SQRT -> y
      -> FULLY_CONNECTED, sines   -> SQUARE ->

No device has complex numbers, which would cut the front end of every model of sound in two. A
transform of a few hundred numbers is a small product for one. Only for devices, in F32 (f16 would
round the cosines), along one dimension, and where no numbers are cut off. Its errors are those of
sums of so many products; unlike the transform's own they do not shrink with the logarithm of the
length, and sizes whose squares overflow become infinite. Long ones go in two steps
(`long_spectrum`).
"""

from __future__ import annotations

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.lowering.precision import Precision
from tflgpu.ops.base import NoAttrs
from tflgpu.ops.binary import BinaryAttrs
from tflgpu.ops.fully_connected import FullyConnected
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext
from tflgpu.passes.long_spectrum import LONGEST, LongSpectrum, turns

#: Operators that read parts of a spectrum, and which. A CAST to a real type takes the real one.
_PARTS = {
    "COMPLEX_ABS": frozenset({"real", "imaginary"}),
    "REAL": frozenset({"real"}),
    "CAST": frozenset({"real"}),
    "IMAG": frozenset({"imaginary"}),
}
_RESHAPES = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")
#: Longer ones have too many products for one step.
_ONE_STEP = 1024
#: LiteRT has -0 for the imaginary parts of the first and the last number of a spectrum, which are
#: real, so that the phase of a negative one is minus half a turn. A sum of zeros is 0 of either
#: sign, and the phase would be chance; a negative number that no phase can show is not. FLOOR would
#: make -1 of it, so that only ATAN2 gets it.
_LEAST = np.float32(1.2e-38)


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
    return height == 1 == x.shape[-2] and x.shape[-1] <= width <= LONGEST


def _follow(rewriter: Rewriter, value: Value, between: list[Node], ends: list[Node]) -> bool:
    """Whether all that becomes of a spectrum is parts of it; which, and what gives it other
    shapes."""
    if rewriter.is_output(value):
        return False
    for use in rewriter.uses(value):
        if use.op in _PARTS and use.outputs[0].dtype is DType.F32:
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
    shape = (rows, taken)
    spec = shape, DType.F32, f"{x.name}/rows"
    flat = rewriter.result_of("RESHAPE", ReshapeAttrs(shape), [x], spec, before=node)
    wanted = frozenset[str]().union(*(_PARTS[end.op] for end in ends))
    parts = _parts(rewriter, node, flat, width, tuple(sorted(wanted)))
    phases = [use for end in ends if end.op == "IMAG" for use in _phases(rewriter, end.outputs[0])]
    signed = _signed(rewriter, node, parts["imaginary"]) if phases else None
    for phase in phases:
        read = phase.input(0)
        again = rewriter.result_of(
            "RESHAPE",
            ReshapeAttrs(read.shape),
            [signed],
            (read.shape, DType.F32, f"{read.name}/signed"),
            before=phase,
            origins=node.origins,
        )
        rewriter.set_input(phase, 0, again)
    for end in ends:
        found = [parts[part] for part in sorted(_PARTS[end.op])]
        source = found[0] if len(found) == 1 else _size(rewriter, found, end)
        rewriter.replace([end], "RESHAPE", ReshapeAttrs(end.outputs[0].shape), [source])
    for gone in (*reversed(between), node):
        rewriter.remove(gone)


def _phases(rewriter: Rewriter, imaginary: Value) -> list[Node]:
    """The nodes that make angles of imaginary parts, perhaps in another shape."""
    found: list[Node] = []
    for use in rewriter.uses(imaginary):
        if use.op == "ATAN2" and use.input(0) is imaginary and use not in found:
            found.append(use)
        elif use.op in _RESHAPES and use.input(0) is imaginary:
            found += _phases(rewriter, use.outputs[0])
    return found


def _parts(
    rewriter: Rewriter, before: Node, rows: Value, width: int, wanted: tuple[str, ...]
) -> dict[str, Value]:
    count, taken = rows.shape
    name = before.outputs[0].name

    def made(op: str, operands: list[Value | None], columns: int, called: str) -> Value:
        spec = (count, columns), DType.F32, f"{name}/{called}"
        attributes = FullyConnected() if op == "FULLY_CONNECTED" else NoAttrs()
        return rewriter.result_of(op, attributes, operands, spec, before=before)

    if width <= _ONE_STEP:
        tables = _tables(width, taken)
        return {
            part: made(
                "FULLY_CONNECTED", [rows, rewriter.const(tables[part]), None], width // 2 + 1, part
            )
            for part in wanted
        }
    if taken < width:  # a frame that is shorter than its transform ends with zeros
        border = rewriter.const(np.array([[0, 0], [0, width - taken]], np.int32))
        rows = made("PAD", [rows, border], width, "filled")
    return LongSpectrum(rewriter, before).parts(rows, width, wanted)


def _signed(rewriter: Rewriter, before: Node, imaginary: Value) -> Value:
    """The imaginary parts, the first and the last of which are below 0 by next to nothing."""
    signs = np.zeros(imaginary.shape[-1], np.float32)
    signs[[0, -1]] = -_LEAST
    spec = imaginary.shape, DType.F32, f"{imaginary.name}/signed"
    operands = [imaginary, rewriter.const(signs)]
    return rewriter.result_of("ADD", BinaryAttrs(), operands, spec, before=before)


def _size(rewriter: Rewriter, parts: list[Value], end: Node) -> Value:
    def made(op: str, attributes: object, *operands: Value) -> Value:
        spec = parts[0].shape, DType.F32, f"{end.outputs[0].name}/{op}"
        return rewriter.result_of(op, attributes, operands, spec, before=end)

    squares = [made("SQUARE", NoAttrs(), part) for part in parts]
    return made("SQRT", NoAttrs(), made("ADD", BinaryAttrs(), *squares))


def _tables(width: int, taken: int) -> dict[str, Array]:
    """Cosines and sines with the sign of the imaginary part, each f32[width / 2 + 1, taken]."""
    cosines, sines = turns(np.outer(np.arange(width // 2 + 1), np.arange(taken)), width)
    return {"real": cosines.astype(np.float32), "imaginary": (-sines).astype(np.float32)}


PASS = Pass("spectrum", run)
