"""Nodes that only hand on the elements of an operand go away, or become a RESHAPE.

x -> SLICE of everything -> y -> f            x -> f
x -> TRANSPOSE of sizes 1 -> y                x -> RESHAPE -> y
x -> SQUEEZE -> RESHAPE -> y                  x -> RESHAPE -> y
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.axes import integers
from tflgpu.ops.reduce import reduced_axes
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.slice import StridedSliceAttrs, strided_box
from tflgpu.ops.transpose import permutation
from tflgpu.passes.base import Pass
from tflgpu.passes.match import is_linear, is_plain, scalar_of


def run(graph: Graph) -> int:
    """Remove or rewrite every one there is."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes():
        index = _copied_operand(node)
        if index is not None:
            _simplify(rewriter, node, index)
    return rewriter.edits


def _copied_operand(node: Node) -> int | None:
    """The operand whose elements are the result's, in row-major order; None where there is none."""
    rule = _COPIES.get(node.op)
    if rule is None or len(node.outputs) != 1:
        return None
    index = rule(node)
    if index is None:
        return None
    source, result = node.input(index), node.outputs[0]
    same = source.dtype is result.dtype and source.quant == result.quant
    return index if same and source.elements == result.elements else None


def _simplify(rewriter: Rewriter, node: Node, index: int) -> None:
    source, result = node.input(index), node.outputs[0]
    if source.shape == result.shape:
        if rewriter.bypass(node, index):
            rewriter.count()
            return
    elif 0 in result.shape:
        return  # a RESHAPE to [0] means a scalar
    before = rewriter.producer(source)
    if before is not None and before.op in _VIEWS and _copied_operand(before) == 0:
        # Where others read the first view's result it stays, for them.
        if rewriter.sole_use(source) is node:
            node.origins = merged_origins(before, node)
        _make_reshape(rewriter, node, before.input(0))
    elif node.op != "RESHAPE":
        _make_reshape(rewriter, node, source)


def _make_reshape(rewriter: Rewriter, node: Node, source: Value) -> None:
    rewriter.replace([node], "RESHAPE", ReshapeAttrs(node.outputs[0].shape), [source])
    rewriter.count()


# Rules: the operand that an op copies, if this node does. Sizes are compared by the caller.


def _first(node: Node) -> int | None:
    return 0


def _second(node: Node) -> int | None:
    return 1


def _only(node: Node) -> int | None:
    return 0 if len(node.inputs) == 1 and is_linear(node) else None


def _strided(node: Node) -> int | None:
    """Nothing left out (sizes are equal), so only the direction matters."""
    begin, end, strides = (_integers(node, i) for i in (1, 2, 3))
    if begin is None or end is None or strides is None:
        return None
    assert isinstance(node.attrs, StridedSliceAttrs)
    box = strided_box(node.attrs, node.input(0).shape, begin, end, strides)
    return 0 if all(cut.step == 1 or cut.size == 1 for cut in box.cuts) else None


def _transposed(node: Node) -> int | None:
    """Dimensions of more than one element keep their order."""
    shape, order = node.input(0).shape, _integers(node, 1)
    if order is None:
        return None
    moved = [axis for axis in permutation(order, len(shape)) if shape[axis] != 1]
    return 0 if moved == sorted(moved) else None


def _resized(node: Node) -> int | None:
    """Of the same size: whatever the flags say, each pixel falls on itself."""
    return 0 if node.input(0).shape == node.outputs[0].shape else None


def _neutral(number: float, sides: tuple[int, ...]) -> Callable[[Node], int | None]:
    """Arithmetic with a constant that changes nothing on one of the given ``sides``."""

    def rule(node: Node) -> int | None:
        if not is_linear(node) or not is_plain(node):
            return None
        for side in sides:
            other = node.input(1 - side)
            if scalar_of(node.input(side)) == number and not other.is_const:
                return 1 - side if other.shape == node.outputs[0].shape else None
        return None

    return rule


def _reduced(node: Node) -> int | None:
    """Over dimensions of size 1."""
    shape, axes = node.input(0).shape, _integers(node, 1)
    if axes is None or not is_plain(node):
        return None
    return 0 if prod(shape[a] for a in reduced_axes(node.op, axes, len(shape))) == 1 else None


def _integers(node: Node, index: int) -> tuple[int, ...] | None:
    data: Array | None = node.input(index).data
    return None if data is None else integers(data)


_VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})

_COPIES: Mapping[str, Callable[[Node], int | None]] = {
    "RESHAPE": _first,
    "SQUEEZE": _first,
    "EXPAND_DIMS": _first,
    "SLICE": _first,
    "STRIDED_SLICE": _strided,
    "TRANSPOSE": _transposed,
    "PAD": _first,
    "PADV2": _first,
    "MIRROR_PAD": _first,
    "TILE": _first,
    "BROADCAST_TO": _first,
    "CONCATENATION": _only,
    "ADD_N": _only,
    "PACK": _only,
    "UNPACK": _only,
    "SPLIT": _second,
    "SPLIT_V": _first,
    "CAST": _first,
    "RESIZE_BILINEAR": _resized,
    "RESIZE_NEAREST_NEIGHBOR": _resized,
    "ADD": _neutral(0.0, (0, 1)),
    "SUB": _neutral(0.0, (1,)),
    "MUL": _neutral(1.0, (0, 1)),
    "DIV": _neutral(1.0, (1,)),
    "MEAN": _reduced,
    "SUM": _reduced,
    "REDUCE_MAX": _reduced,
    "REDUCE_MIN": _reduced,
    "REDUCE_PROD": _reduced,
}

PASS = Pass("remove_noops", run)
