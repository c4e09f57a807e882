"""SCATTER_ND, SPARSE_TO_DENSE and the segment ops: each element of a result looks for its rows.

TFLite goes over the rows and writes where their indices say. On a device many rows may fall on one
place, in any order, so here an invocation has four elements of the result and goes over all rows:
what comes out is the same on every device. That is much work where both are many; such nodes stay
on the CPU.

An index outside the result is an error on the CPU. A kernel cannot raise one: then all of the
result is NaN, the smallest i32, or false. Constant indices are checked when a model is opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.kernels.moves import NOWHERE, channel_of, movable, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar, Type
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView, decompose
from tflgpu.values import frozen

#: Rows times vectors of four elements of a result that kernels go over.
MOST_LOOKS = 1 << 26

Merge = Callable[[Builder, Expr, Expr], Expr]


@frozen
class Rows:
    """The rows of a node.

    Attributes:
        count: How many there are.
        places: Operand with a row of places for each.
        columns: How many leading dimensions of the result a row of places is an index into.
        values: Operand with what falls there: one element, or one for each row and each index of
            the other dimensions.
        least: Places below it are an error; None: such rows are left out.
    """

    count: int
    places: int
    columns: int
    values: int
    least: int | None = 0


def collect(low: Lowering, rows: Rows, merge: Merge, start: Callable[[Builder], Expr]) -> None:
    """Write the result: what ``merge`` makes of ``start`` (four lanes) and of one row after the
    other, in their order."""
    node = low.node
    shape = node.outputs[0].shape
    k = low.kernel(node.op.lower())
    places, values = low.read(k, rows.places), low.read(k, rows.values)
    first = start(k)
    out = low.write(k)
    with each_vector(low, k, out) as (outer, slice_):
        own = decompose(k, outer, shape[:-1])
        found = k.var(first, "found")
        bad = k.var(k.i32(0), "bad")
        known = node.input(rows.places).is_const
        with k.loop(0, rows.count, name="row") as row:
            keys = [
                k.let(places.load_flat(row * rows.columns + c), "key") for c in range(rows.columns)
            ]
            if not known:
                for key, size in zip(keys, shape, strict=False):
                    outside = key >= size
                    if rows.least is not None:
                        outside = outside | (key < rows.least)
                    with k.if_(outside):
                        k.set(bad, 1)
            if rows.columns < len(shape):
                value = partial(_vector, values, shape, rows, row, own, slice_)
                with _where(k, [key.eq(at) for key, at in zip(keys, own, strict=False)]):
                    k.set(found, merge(k, found, k.let(_wide(k, value()), "x")))
            else:
                at = 0 if values.shape == () else row
                one = k.let(k.splat(_wide(k, values.load_flat(at)), 4), "x")
                lanes = [channel_of(k, slice_, lane, shape[-1]) for lane in range(4)]
                with _where(k, [key.eq(at) for key, at in zip(keys[:-1], own, strict=True)]):
                    here = k.splat(keys[-1], 4).eq(k.vec(lanes))
                    k.set(found, k.select(here, merge(k, found, one), found))
        fill = NOWHERE.get(node.outputs[0].dtype, math.nan)
        nowhere = k.const(fill, found.type)
        out.store(outer, slice_, found if known else k.select(bad.ne(0), nowhere, found))


def _vector(
    values: ReadView, shape: Shape, rows: Rows, row: Expr, own: Sequence[Expr], slice_: Expr
) -> Expr:
    """Four channels of a row, at the result's place in the dimensions after the columns."""
    dims = shape[rows.columns : -1]
    return values.load(position([row, *own[rows.columns :]], [rows.count, *dims]), slice_)


def _wide(k: Builder, value: Expr) -> Expr:
    return k.cast(value, Scalar.F32) if value.type.is_float else value


def _where(k: Builder, conditions: Sequence[Expr]) -> AbstractContextManager[None]:
    """``with k.if_(...)`` of all conditions, or always where there are none."""
    found: Expr | None = None
    for condition in conditions:
        found = condition if found is None else found & condition
    return nullcontext() if found is None else k.if_(found)


