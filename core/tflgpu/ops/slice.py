"""SLICE and STRIDED_SLICE: a box cut out of a tensor, with steps.

SLICE: TFLite versions 1-8; STRIDED_SLICE: 1-8 (``offset`` since 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops import draws
from tflgpu.ops.axes import const_integers, integers, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Items, Reordered
from tflgpu.ops.items import lifted, rows_of
from tflgpu.ops.moves import Moves, strides_of
from tflgpu.ops.positions import Along, Positions
from tflgpu.ops.reshape import as_reshape
from tflgpu.values import evolve, frozen


@frozen
class AxisSlice:
    """What to take along one dimension of the operand: ``size`` elements from ``start`` on,
    ``step`` apart (negative = backwards)."""

    start: int
    step: int
    size: int


@frozen
class Box:
    """What is taken of an operand, and how the result is made of it.

    Attributes:
        cuts: One for each dimension of the operand.
        sources: For each dimension of the result the operand's dimension that it is, None for a
            new one of size 1. Dimensions that are not named here have a cut of size 1.
    """

    cuts: tuple[AxisSlice, ...]
    sources: tuple[int | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(1 if d is None else self.cuts[d].size for d in self.sources)

    def take(self, x: Array) -> Array:
        """The box out of ``x``."""
        index = []
        for cut in self.cuts:
            stop = cut.start + cut.step * cut.size
            # A stop of -1 would count from the back; None is "past the first element".
            index.append(slice(cut.start, stop if stop >= 0 else None, cut.step))
        picked: Array = x[tuple(index)] if all(c.size for c in self.cuts) else x.reshape(-1)[:0]
        return np.array(picked.reshape(self.shape))


#: What XNNPACK's SLICE takes. TFLite's own kernel, which takes the rest, refuses a box that lies
#: outside.
_CUT_OFF = frozenset({DType.F32, DType.F16, DType.I8, DType.U8})


def slice_box(shape: Sequence[int], begin: Sequence[int], size: Sequence[int]) -> Box:
    """The box of SLICE; a size of -1 is all the rest.

    Where all sizes are positive, the box is what of it lies in the operand, as XNNPACK has it. That
    is how converters write ``x[:, :512]`` of an ``x`` whose sides only a run tells.

    Raises:
        ModelError: it is not inside the operand.
    """
    cuts = []
    is_cut_off = all(count > 0 for count in size)
    for axis, (dim, first, count) in enumerate(zip(shape, begin, size, strict=True)):
        if is_cut_off and first >= 0:
            start = min(first, dim)
            cuts.append(AxisSlice(start, 1, min(count, dim - start)))
            continue
        rest = dim - first if count == -1 else count
        if first < 0 or rest < 0 or first + rest > dim:
            raise ModelError(_outside(first, count, axis, shape))
        cuts.append(AxisSlice(first, 1, rest))
    return Box(tuple(cuts), tuple(range(len(cuts))))


def _outside(first: int, count: int, axis: int, shape: Sequence[int]) -> str:
    return f"SLICE: begin {first} and size {count} are outside dimension {axis} of {list(shape)}"


def _infer_slice(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, begin, size = take_operands("SLICE", operands, 3)
    first = const_integers("SLICE", begin, "begin (operand 1)", x.rank)
    counts = const_integers("SLICE", size, "size (operand 2)", x.rank)
    if x.dtype not in _CUT_OFF:
        for axis, (dim, start, count) in enumerate(zip(x.shape, first, counts, strict=True)):
            if count > 0 and start + count > dim:
                raise ModelError(_outside(start, count, axis, x.shape))
    return [TensorSpec(slice_box(x.shape, first, counts).shape, x.dtype)]


def _reference_slice(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, begin, size = (present(a) for a in arrays)
    return [slice_box(x.shape, integers(begin), integers(size)).take(x)]


@frozen
class StridedSliceAttrs:
    """Bit i of a mask speaks of entry i of begin, end and strides.

    Attributes:
        begin_mask: start at the first element (the last, for a negative stride).
        end_mask: go on to the last element (the first, for a negative stride).
        ellipsis_mask: the entry stands for all dimensions that no other entry speaks of.
        new_axis_mask: the entry makes a new dimension of size 1.
        shrink_axis_mask: the entry takes one index and drops the dimension.
        offset: whether an end is counted from its begin.
    """

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0
    offset: bool = False


def _parse_strided(fields: Fields) -> StridedSliceAttrs:
    found = StridedSliceAttrs(
        begin_mask=fields.integer("begin_mask"),
        end_mask=fields.integer("end_mask"),
        ellipsis_mask=fields.integer("ellipsis_mask"),
        new_axis_mask=fields.integer("new_axis_mask"),
        shrink_axis_mask=fields.integer("shrink_axis_mask"),
        offset=fields.flag("offset"),
    )
    if found.ellipsis_mask & (found.ellipsis_mask - 1):
        raise ModelError(f"STRIDED_SLICE: ellipsis_mask {found.ellipsis_mask:#b} has several bits")
    return found


def strided_box(
    attributes: StridedSliceAttrs,
    shape: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
) -> Box:
    """The box of STRIDED_SLICE.

    Raises:
        ModelError: a stride is 0, an index to shrink to is outside, or there are more entries
            than dimensions.
    """
    entries = _expand(attributes, len(shape), len(begin))
    cuts: list[AxisSlice] = []
    sources: list[int | None] = []
    for entry in entries:
        if entry == "new":
            sources.append(None)
            continue
        dim = shape[len(cuts)]
        if isinstance(entry, int):
            cut = _cut(attributes, entry, dim, begin[entry], end[entry], strides[entry])
        else:
            cut = AxisSlice(0, 1, dim)
        if not (isinstance(entry, int) and attributes.shrink_axis_mask >> entry & 1):
            sources.append(len(cuts))
        cuts.append(cut)
    return Box(tuple(cuts), tuple(sources))


def _expand(attributes: StridedSliceAttrs, rank: int, count: int) -> list[int | str]:
    """What speaks of each dimension, in order: an entry's number, "all" or "new"."""
    if (mask := attributes.new_axis_mask) >> count:
        what = f"new_axis_mask {mask:#b} speaks of more than {count} entries"
        raise ModelError(f"STRIDED_SLICE: {what}")
    ellipsis_at = [i for i in range(count) if attributes.ellipsis_mask >> i & 1]
    new = {i for i in range(count) if mask >> i & 1} - set(ellipsis_at)
    spoken = count - len(new) - len(ellipsis_at)
    if spoken > rank:
        raise ModelError(f"STRIDED_SLICE: {spoken} entries for an operand of rank {rank}")
    entries: list[int | str] = []
    for i in range(count):
        one = "new" if i in new else i
        entries += ["all"] * (rank - spoken) if i in ellipsis_at else [one]
    # Without an ellipsis the dimensions after the last entry are taken whole.
    return entries if ellipsis_at else entries + ["all"] * (rank - spoken)


