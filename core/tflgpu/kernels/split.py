"""SPLIT, SPLIT_V, UNPACK: one dispatch per result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.kernels.moves import IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.axes import integers, normal_axis
from tflgpu.ops.split import UnpackAttrs


def _cut(low: Lowering, operand: int, axis: int) -> None:
    shape = low.node.input(operand).shape
    axis = normal_axis(low.node.op, axis, len(shape))
    start = 0
    for output, value in enumerate(low.node.outputs):
        move(
            low,
            _shift(axis, start),
            operand=operand,
            output=output,
            vector=axis < len(shape) - 1 or start % 4 == 0,
        )
        start += value.shape[axis]


def _shift(axis: int, start: int) -> Callable[[Builder], IndexMap]:
    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            return [x + start if d == axis else x for d, x in enumerate(index)]

        return where

    return prepare


def _split(low: Lowering) -> None:
    _cut(low, 1, integers(low.node.const(0))[0])


def _split_v(low: Lowering) -> None:
    _cut(low, 0, integers(low.node.const(2))[0])


def _unpack(low: Lowering) -> None:
    attributes: UnpackAttrs = low.attrs
    rank = len(low.node.input(0).shape)
    axis = normal_axis("UNPACK", attributes.axis, rank)
    for output in range(len(low.node.outputs)):
        move(low, _pick(axis, output), output=output, vector=axis < rank - 1)


def _pick(axis: int, at: int) -> Callable[[Builder], IndexMap]:
    def prepare(k: Builder) -> IndexMap:
        return lambda index: [*index[:axis], k.i32(at), *index[axis:]]

    return prepare


RULES = (
    KernelRule("SPLIT", "move", _split, accepts_moves(1), pointwise=True),
    KernelRule("SPLIT_V", "move", _split_v, accepts_moves(0), pointwise=True),
    KernelRule("UNPACK", "move", _unpack, accepts_moves(0), pointwise=True),
)
