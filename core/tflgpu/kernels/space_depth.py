"""DEPTH_TO_SPACE, SPACE_TO_DEPTH, BATCH_TO_SPACE_ND, SPACE_TO_BATCH_ND."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.moves import ElementSource, IndexMap, accepts_moves, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.space_depth import BlockAttrs, blocks_of


def _depth_to_space(low: Lowering) -> None:
    attributes: BlockAttrs = low.attrs
    size = attributes.block_size
    channels = low.node.outputs[0].shape[3]

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            n, y, x, c = index
            place = (y % size) * size + x % size
            return [n, y // size, x // size, place * channels + c]

        return where

    move(low, prepare, vector=channels % 4 == 0)


def _space_to_depth(low: Lowering) -> None:
    attributes: BlockAttrs = low.attrs
    size = attributes.block_size
    channels = low.node.input(0).shape[3]

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            n, y, x, c = index
            place = k.let(c // channels, "place")
            return [n, y * size + place // size, x * size + place % size, c % channels]

        return where

    move(low, prepare, vector=channels % 4 == 0)


def _batch_to_space(low: Lowering) -> None:
    blocks = blocks_of(low.node.const(1), low.node.const(2))
    batch = low.node.outputs[0].shape[0]

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> Sequence[Expr]:
            n, *sides, c = index
            place: Expr = k.i32(0)
            own: list[Expr] = []
            for x, size, (before, _) in zip(sides, blocks.sizes, blocks.edges, strict=True):
                at = k.let(x + before, "at")
                place = place * size + at % size
                own.append(at // size)
            return [place * batch + n, *own, c]

        return where

    move(low, prepare, vector=True)


def _space_to_batch(low: Lowering) -> None:
    blocks = blocks_of(low.node.const(1), low.node.const(2))
    batch, *dims, _ = low.node.input(0).shape

    def prepare(k: Builder) -> IndexMap:
        def where(index: Sequence[Expr]) -> ElementSource:
            n, *rows, c = index
            place = n // batch
            own: list[Expr] = []
            inside: list[Expr] = []
            sides = list(zip(rows, dims, blocks.sizes, blocks.edges, strict=True))
            for x, dim, size, (before, after) in reversed(sides):
                at = k.let(x * size + place % size - before, "at")
                place = place // size
                inside += [at >= 0] * (before > 0) + [at < dim] * (after > 0)
                own.append(k.clamp(at, 0, dim - 1) if before or after else at)
            return ElementSource([n % batch, *own[::-1], c], inside)

        return where

    move(low, prepare, vector=True)


RULES = (
    KernelRule("DEPTH_TO_SPACE", "move", _depth_to_space, accepts_moves(0)),
    KernelRule("SPACE_TO_DEPTH", "move", _space_to_depth, accepts_moves(0)),
    KernelRule("BATCH_TO_SPACE_ND", "move", _batch_to_space, accepts_moves(0)),
    KernelRule("SPACE_TO_BATCH_ND", "move", _space_to_batch, accepts_moves(0)),
)
