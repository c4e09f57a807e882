"""PAD, PADV2, MIRROR_PAD."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.moves import ElementSource, IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.pad import MirrorMode, MirrorPadAttrs, borders


def _pad(low: Lowering) -> None:
    node = low.node
    dims = node.input(0).shape
    border = borders(node.const(1))

    def prepare(k: Builder) -> IndexMap:
        fill = fill_of(low, k, 2)

        def where(index: Sequence[Expr]) -> ElementSource:
            own: list[Expr] = []
            inside: list[Expr] = []
            for x, dim, (before, after) in zip(index, dims, border, strict=True):
                at = x - before
                inside += [at >= 0] * (before > 0) + [at < dim] * (after > 0)
                at = k.max(at, 0) if before else at
                own.append(k.min(at, dim - 1) if after else at)
            return ElementSource(own, inside, fill)

        return where

    before, after = border[-1] if border else (0, 0)
    whole_vectors = before % 4 == 0 and (dims[-1] % 4 == 0 or after == 0)
    move(low, prepare, vector=bool(border) and whole_vectors)


def fill_of(low: Lowering, k: Builder, operand: int) -> Operand:
    """The number that an operand of one element is; 0 where it is absent."""
    value = low.node.optional_input(operand)
    if value is None:
        return 0
    if value.data is None:
        return k.let(low.read(k, operand).load_lane(0, 0), "fill")
    number = value.data.reshape(-1)[0]
    return float(number) if value.dtype.is_float else int(number)


def _mirror(low: Lowering) -> None:
    attributes: MirrorPadAttrs = low.attrs
    dims = low.node.input(0).shape
    border = borders(low.node.const(1))
    # What the element before the first is: the second (REFLECT) or the first (SYMMETRIC).
    shift = 0 if attributes.mode is MirrorMode.REFLECT else 1

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            own: list[Expr] = []
            for x, dim, (before, after) in zip(index, dims, border, strict=True):
                at = k.let(x - before, "at")
                if before:
                    at = k.let(k.select(at < 0, -at - shift, at), "at")
                if after:
                    at = k.select(at >= dim, 2 * (dim - 1) + shift - at, at)
                own.append(at)
            return own

        return where

    move(low, prepare, vector=bool(border) and border[-1] == (0, 0))


RULES = (
    KernelRule("PAD", "move", _pad, accepts_moves(0), pointwise=True),
    KernelRule("PADV2", "move", _pad, accepts_moves(0, 2), pointwise=True),
    KernelRule("MIRROR_PAD", "move", _mirror, accepts_moves(0), pointwise=True),
)
