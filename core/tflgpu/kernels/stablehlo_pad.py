"""STABLEHLO_PAD and DILATE."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import ElementSource, IndexMap, movable, move
from tflgpu.kernels.pad import fill_of
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.stablehlo_pad import spread_of


def _spread(low: Lowering) -> None:
    node = low.node
    dims, wanted = node.input(0).shape, node.outputs[0].shape
    spread = spread_of(node)

    def prepare(k: Builder) -> IndexMap:
        fill = fill_of(low, k, spread.value)

        def where(index: Sequence[Expr]) -> ElementSource:
            own: list[Expr] = []
            inside: list[Expr] = []
            each = zip(index, dims, wanted, spread.low, spread.steps, strict=True)
            for x, dim, size, before, step in each:
                at = k.let(x - before, "at") if before else x
                last = (dim - 1) * step
                conditions = [at >= 0] * (before > 0)
                conditions += [at <= last] * (size - 1 - before > last)
                conditions += [(at % step).eq(0)] * (step > 1)
                inside += conditions
                own.append(k.clamp(at, 0, last) // step if conditions else at)
            return ElementSource(own, inside, fill)

        return where

    before, step = spread.low[-1], spread.steps[-1]
    whole_vectors = step == 1 and before % 4 == 0 and dims[-1] % 4 == 0
    same = step == 1 and before == 0 and dims[-1] == wanted[-1]
    move(low, prepare, vector=same or whole_vectors)


def _accepts(node: Node, site: Site) -> str | None:
    return movable(node, node.input(0), node.input(spread_of(node).value), *node.outputs)


RULES = tuple(KernelRule(op, "move", _spread, _accepts) for op in ("STABLEHLO_PAD", "DILATE"))
