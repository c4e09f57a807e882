"""DYNAMIC_UPDATE_SLICE."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import ElementSource, IndexMap, movable, move, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site


def _update(low: Lowering) -> None:
    shape, box = low.node.outputs[0].shape, low.node.input(1).shape

    def prepare(k: Builder) -> IndexMap:
        x, start = low.read(k, 0), low.read(k, 2)
        first = [
            k.let(k.clamp(start.load_lane(0, k.i32(axis)), 0, size - length), "first")
            for axis, (size, length) in enumerate(zip(shape, box, strict=True))
        ]

        def where(index: Sequence[Expr]) -> ElementSource:
            source: list[Expr] = []
            inside: list[Expr] = []
            for at, begin, size, length in zip(index, first, shape, box, strict=True):
                if length == size:
                    source.append(at)
                    continue
                there = k.let(at - begin, "there")
                inside.append((there >= 0) & (there < length))
                source.append(k.clamp(there, 0, length - 1))
            if not inside:
                return ElementSource(source)
            return ElementSource(
                source, inside, x.load_lane(position(index[:-1], shape[:-1]), index[-1])
            )

        return where

    move(low, prepare, operand=1, vector=False)


def _accepts(node: Node, site: Site) -> str | None:
    start = node.input(2)
    if start.dtype is not DType.I32:
        return f"start indices of {node.op} are {start.dtype.value}; i32 runs on the GPU"
    return movable(node)


RULES = (KernelRule("DYNAMIC_UPDATE_SLICE", "move", _update, _accepts, pointwise=True),)
