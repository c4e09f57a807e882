"""STABLEHLO_GATHER and STABLEHLO_BROADCAST_IN_DIM.

Indices of 64 bits run on a GPU where they are constants: they are limited to the operand first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Value
from tflgpu.kernels.moves import IndexMap, accepts_moves, movable, move, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.ops.stablehlo_gather import BroadcastInDim, StablehloGather


def _gather(low: Lowering) -> None:
    a: StablehloGather = low.attrs
    dims = low.node.input(0).shape
    kept = [axis for axis in range(len(dims)) if axis not in a.collapsed]

    def prepare(k: Builder) -> IndexMap:
        rows = low.read(k, 1)

        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            batch = [x for axis, x in enumerate(index) if axis not in a.offset]
            own: list[Expr] = [k.i32(0)] * len(dims)
            for axis, at in zip(kept, a.offset, strict=True):
                own[axis] = index[at]
            for column, axis in enumerate(a.starts):
                room = dims[axis] - a.sizes[axis]
                if not room:
                    continue
                given = start_of(rows, batch, a.vector, column)
                own[axis] = own[axis] + k.let(k.clamp(given, 0, room), "first")
            return own

        return where

    # Whole rows of channels stay whole.
    last = len(dims) - 1
    whole = last in kept and a.sizes[last] == dims[last]
    shape = low.node.outputs[0].shape
    move(low, prepare, vector=whole and a.offset[-1:] == (len(shape) - 1,))


def start_of(rows: ReadView, row: Sequence[Expr], vector: int, column: int) -> Expr:
    """Where the box of a row begins, along the axis of one column of the indices, whose columns lie
    along their axis ``vector``."""
    place = list(row)
    if vector < len(rows.shape):
        place.insert(vector, rows.k.i32(column))
    return rows.load_flat(position(place, rows.shape)) if place else rows.load_lane(0, 0)


def _accepts_gather(node: Node, site: Site) -> str | None:
    indices = node.input(1)
    if not fits_32_bits(indices):
        return f"indices of {node.op} are {indices.dtype.value}; i32 runs on the GPU"
    return movable(node, node.input(0), *node.outputs)


def fits_32_bits(indices: Value) -> bool:
    """Whether indices are of 32 bits, or constants that 32 bits hold."""
    if indices.dtype is DType.I32 or indices.data is None:
        return indices.dtype is DType.I32
    limits = np.iinfo(np.int32)
    return bool(((indices.data >= limits.min) & (indices.data <= limits.max)).all())


def _broadcast(low: Lowering) -> None:
    attributes: BroadcastInDim = low.attrs
    dims = low.node.input(0).shape

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            each = zip(dims, attributes.dims, strict=True)
            return [k.i32(0) if size == 1 else index[axis] for size, axis in each]

        return where

    last = len(attributes.shape) - 1
    whole = bool(dims) and attributes.dims[-1] == last and dims[-1] == attributes.shape[last]
    move(low, prepare, vector=whole)


RULES = (
    KernelRule("STABLEHLO_GATHER", "move", _gather, _accepts_gather),
    KernelRule("STABLEHLO_BROADCAST_IN_DIM", "move", _broadcast, accepts_moves()),
)
