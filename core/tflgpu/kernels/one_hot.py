"""ONE_HOT."""

from __future__ import annotations

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import channel_of, movable, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import decompose
from tflgpu.ops.axes import normal_axis
from tflgpu.ops.one_hot import OneHotAttrs


def _scalar(low: Lowering, k: Builder, operand: int) -> Expr:
    return k.let(low.read(k, operand).load_lane(0, 0), "level")


def _one_hot(low: Lowering) -> None:
    attributes: OneHotAttrs = low.attrs
    node = low.node
    shape = node.outputs[0].shape
    axis = normal_axis("ONE_HOT", attributes.axis, len(shape))
    k = low.kernel("one_hot")
    indices = low.read(k, 0)
    on, off = _scalar(low, k, 2), _scalar(low, k, 3)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        lead = decompose(k, outer, shape[:-1])
        lanes = []
        for lane in range(4):
            index = [*lead, channel_of(k, slice_, min(lane, shape[-1] - 1), shape[-1])]
            rest = index[:axis] + index[axis + 1 :]
            at = position(rest[:-1], indices.shape[:-1])
            wanted = indices.load_lane(at, rest[-1] if rest else 0)
            lanes.append(k.let(k.select(wanted.eq(index[axis]), on, off), "lane"))
        out.store(outer, slice_, k.vec(lanes))


def _accepts(node: Node, site: Site) -> str | None:
    indices = node.input(0)
    if indices.dtype is not DType.I32:
        return f"indices of {node.op} are {indices.dtype.value}; i32 runs on the GPU"
    return movable(node, node.input(2), node.input(3), *node.outputs)


RULES = (KernelRule("ONE_HOT", "direct", _one_hot, _accepts),)
