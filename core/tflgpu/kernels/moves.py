"""The kernel of ops that only move elements: each output element comes from one place.

An op says where, as a function from the index of an output element to the index of its source
(`IndexMap`). Where four neighbouring channels come from four neighbouring channels the map is
asked once per vector, else once per lane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, is_
from typing import Union

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Value
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.layout import Shape
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import Accepts, Site
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.values import frozen

#: Element types that kernels move: floats as the precision stores them, the others as i32.
MOVABLE = (DType.F32, DType.F16, DType.I32, DType.BOOL)
#: What comes of an index outside an operand, which a kernel cannot complain of; floats are NaN.
NOWHERE = {DType.I32: -(2**31), DType.BOOL: 0}


@frozen
class ElementSource:
    """Where an output element comes from.

    Attributes:
        index: One index per dimension of the operand; must be inside it even where ``inside`` does
            not hold.
        inside: Whether the element comes from there at all: where all of these hold.
        fill: What it is otherwise: a number, or a scalar of the operand's lane type.
    """

    index: Sequence[Expr]
    inside: Sequence[Expr] = ()
    fill: Operand = 0


#: Index of an output element, one per dimension -> its source.
IndexMap = Callable[[Sequence[Expr]], Union[ElementSource, Sequence[Expr]]]


def movable(node: Node, *values: Value | None) -> str | None:
    """Why a kernel cannot move these tensors (default: all of a node's), None where it can."""
    for value in values or (*node.inputs, *node.outputs):
        if value is None:
            continue
        if value.dtype not in MOVABLE:
            return (
                f"tensor {value.name} of {node.op} is {value.dtype.value}; "
                "f32, f16, i32 and bool run on the GPU"
            )
        if value.elements == 0:
            return f"tensor {value.name} of {node.op} has no elements"
    return None


def accepts_moves(*positions: int) -> Accepts:
    """`KernelRule.accepts` of an op that moves elements of the operands at these positions (of all,
    without any); the others are sizes or indices."""

    def accepts(node: Node, site: Site) -> str | None:
        return movable(node, *map(node.input, positions), *(node.outputs if positions else ()))

    return accepts


def position(index: Sequence[Operand], dims: Sequence[int]) -> Operand:
    """Row-major position of an index in ``dims``."""
    found: Operand = 0
    for i, dim in zip(index, dims, strict=True):
        found = i if isinstance(found, int) else found * dim + i
    return found


def channel_of(k: Builder, slice_: Expr, lane: int, channels: int) -> Expr:
    """The channel of a lane; for a padding lane, some channel that exists."""
    found = slice_ * 4 + lane
    is_padding_somewhere = channels % 4 and lane >= channels % 4
    return k.let(k.min(found, channels - 1) if is_padding_somewhere else found, "channel")


def gather_vector(
    src: ReadView,
    shape: Shape,
    outer: Expr,
    slice_: Expr,
    where: IndexMap,
    *,
    vector: bool,
    channel: Expr | None = None,
) -> Expr:
    """Four channels of an output of ``shape``, fetched from where ``where`` says; ``channel`` four
    times, where that is what is needed.

    ``vector`` promises that the four come from four channels in order, the first of which is a
    multiple of 4, and that ``inside`` is the same for all of them.
    """
    k = src.k
    lead = decompose(k, outer, shape[:-1])

    def source(channel: Expr) -> ElementSource:
        found = where([*lead, channel] if shape else [])
        return found if isinstance(found, ElementSource) else ElementSource(found)

    def chosen(found: ElementSource, value: Expr) -> Expr:
        return k.select(reduce(and_, found.inside), value, found.fill) if found.inside else value

    def lane_at(channel: Expr) -> Expr:
        found = source(channel)
        at = position(found.index[:-1], src.shape[:-1])
        last = found.index[-1] if src.shape else 0
        return k.let(chosen(found, src.load_lane(at, last)), "lane")

    if channel is not None:
        return k.splat(lane_at(channel), 4)
    if vector:
        found = source(slice_ * 4)
        # What only takes other channels reads the same row, whose number is at hand.
        same = src.shape[:-1] == shape[:-1] and all(map(is_, found.index[:-1], lead))
        at = outer if same else position(found.index[:-1], src.shape[:-1])
        return chosen(found, src.load(at, found.index[-1] // 4))
    lanes = []
    channels = shape[-1] if shape else 1
    for lane in range(4):
        if lane >= channels:
            lanes.append(k.const(0, src.vector_type.with_width(1)))
            continue
        lanes.append(lane_at(channel_of(k, slice_, lane, channels)))
    return k.vec(lanes)


def move(
    low: Lowering,
    prepare: Callable[[Builder], IndexMap],
    *,
    operand: int = 0,
    output: int = 0,
    vector: bool,
) -> None:
    """Write one output of the node, each element from one place in one operand.

    ``prepare`` is called once in the new kernel and may bind further operands.
    """
    if not low.makes(output):
        return
    k = low.kernel(low.node.op.lower())
    src = low.read(k, operand)
    where = prepare(k)
    out = low.write(k, output)
    with each_vector(low, k, out) as (outer, slice_):
        shape, channel = low.node.outputs[output].shape, low.channel
        low.took_channel = channel is not None
        value = gather_vector(src, shape, outer, slice_, where, vector=vector, channel=channel)
        out.store(outer, slice_, value)