def _cut(
    attributes: StridedSliceAttrs, entry: int, dim: int, begin: int, end: int, step: int
) -> AxisSlice:
    if step == 0:
        raise ModelError(f"STRIDED_SLICE: stride {entry} is 0")
    lowest, highest = (0, dim) if step > 0 else (-1, dim - 1)
    first, last = (lowest, highest) if step > 0 else (highest, lowest)
    start = begin + dim if begin < 0 else begin
    if attributes.shrink_axis_mask >> entry & 1:
        # Otherwise than in TensorFlow, where the index counts, begin_mask wins over it here too.
        if attributes.begin_mask >> entry & 1:
            start = 0 if step > 0 else dim - 1
        if not 0 <= start < dim:
            where = f"outside a dimension of {dim} that it shrinks"
            raise ModelError(f"STRIDED_SLICE: begin {entry} is {begin}, {where}")
        return AxisSlice(start, 1, 1)
    start = first if attributes.begin_mask >> entry & 1 else min(max(start, lowest), highest)
    if attributes.end_mask >> entry & 1:
        stop = last
    else:
        stop = start + end if attributes.offset else end + dim if end < 0 else end
        stop = min(max(stop, lowest), highest)
    size = max(0, -(-(stop - start) // step))
    return AxisSlice(start, step, size)


def _infer_strided(attributes: StridedSliceAttrs, operands: Operands) -> list[TensorSpec]:
    x, *bounds = take_operands("STRIDED_SLICE", operands, 4)
    names = ("begin (operand 1)", "end (operand 2)", "strides (operand 3)")
    begin, end, strides = (
        const_integers("STRIDED_SLICE", b, name) for b, name in zip(bounds, names, strict=True)
    )
    if not len(begin) == len(end) == len(strides):
        raise ModelError(
            f"STRIDED_SLICE: begin {listed(begin)}, end {listed(end)} and strides "
            f"{listed(strides)} differ in length"
        )
    return [TensorSpec(strided_box(attributes, x.shape, begin, end, strides).shape, x.dtype)]


def _reference_strided(attributes: StridedSliceAttrs, arrays: Arrays) -> list[Array]:
    x, *bounds = (present(a) for a in arrays)
    begin, end, strides = (integers(b) for b in bounds)
    return [strided_box(attributes, x.shape, begin, end, strides).take(x)]


def _slice_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        begin: Sequence[int],
        size: Sequence[int],
        dtype: DType = DType.F32,
    ) -> Sample:
        args = (Arg(shape, dtype, -9, 9), Arg.of(begin, DType.I32), Arg.of(size, DType.I32))
        return Sample(id, {}, args)

    return [
        sample("middle", (1, 7, 5, 11), [0, 2, 1, 3], [1, 3, 4, 5]),
        sample("aligned", (2, 3, 5, 12), [1, 0, 0, 4], [1, 3, 5, 6]),
        sample("rest", (3, 5, 7), [1, 2, 0], [-1, -1, -1]),
        sample("whole", (3, 5), [0, 0], [3, 5]),
        sample("vector", (13,), [3], [7]),
        sample("rows", (5, 9), [2, 0], [1, -1]),
        sample("rank5", (2, 3, 2, 3, 5), [1, 1, 0, 1, 2], [1, 2, 2, 2, 3]),
        sample("i32", (5, 7), [1, 2], [3, 4], DType.I32),
        sample("bool", (5, 7), [1, 2], [3, 4], DType.BOOL),
    ]


def _strided_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        begin: Sequence[int],
        end: Sequence[int],
        strides: Sequence[int],
        dtype: DType = DType.F32,
        version: int = 1,
        **fields: Any,
    ) -> Sample:
        bounds = tuple(Arg.of(v, DType.I32) for v in (begin, end, strides))
        return Sample(id, fields, (Arg(shape, dtype, -9, 9), *bounds), version)

    x = (2, 7, 5, 9)
    return [
        sample("plain", x, [0, 1, 2, 3], [2, 6, 5, 8], [1, 1, 1, 1]),
        sample("aligned", x, [0, 1, 0, 4], [2, 6, 5, 9], [1, 2, 1, 1]),
        sample("steps", x, [0, 1, 0, 1], [2, 7, 5, 9], [1, 3, 2, 2]),
        sample("backwards", (5, 7), [4, 5], [0, -7], [-1, -2]),
        sample("backwards_whole", (5, 7), [0, 0], [0, 0], [-1, -1], begin_mask=3, end_mask=3),
        sample("from_the_back", (5, 7), [-4, -3], [-1, 7], [1, 1]),
        sample("beyond", (5, 7), [-9, 2], [9, 99], [1, 1]),
        sample(
            "begin_end_mask", x, [1, 1, 1, 1], [1, 4, 3, 5], [1, 1, 1, 1], begin_mask=5, end_mask=9
        ),
        sample("shrink", (3, 5, 7), [1, 0, 2], [2, 5, 3], [1, 1, 1], shrink_axis_mask=5),
        sample("shrink_negative", (3, 5, 7), [-1, 0, 0], [0, 5, 7], [1, 1, 1], shrink_axis_mask=1),
        sample("shrink_masked", (3, 5), [2, 1], [3, 2], [1, 1], begin_mask=3, shrink_axis_mask=3),
        sample("shrink_channels", (3, 5), [0, 3], [3, 4], [1, 1], shrink_axis_mask=2),
        sample("new_axis", (3, 5), [0, 0, 1], [3, 0, 5], [1, 1, 1], new_axis_mask=2, version=4),
        sample("ellipsis", x, [0, 2], [0, 7], [1, 1], ellipsis_mask=1, version=4),
        sample("ellipsis_middle", x, [1, 0, 1], [2, 0, 8], [1, 1, 3], ellipsis_mask=2, version=4),
        sample("few_entries", (3, 5, 7), [1], [3], [1]),
        sample("vector_step", (17,), [2], [16], [3]),
        sample("i32", (5, 7), [1, 2], [3, 6], [1, 2], DType.I32),
        sample("offset", (5, 7), [1, 2], [3, 4], [1, 1], version=8, offset=True),
        sample("rank5", (2, 3, 2, 3, 5), [0, 0, 1, 0, 1], [2, 3, 2, 3, 5], [1, 2, 1, 1, 2]),
    ]


