"""MATRIX_DIAG and MATRIX_SET_DIAG."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import ElementSource, IndexMap, accepts_moves, movable, move, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.diagonal import diagonal_of


def _diag(low: Lowering) -> None:
    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> ElementSource:
            return ElementSource(index[:-1], [index[-2].eq(index[-1])])

        return where

    move(low, prepare, vector=False)


def _set_diag(low: Lowering) -> None:
    shape = low.node.outputs[0].shape

    def prepare(k: Builder) -> IndexMap:
        x = low.read(k, 0)

        def where(index: Sequence[Expr]) -> ElementSource:
            row, column = index[-2:]
            # Rows below the last column have no element of the diagonal.
            source = [*index[:-2], k.min(row, min(shape[-2:]) - 1)]
            other = x.load_lane(position(index[:-1], shape[:-1]), column)
            return ElementSource(source, [row.eq(column)], other)

        return where

    move(low, prepare, operand=1, vector=False)


def _accepts_set(node: Node, site: Site) -> str | None:
    given, wanted = node.input(1).shape, diagonal_of(node.input(0).shape)
    if given != wanted:
        return f"the diagonal has shape {list(given)}; kernels read one of {list(wanted)}"
    return movable(node)


RULES = (
    KernelRule("MATRIX_DIAG", "move", _diag, accepts_moves()),
    KernelRule("MATRIX_SET_DIAG", "move", _set_diag, _accepts_set),
)
