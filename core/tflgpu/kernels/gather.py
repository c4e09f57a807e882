"""GATHER, GATHER_ND, EMBEDDING_LOOKUP.

An index outside the operand, negative ones too, is an error on the CPU. A kernel cannot raise one:
where the index is outside, the result is NaN, the smallest i32, or false, and never another element
of the operand. Constant indices are checked when a model is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import NOWHERE, ElementSource, IndexMap, movable, move, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.ops.gather import GatherAttrs, gather_axes
from tflgpu.values import frozen


@frozen
class _Indices:
    """The indices of a node, and what its kernel makes of one that is outside."""

    view: ReadView
    known: bool  # constants, which were checked
    fill: float

    @classmethod
    def of(cls, low: Lowering, k: Builder, operand: int, source: int) -> _Indices:
        fill = NOWHERE.get(low.node.input(source).dtype, math.nan)
        return cls(low.read(k, operand), low.node.input(operand).is_const, fill)

    def at(self, place: Sequence[Expr], size: int) -> tuple[Expr, Expr | None]:
        """One of them, limited to [0, size); and whether it needed no limit, None = always."""
        k = self.view.k
        lead, last = (place[:-1], place[-1]) if place else ((), k.i32(0))
        given = k.let(self.view.load_lane(position(lead, self.view.shape[:-1]), last), "given")
        if self.known:
            return given, None
        row = k.let(k.clamp(given, 0, size - 1), "row")
        return row, row.eq(given)

    def source(self, index: Sequence[Expr], inside: Sequence[Expr | None]) -> ElementSource:
        """Where an element comes from: ``index``, if all of its parts are ``inside``."""
        return ElementSource(index, [part for part in inside if part is not None], self.fill)


def _along(low: Lowering, operand: int, indices_at: int, axis: int, batch: int) -> None:
    dims = low.node.input(operand).shape
    index_rank = len(low.node.input(indices_at).shape)
    width = index_rank - batch  # dimensions of the result that stand for the axis

    def prepare(k: Builder) -> IndexMap:
        indices = _Indices.of(low, k, indices_at, operand)

        def where(index: Sequence[Expr]) -> ElementSource:
            place = [*index[:batch], *index[axis : axis + width]]
            row, inside = indices.at(place, dims[axis])
            return indices.source([*index[:axis], row, *index[axis + width :]], [inside])

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
        indices = _Indices.of(low, k, 1, 0)

        def where(index: Sequence[Expr]) -> ElementSource:
            place = index[: len(lead)]
            found = [indices.at([*place, k.i32(i)], dims[i]) for i in range(columns)]
            rows, inside = zip(*found, strict=True)
            return indices.source([*rows, *index[len(lead) :]], inside)

        return where

    move(low, prepare, vector=columns < len(dims))


def _accepts(operand: int, indices_at: int) -> Callable[[Node, Site], str | None]:
    def accepts(node: Node, site: Site) -> str | None:
        indices = node.input(indices_at)
        # Constant indices were checked against the operand, so they fit 32 bits.
        if indices.contents is None and indices.dtype is not DType.I32:
            return f"indices of {node.op} are {indices.dtype.value}; i32 runs on the GPU"
        return movable(node, node.input(operand), *node.outputs)

    return accepts


RULES = (
    KernelRule("GATHER", "move", _gather, _accepts(0, 1), pointwise=True),
    KernelRule("GATHER_ND", "move", _gather_nd, _accepts(0, 1), pointwise=True),
    KernelRule("EMBEDDING_LOOKUP", "move", _lookup, _accepts(1, 0), pointwise=True),
)
