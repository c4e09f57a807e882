"""TRANSPOSE: dimensions in another order. TFLite versions 1-9."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.axes import const_integers, integers, normal_axis, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Items
from tflgpu.ops.items import lifted, rows_of
from tflgpu.ops.moves import Moves, reordered
from tflgpu.ops.positions import Along, Positions
from tflgpu.ops.reshape import as_reshape


def permutation(perm: Sequence[int], rank: int) -> tuple[int, ...]:
    """The permutation, with every axis counted from the front.

    Raises:
        ModelError: it does not name each axis exactly once.
    """
    found = tuple(normal_axis("TRANSPOSE", a, rank, "perm entry") for a in perm)
    if sorted(found) != list(range(rank)):
        raise ModelError(f"TRANSPOSE: perm {listed(perm)} is no permutation of {rank} axes")
    return found


def _infer(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, order = take_operands("TRANSPOSE", operands, 2)
    perm = permutation(const_integers("TRANSPOSE", order, "perm (operand 1)"), x.rank)
    return [TensorSpec(tuple(x.shape[a] for a in perm), x.dtype)]


def _reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x = present(arrays[0])
    return [x.transpose(permutation(integers(present(arrays[1])), x.ndim)).copy()]


def _samples() -> list[Sample]:
    def sample(
        shape: tuple[int, ...], perm: Sequence[int], dtype: DType = DType.F32, id: str = ""
    ) -> Sample:
        id = id or "_".join(map(str, perm))
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg.of(perm, DType.I32)))

    return [
        sample((5, 7), [1, 0]),
        sample((8, 12), [1, 0], id="aligned"),
        sample((3, 5, 7), [0, 2, 1]),
        sample((3, 5, 7), [2, 0, 1]),
        sample((2, 3, 5, 7), [0, 2, 1, 3]),
        sample((2, 3, 5, 8), [0, 3, 1, 2]),
        sample((2, 3, 5, 6), [3, 2, 1, 0]),
        sample((1, 3, 5, 7), [0, 1, 2, 3]),
        sample((1, 2, 3, 2, 5), [4, 0, 3, 1, 2]),
        sample((1, 2, 3, 4, 5), [0, 1, 3, 2, 4], id="rank5_channels_stay"),
        sample((2, 1, 3, 2, 3, 2), [5, 1, 3, 0, 2, 4], id="rank6"),
        sample((7,), [0], id="vector"),
        sample((3, 5, 7), [0, -1, 1], id="negative"),
        sample((3, 5), [1, 0], DType.I32, "i32"),
        sample((3, 5), [1, 0], DType.BOOL, "bool"),
    ]


def order_of(node: Node) -> tuple[int, ...] | None:
    """The permutation of a node, None where it is not constant."""
    data = node.input(1).data
    return None if data is None else permutation(integers(data), len(node.input(0).shape))


def _moves(node: Node) -> Moves | None:
    order = order_of(node)
    return None if order is None else reordered(0, node.input(0).shape, order)


def _batch(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    if refused is not None:
        return refused
    shape = node.input(0).shape
    if permutation(integers(node.const(1)), len(shape))[:1] == (0,):
        return Batched(node.attrs)
    moves = _moves(node)
    if moves is not None and moves.is_identity(shape):  # axes of size 1 change places
        return as_reshape(node, items)
    order = np.array([0, *(n + 1 for n in permutation(integers(node.const(1)), len(shape)))])
    return lifted(node, items, (0,), constants={1: order.astype(node.const(1).dtype)})


def _positions(node: Node, cut: Node) -> Positions | str:
    order = order_of(node)
    if order is None:
        return "its order of axes is not known"
    return Positions([[Along(order.index(axis)) for axis in range(len(order))], [None]])


OPS = (
    OpDef(
        "TRANSPOSE",
        no_attrs,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        file=FileForm(max_version=9),
        movement=Movement(moves=_moves),
        batch=_batch,
        positions=_positions,
    ),
)
