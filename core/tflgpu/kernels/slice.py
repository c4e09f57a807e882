"""SLICE and STRIDED_SLICE."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernel.builder import Builder
from tflgpu.kernel.lowering import Lowering
from tflgpu.kernel.rule import KernelRule
from tflgpu.kernel.tree import Expr
from tflgpu.kernels.moves import IndexMap, accepts_data, move
from tflgpu.ops.axes import integers
from tflgpu.ops.slice import Box, StridedSliceAttrs, slice_box, strided_box


def _cut(low: Lowering, box: Box) -> None:
    # Dimensions of size 1 that STRIDED_SLICE made are skipped, those it dropped come back.
    kept = [c for c in box.cuts if c.keep]
    is_new = _new_dimensions(box)

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            own = iter([x for x, new in zip(index, is_new, strict=True) if not new])
            return [
                next(own) * cut.step + cut.start if cut.keep else k.i32(cut.start)
                for cut in box.cuts
            ]

        return where

    last = box.cuts[-1] if box.cuts else None
    vector = (
        last is not None
        and last.keep
        and last.step == 1
        and last.start % 4 == 0
        and not is_new[-1]
        and bool(kept)
    )
    move(low, prepare, vector=vector)


def _new_dimensions(box: Box) -> list[bool]:
    return list(box.new)


def _slice(low: Lowering) -> None:
    node = low.node
    _cut(low, slice_box(node.input(0).shape, integers(node.const(1)), integers(node.const(2))))


def _strided(low: Lowering) -> None:
    node = low.node
    attributes: StridedSliceAttrs = low.attrs
    begin, end, strides = (integers(node.const(i)) for i in (1, 2, 3))
    _cut(low, strided_box(attributes, node.input(0).shape, begin, end, strides))


RULES = (
    KernelRule("SLICE", "move", _slice, accepts_data),
    KernelRule("STRIDED_SLICE", "move", _strided, accepts_data),
)
