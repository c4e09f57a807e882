"""REVERSE_SEQUENCE.

A length beyond the dimension is an error on the CPU. A kernel cannot raise one: that sequence is
NaN, the smallest i32, or false. Constant lengths are checked when a model is opened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import NOWHERE, ElementSource, IndexMap, movable, move
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.ops.reverse_sequence import ReverseSequenceAttrs


def _reverse(low: Lowering) -> None:
    attributes: ReverseSequenceAttrs = low.attrs
    seq, batch = attributes.seq_dim, attributes.batch_dim
    x = low.node.input(0)
    size, known = x.shape[seq], low.node.input(1).is_const

    def prepare(k: Builder) -> IndexMap:
        lengths = low.read(k, 1)

        def where(index: Sequence[Expr]) -> ElementSource:
            length = k.let(lengths.load_lane(0, index[batch]), "length")
            inside = [] if known else [length <= size]
            end = length if known else k.min(length, size)
            at = k.let(k.select(index[seq] < end, end - 1 - index[seq], index[seq]), "at")
            source = [*index[:seq], at, *index[seq + 1 :]]
            return ElementSource(source, inside, NOWHERE.get(x.dtype, math.nan))

        return where

    move(low, prepare, vector=len(x.shape) - 1 not in (seq, batch))


def _accepts(node: Node, site: Site) -> str | None:
    lengths = node.input(1)
    # Constant lengths were checked against the dimension, so they fit 32 bits.
    if lengths.contents is None and lengths.dtype is not DType.I32:
        return f"lengths of {node.op} are {lengths.dtype.value}; i32 runs on the GPU"
    return movable(node, node.input(0), *node.outputs)


RULES = (KernelRule("REVERSE_SEQUENCE", "move", _reverse, _accepts, pointwise=True),)
