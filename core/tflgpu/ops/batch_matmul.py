"""BATCH_MATMUL, versions 1-4: products of matrices in the last two dimensions.

``adj_x`` and ``adj_y`` transpose the matrices of an operand; the dimensions before them
broadcast as in NumPy.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Composed,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Reading,
    Sample,
)
from tflgpu.ops.composed import there
from tflgpu.ops.digit_sums import of_matrices
from tflgpu.ops.elementwise import broadcast_shape
from tflgpu.ops.facets import Batched, Items, Work
from tflgpu.ops.items import broadcast
from tflgpu.ops.positions import Along, Positions, aligned
from tflgpu.ops.products import floats, needed, take
from tflgpu.ops.quantize_on_the_fly import rounding_of
from tflgpu.ops.quantized import Hybrid, OnTheFly, Rounding
from tflgpu.ops.stored_total import of_product
from tflgpu.values import frozen

_OP = "BATCH_MATMUL"


@frozen
class BatchMatMul:
    """Which operands hold their matrices transposed; ``rounding`` is that of float rows on the
    left where the right matrices are 8-bit numbers."""

    adj_x: bool = False
    adj_y: bool = False
    rounding: Rounding = Rounding.SYMMETRIC


def _parse(fields: Fields) -> BatchMatMul:
    return BatchMatMul(fields.flag("adj_x"), fields.flag("adj_y"), rounding_of(fields))


def _read_runtime(fields: Fields, operands: Operands) -> list[Reading]:
    """A product with a cache: how much of that is in use, which a third operand says, changes what
    is read by some GPUs and not what comes out."""
    there(operands, 2, 3)
    return [Reading(BatchMatMul(adj_y=True), (0, 1)), Reading(BatchMatMul(), (0, 1))]


_COMPOSED = Composed(
    ("odml.runtime_bmm",), _read_runtime, frozenset({"is_global", "is_src", "rhs_cache_update"})
)


def _infer(attributes: BatchMatMul, operands: Operands) -> list[TensorSpec]:
    given = take(_OP, operands, ("left operand", "right operand"))
    # Any size may be 0; sums of nothing are.
    left, right = (
        needed(_OP, o, f"{what} operand", batch=0 if o is None else o.rank)
        for o, what in zip(given, ("left", "right"), strict=True)
    )
    for operand, what in ((left, "left"), (right, "right")):
        if operand.rank < 2:
            raise ModelError(f"{_OP}: the {what} operand {list(operand.shape)} is no matrix")
    rows, depth = _matrix(left.shape, attributes.adj_x)
    inner, columns = _matrix(right.shape, attributes.adj_y)
    if depth != inner:
        raise ModelError(
            f"{_OP}: matrices of {rows}x{depth} and {inner}x{columns} "
            f"(operands {list(left.shape)} and {list(right.shape)}) cannot be multiplied"
        )
    batch = broadcast_shape(_OP, left.shape[:-2], right.shape[:-2])
    return [TensorSpec((*batch, rows, columns), left.dtype)]


def _matrix(shape: Shape, transposed: bool) -> tuple[int, int]:
    return (shape[-1], shape[-2]) if transposed else (shape[-2], shape[-1])


def _reference(attributes: BatchMatMul, arrays: Arrays) -> list[Array]:
    left, right = floats(_OP, arrays[0]), floats(_OP, arrays[1])
    if attributes.adj_x:
        left = left.swapaxes(-1, -2)
    if attributes.adj_y:
        right = right.swapaxes(-1, -2)
    given = arrays[0]
    assert given is not None
    return [np.matmul(left, right).astype(given.dtype, copy=False)]


def _case(
    id: str,
    left: Shape,
    right: Shape,
    *,
    adj_x: bool = False,
    adj_y: bool = False,
    const: bool = False,
) -> Sample:
    depth = left[-2] if adj_x else left[-1]
    fields = {"adj_x": adj_x, "adj_y": adj_y}
    return Sample(id, fields, (Arg(left), Arg(right, const=const)), accumulates=depth)


def _samples() -> list[Sample]:
    return [
        _case("matrices", (5, 7), (7, 3)),
        _case("batch", (3, 5, 7), (3, 7, 9)),
        _case("aligned", (2, 8, 16), (2, 16, 12)),
        _case("heads", (1, 4, 17, 6), (1, 4, 6, 17)),
        _case("adj_x", (2, 7, 5), (2, 7, 3), adj_x=True),
        _case("adj_y", (2, 5, 7), (2, 3, 7), adj_y=True),
        _case("adj_both", (3, 7, 5), (3, 6, 7), adj_x=True, adj_y=True),
        _case("adj_y_heads", (2, 3, 11, 10), (2, 3, 13, 10), adj_y=True),
        _case("broadcast_right", (3, 5, 7), (7, 4)),
        _case("broadcast_left", (5, 7), (3, 7, 4)),
        _case("broadcast_both", (3, 1, 5, 6), (1, 2, 6, 5)),
        _case("broadcast_adj", (3, 7, 5), (1, 4, 7), adj_x=True, adj_y=True),
        _case("row", (2, 1, 19), (2, 19, 5)),
        _case("column", (2, 5, 19), (2, 19, 1)),
        _case("outer", (2, 5, 1), (2, 1, 6)),
        _case("deep", (1, 3, 517), (1, 517, 5)),
        _case("larger", (2, 35, 33), (2, 33, 37)),
        _case("rank5", (2, 1, 3, 4, 5), (1, 2, 3, 5, 6)),
        _case("const_right", (2, 5, 7), (7, 6), const=True),
    ]


def _depth(node: Node) -> int:
    return node.input(0).shape[-2 if node.attrs.adj_x else -1]


def _work(node: Node) -> Work | None:
    return Work.of(node, 2 * node.outputs[0].elements * _depth(node))


def _hybrid(node: Node) -> Hybrid:
    """A row of a left matrix has a range of its own. XNNPACK takes constant matrices on the
    right."""
    rank = len(node.input(0).shape)
    axis = rank - (2 if node.attrs.adj_x else 1)
    taken = node.input(1).data is not None
    return Hybrid((OnTheFly((axis,), Rounding.EVEN if taken else node.attrs.rounding),))


def _batch(node: Node, items: Items) -> Batched | str:
    result = node.outputs[0].shape
    if len(result) == 2:  # rows of the result are those of the left operand
        if items.operands == {0} and not node.attrs.adj_x:
            return Batched(node.attrs)
        return broadcast(node, items, 2)
    constants = {}
    for i in (0, 1):
        value = node.input(i)
        has_rows = len(value.shape) == len(result)
        if i in items.operands:
            if not has_rows or value.shape[0] != result[0]:
                return broadcast(node, items, 2)
        elif has_rows and value.shape[0] != 1:
            if value.data is None:
                return broadcast(node, items, 2)
            constants[i] = items.times(value.data)
    return Batched(node.attrs, constants)


def _positions(node: Node, cut: Node) -> Positions:
    rank, summed = len(node.outputs[0].shape), Along(fill=0)
    found = []
    for i, is_turned in enumerate((node.attrs.adj_x, node.attrs.adj_y)):
        outer = list(aligned(node.input(i), rank))[:-2]
        inner = [summed, Along(rank - 1)] if i else [Along(rank - 2), summed]
        found.append([*outer, *(reversed(inner) if is_turned else inner)])
    return Positions(found, is_product=True)


OPS = (
    OpDef(
        _OP,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=4, composed=(_COMPOSED,)),
        device=OnDevice(work=_work),
        quantized=Quantized(
            hybrid=_hybrid,
            digits=of_matrices(_depth),
            results=lambda node: of_product(node, _depth(node)),
        ),
        batch=_batch,
        positions=_positions,
    ),
)
