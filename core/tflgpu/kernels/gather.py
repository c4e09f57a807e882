"""GATHER, GATHER_ND, EMBEDDING_LOOKUP.

An index outside the operand is an error on the CPU. A kernel cannot raise one: it takes the
nearest row that exists, so that no invocation reads outside its buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernel.builder import Builder
from tflgpu.kernel.lowering import Lowering
from tflgpu.kernel.rule import KernelRule, Site
from tflgpu.kernel.tree import Expr
from tflgpu.kernel.view import ReadView
from tflgpu.kernels.moves import IndexMap, movable, move, position
from tflgpu.ops.gather import GatherAttrs, gather_axes


def _index_at(indices: ReadView, at: Sequence[Expr], size: int) -> Expr:
    """An element of the indices, limited to [0, size)."""
    k = indices.k
    lead, last = (at[:-1], at[-1]) if at else ((), k.i32(0))
    outer = position(lead, indices.shape[:-1])
    return k.let(k.clamp(indices.load_lane(outer, last), 0, size - 1), "row")


def _along(low: Lowering, operand: int, indices_at: int, axis: int, batch: int) -> None:
    dims = low.node.input(operand).shape
    index_rank = len(low.node.input(indices_at).shape)
    width = index_rank - batch  # dimensions of the result that stand for the axis

    def prepare(k: Builder) -> IndexMap:
        indices = low.read(k, indices_at)

        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            at = [*index[:batch], *index[axis : axis + width]]
            row = _index_at(indices, at, dims[axis])
            return [*index[:axis], row, *index[axis + width :]]

        return where

    move(low, prepare, operand=operand, vector=axis < len(dims) - 1)


def _gather(low: Lowering) -> None:
    attributes: GatherAttrs = low.attrs
    rank, index_rank = len(low.node.input(0).shape), len(low.node.input(1).shape)
    axis, batch = gather_axes(attributes, rank, index_rank)
    _along(low, 0, 1, axis, batch)


def _lookup(low: Lowering) -> None:
    _along(low, 1, 0, 0, 0)


def _gather_nd(low: Lowering) -> None:
    dims = low.node.input(0).shape
    *lead, columns = low.node.input(1).shape

    def prepare(k: Builder) -> IndexMap:
        indices = low.read(k, 1)

        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            at = index[: len(lead)]
            rows = [_index_at(indices, [*at, k.i32(i)], dims[i]) for i in range(columns)]
            return [*rows, *index[len(lead) :]]

        return where

    move(low, prepare, vector=columns < len(dims))


def _accepts(operand: int, indices_at: int) -> Callable[[Node, Site], str | None]:
    def accepts(node: Node, site: Site) -> str | None:
        indices = node.input(indices_at)
        # Constant indices were checked against the operand, so they fit 32 bits.
        if indices.data is None and indices.dtype is not DType.I32:
            return f"indices of {node.op} are {indices.dtype.value}; i32 runs on the GPU"
        return movable(node, node.input(operand), *node.outputs)

    return accepts


RULES = (
    KernelRule("GATHER", "move", _gather, _accepts(0, 1)),
    KernelRule("GATHER_ND", "move", _gather_nd, _accepts(0, 1)),
    KernelRule("EMBEDDING_LOOKUP", "move", _lookup, _accepts(1, 0)),
)
