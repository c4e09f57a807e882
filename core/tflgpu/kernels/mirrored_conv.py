"""MIRROR_PAD and the CONV_2D that reads it, as one product that reads mirrored pixels in place.

Where a convolution's window leaves the image it turns back, so the padded image need not exist. The
kernels are those of a convolution alone (`products.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernels.conv import constant_weights, conv_problem, product_size
from tflgpu.kernels.gemm import Problem
from tflgpu.kernels.products import Family
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import GroupRule, KernelRule, Maker, Site
from tflgpu.ops.base import Padding
from tflgpu.ops.facets import Pads
from tflgpu.ops.pad import MirrorMode, borders


def _pair(node: Node, maker: Maker, site: Site) -> tuple[Node, Node] | None:
    border = maker(node.input(0))
    if border is None or border.op != "MIRROR_PAD" or constant_weights(node, site):
        return None
    if node.attrs.padding is not Padding.VALID or node.attrs.pads is not None:
        return None
    if border.input(1).data is None or node.input(1).shape[3] != node.input(0).shape[3]:
        return None
    batch, _, _, channels = borders(border.const(1))
    return (border, node) if (*batch, *channels) == (0, 0, 0, 0) else None


def _joined(border: Node, node: Node) -> Node:
    """The convolution on the image without its border."""
    _, (top, bottom), (left, right), _ = borders(border.const(1))
    attributes = attrs.evolve(node.attrs, pads=Pads(top, bottom, left, right))
    return Node(node.op, attributes, [border.input(0), *node.inputs[1:]], node.outputs)


def _problems(low: Lowering) -> Iterator[Problem]:
    border: Node = low.nodes[0]
    yield conv_problem(low, turn=0 if border.attrs.mode is MirrorMode.REFLECT else 1)


_FAMILY = Family("CONV_2D", constant_weights, product_size, _problems)


def _rule(kernel: KernelRule) -> GroupRule:
    """The rule of both nodes by one of the convolution's kernels."""

    def match(node: Node, maker: Maker, site: Site) -> Sequence[Node] | None:
        pair = _pair(node, maker, site)
        return None if pair is None or kernel.accepts(_joined(*pair), site) else pair

    def build(low: Lowering) -> None:
        low.node = _joined(*low.nodes)
        kernel.build(low)

    return GroupRule("CONV_2D", f"mirrored_{kernel.name}", match, build)


RULES = tuple(map(_rule, _FAMILY.rules()))
