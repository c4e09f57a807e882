"""SLICE and STRIDED_SLICE."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.moves import IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.axes import integers
from tflgpu.ops.slice import Box, StridedSliceAttrs, slice_box, strided_box


def _cut(low: Lowering, box: Box) -> None:
    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            own = {d: x for d, x in zip(box.sources, index, strict=True) if d is not None}
            return [
                (own[d] if (cut.step, cut.start) == (1, 0) else own[d] * cut.step + cut.start)
                if d in own
                else k.i32(cut.start)
                for d, cut in enumerate(box.cuts)
            ]

        return where

    last = len(box.cuts) - 1
    vector = (
        box.sources[-1:] == (last,) and box.cuts[last].step == 1 and box.cuts[last].start % 4 == 0
    )
    move(low, prepare, vector=vector)


def _slice(low: Lowering) -> None:
    node = low.node
    _cut(low, slice_box(node.input(0).shape, integers(node.const(1)), integers(node.const(2))))


def _strided(low: Lowering) -> None:
    node = low.node
    attributes: StridedSliceAttrs = low.attrs
    begin, end, strides = (integers(node.const(i)) for i in (1, 2, 3))
    _cut(low, strided_box(attributes, node.input(0).shape, begin, end, strides))


RULES = (
    KernelRule("SLICE", "move", _slice, accepts_moves(0), pointwise=True),
    KernelRule("STRIDED_SLICE", "move", _strided, accepts_moves(0), pointwise=True),
)
