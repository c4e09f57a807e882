"""TILE, BROADCAST_TO, REVERSE_V2, FILL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.kernels.moves import IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.axes import integers
from tflgpu.ops.tile import reverse_axes


def _repeat(operand: int) -> Callable[[Lowering], None]:
    """Each index modulo the operand's dimension; dimensions line up at the back."""

    def build(low: Lowering) -> None:
        dims = low.node.input(operand).shape
        wanted = low.node.outputs[0].shape

        def prepare(k: Builder) -> IndexMap:
            def where(index: Sequence[Expr]) -> Sequence[Expr]:
                own = index[len(index) - len(dims) :]
                sizes = wanted[len(wanted) - len(dims) :]
                return [
                    k.i32(0) if d == 1 else x if d == size else x % d
                    for x, d, size in zip(own, dims, sizes, strict=True)
                ]

            return where

        vector = dims[-1:] != () and (dims[-1] == wanted[-1] or dims[-1] % 4 == 0)
        move(low, prepare, operand=operand, vector=vector)

    return build


def _reverse(low: Lowering) -> None:
    dims = low.node.input(0).shape
    axes = reverse_axes(integers(low.node.const(1)), len(dims))

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            return [dims[d] - 1 - x if d in axes else x for d, x in enumerate(index)]

        return where

    move(low, prepare, vector=len(dims) - 1 not in axes)


RULES = (
    KernelRule("TILE", "move", _repeat(0), accepts_moves(0), pointwise=True),
    KernelRule("BROADCAST_TO", "move", _repeat(0), accepts_moves(0), pointwise=True),
    KernelRule("REVERSE_V2", "move", _reverse, accepts_moves(0), pointwise=True),
    KernelRule("FILL", "move", _repeat(1), accepts_moves(1), pointwise=True),
)