def _four(value: Value, number: float) -> Callable[[Builder], Expr]:
    scalar = Scalar.F32 if value.dtype.is_float else Scalar.I32
    return lambda k: k.const(number, Type(scalar, 4))


# Ops


def _add(k: Builder, a: Expr, b: Expr) -> Expr:
    return a + b


def _larger(k: Builder, a: Expr, b: Expr) -> Expr:
    return k.max(a, b)


_F32 = np.finfo(np.float32)
_I32 = np.iinfo(np.int32)
#: How rows of a segment are merged, and what a segment without rows is: of floats, of whole
#: numbers.
_SEGMENTS: dict[str, tuple[Merge, float, float]] = {
    "SEGMENT_SUM": (_add, 0, 0),
    "UNSORTED_SEGMENT_SUM": (_add, 0, 0),
    "UNSORTED_SEGMENT_PROD": (lambda k, a, b: a * b, 1, 1),
    "UNSORTED_SEGMENT_MAX": (_larger, float(_F32.min), int(_I32.min)),
    "UNSORTED_SEGMENT_MIN": (lambda k, a, b: k.min(a, b), float(_F32.max), int(_I32.max)),
}
_EXTREMES = {"UNSORTED_SEGMENT_MAX": "lowest", "UNSORTED_SEGMENT_MIN": "highest"}


def _rows_of(node: Node) -> Rows:
    if node.op in _SEGMENTS:
        return Rows(node.input(1).elements, 1, 1, 0, None)
    if node.op == "SCATTER_ND":
        lead, columns = node.input(0).shape[:-1], node.input(0).shape[-1]
        return Rows(math.prod(lead), 0, columns, 1)
    indices = node.input(0)
    columns = indices.shape[1] if len(indices.shape) == 2 else 1
    return Rows(indices.elements // columns, 0, columns, 2)


def _segments(low: Lowering) -> None:
    (out,) = low.node.outputs
    merge, real, whole = _SEGMENTS[low.node.op]
    collect(low, _rows_of(low.node), merge, _four(out, real if out.dtype.is_float else whole))


def _scatter(low: Lowering) -> None:
    (out,) = low.node.outputs
    merge = _larger if out.dtype is DType.BOOL else _add
    collect(low, _rows_of(low.node), merge, _four(out, 0))


def _dense(low: Lowering) -> None:
    def default(k: Builder) -> Expr:
        return k.splat(_wide(k, low.read(k, 3).load_flat(k.i32(0))), 4)

    collect(low, _rows_of(low.node), lambda k, a, b: b, default)


def _accepts(node: Node, site: Site) -> str | None:
    (out,) = node.outputs
    if not out.shape:
        return f"{node.op} makes a scalar"
    rows = _rows_of(node)
    places = node.input(rows.places)
    # Constant places were checked against the result, so they fit 32 bits.
    if places.dtype is not DType.I32 and not places.is_const:
        return f"indices of {node.op} are {places.dtype.value}; i32 runs on the GPU"
    if not rows.columns or not rows.count:
        return f"the indices of {node.op} (shape {list(places.shape)}) name no place"
    if node.op in _EXTREMES and out.dtype.is_float and site.precision is not Precision.F32:
        return f"a segment without rows is the {_EXTREMES[node.op]} f32 number, which f16 has not"
    refused = movable(node, node.input(rows.values), *node.outputs)
    looks = rows.count * (out.elements // out.shape[-1]) * -(-out.shape[-1] // 4)
    if refused is None and looks > MOST_LOOKS:
        return (
            f"{rows.count} rows of {node.op} for {out.elements} elements; a kernel, which looks "
            "for the rows of each element, would take longer than the CPU"
        )
    return refused


RULES = (
    KernelRule("SCATTER_ND", "collect", _scatter, _accepts),
    KernelRule("SPARSE_TO_DENSE", "collect", _dense, _accepts),
    *(KernelRule(op, "collect", _segments, _accepts) for op in _SEGMENTS),
)
