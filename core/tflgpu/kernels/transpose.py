"""TRANSPOSE."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.moves import IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.axes import integers
from tflgpu.ops.transpose import permutation


def _transpose(low: Lowering) -> None:
    rank = len(low.node.input(0).shape)
    perm = permutation(integers(low.node.const(1)), rank)
    back = [perm.index(axis) for axis in range(rank)]

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            return [index[at] for at in back]

        return where

    move(low, prepare, vector=rank > 0 and perm[-1] == rank - 1)


RULES = (KernelRule("TRANSPOSE", "move", _transpose, accepts_moves(0), pointwise=True),)