# Facets


def _moves_of(box: Box, shape: Shape) -> Moves:
    steps = strides_of(shape)
    return Moves(
        0,
        tuple(cut.size for cut in box.cuts),
        tuple(cut.step * step for cut, step in zip(box.cuts, steps, strict=True)),
        sum(cut.start * step for cut, step in zip(box.cuts, steps, strict=True)),
    )


def _constants(node: Node) -> list[tuple[int, ...]] | None:
    """The contents of all operands but the first; None where they are not known."""
    data = [None if v is None else v.data for v in node.inputs[1:]]
    return (
        [integers(d) for d in data if d is not None] if all(d is not None for d in data) else None
    )


def _slice_of(node: Node) -> Box | None:
    bounds = _constants(node)
    return None if bounds is None else slice_box(node.input(0).shape, *bounds)


def _strided_of(node: Node) -> Box | None:
    bounds = _constants(node)
    return None if bounds is None else strided_box(node.attrs, node.input(0).shape, *bounds)


def _moves(box_of: Callable[[Node], Box | None], node: Node) -> Moves | None:
    box = box_of(node)
    return None if box is None else _moves_of(box, node.input(0).shape)


def _slice_reordered(node: Node, order: tuple[int, ...]) -> Reordered | None:
    bounds = _constants(node)
    if bounds is None:
        return None
    contents = {
        i: np.array([bound[axis] for axis in order], np.int32) for i, bound in enumerate(bounds, 1)
    }
    return Reordered(node.attrs, contents)


def _batch_slice(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    if refused is not None:
        return refused
    shape, sizes = node.input(0).shape, node.const(2).copy()
    cut = slice_box(shape, integers(node.const(1)), integers(sizes)).cuts[0]
    if cut != AxisSlice(0, 1, shape[0]):
        begin = node.const(1)
        box = {
            1: np.concatenate([[0], begin.reshape(-1)]).astype(begin.dtype),
            2: np.concatenate([[items.count], sizes.reshape(-1)]).astype(sizes.dtype),
        }
        return lifted(node, items, (0,), constants=box)
    sizes.reshape(-1)[0] = items.count * shape[0]
    return Batched(node.attrs, {2: sizes})


def _next_axes(node: Node, items: Items) -> Batched | str:
    """A STRIDED_SLICE of one axis more in front, which it leaves whole."""
    names = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    masks = {m: getattr(node.attrs, m) << 1 for m in names}
    masks["begin_mask"] |= 1
    masks["end_mask"] |= 1
    firsts = zip((1, 2, 3), (0, 0, 1), strict=True)
    box = {
        i: np.concatenate([[first], node.const(i).reshape(-1)]).astype(node.const(i).dtype)
        for i, first in firsts
    }
    return lifted(node, items, (0,), evolve(node.attrs, **masks), box)


def _batch_strided(node: Node, items: Items) -> Batched | str:
    refused = rows_of(node, items, (0,))
    if refused is not None:
        return refused
    shape, strides = node.input(0).shape, node.const(3).copy()
    begin, end = integers(node.const(1)), integers(node.const(2))
    box = strided_box(node.attrs, shape, begin, end, integers(strides))
    cut = box.cuts[0]
    whole = cut.size == shape[0] and (cut.step == 1 or shape[0] == 1)
    if not whole or box.sources[:1] != (0,):
        moves = _moves(_strided_of, node)
        if moves is not None and moves.is_identity(shape):
            return as_reshape(node, items)
        return _next_axes(node, items)
    if not strides.size or _expand(node.attrs, len(shape), len(begin))[0] == "all":
        return Batched(node.attrs)
    strides.reshape(-1)[0] = 1
    masks = {m: getattr(node.attrs, m) | 1 for m in ("begin_mask", "end_mask")}
    return Batched(evolve(node.attrs, **masks), {3: strides})


def _positions(box_of: Callable[[Node], Box | None], node: Node, cut: Node) -> Positions | str:
    box, less = box_of(node), box_of(cut)
    if box is None or less is None or box.sources != less.sources:
        return "it takes other axes at another size"
    along: list[Along | None] = []
    for axis, (here, there) in enumerate(zip(box.cuts, less.cuts, strict=True)):
        if (here.start, here.step) != (there.start, there.step):
            return f"along axis {axis} it takes other elements at another size"
        changes = here.size != there.size and axis in box.sources
        along.append(Along(box.sources.index(axis)) if changes else Along())
    others = [[None] for _ in node.inputs[1:]]
    return Positions([along, *others], tuple(range(1, len(node.inputs))))


OPS = (
    OpDef(
        "SLICE", no_attrs, _infer_slice, _reference_slice, _slice_samples, generate=draws.slice_,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True), file=FileForm(max_version=8),
        movement=Movement(moves=partial(_moves, _slice_of), reorder=_slice_reordered),
        batch=_batch_slice, positions=partial(_positions, _slice_of)
    ),
    OpDef(
        "STRIDED_SLICE", _parse_strided, _infer_strided, _reference_strided, _strided_samples,
        accuracy=Accuracy.EXACT, contents=Contents(texts=True), file=FileForm(max_version=8),
        movement=Movement(moves=partial(_moves, _strided_of)), batch=_batch_strided,
        positions=partial(_positions, _strided_of)
    ),
)  # fmt: skip
