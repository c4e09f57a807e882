"""EMBEDDING_LOOKUP_SPARSE and HASHTABLE_LOOKUP: rows of a table by number, merged, and by key.

TFLite version 1 of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.errors import InputError, ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import const_integers, integers, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Sample,
)
from tflgpu.values import frozen

_SPARSE, _BY_KEY = "EMBEDDING_LOOKUP_SPARSE", "HASHTABLE_LOOKUP"
#: The schema's CombinerType: what a sum of weighted rows is divided by.
_SUM, _MEAN, _SQRTN = range(3)


@frozen
class Combiner:
    """``kind``: 0 for a sum; 1 to divide it by the sum of its weights; 2 by the root of the sum of
    their squares."""

    kind: int = _SUM


def _parse(fields: Fields) -> Combiner:
    kind = fields.integer("combiner")
    if kind not in (_SUM, _MEAN, _SQRTN):
        raise ModelError(f"{_SPARSE}: combiner {kind} is not in the schema")
    return Combiner(kind)


def _check(operand: Operand, what: str, dtype: DType, rank: int) -> None:
    if operand.dtype is not dtype:
        raise ModelError(f"{_SPARSE}: {what} is {operand.dtype.value}, not {dtype.value}")
    need_rank(_SPARSE, operand, what, rank)


def _infer(attributes: Combiner, operands: Operands) -> list[TensorSpec]:
    ids, indices, dense, weights, table = take_operands(_SPARSE, operands, 5)
    _check(ids, "ids (operand 0)", DType.I32, 1)
    _check(indices, "indices (operand 1)", DType.I32, 2)
    _check(dense, "dense_shape (operand 2)", DType.I32, 1)
    _check(weights, "weights (operand 3)", DType.F32, 1)
    if table.dtype is not DType.F32 or table.rank < 2:
        raise ModelError(
            f"{_SPARSE}: the table (operand 4) is {table.dtype.value}{list(table.shape)}, not "
            "rows of f32"
        )
    count, rank = indices.shape
    if not ids.shape[0] == weights.shape[0] == count or rank < 1 or dense.shape != (rank,):
        raise ModelError(
            f"{_SPARSE}: ids {list(ids.shape)}, indices {list(indices.shape)}, dense_shape "
            f"{list(dense.shape)} and weights {list(weights.shape)} do not fit together"
        )
    sizes = const_integers(_SPARSE, dense, "dense_shape (operand 2)")[:-1]
    if any(s < 0 for s in sizes):
        raise ModelError(f"{_SPARSE}: dense_shape has a negative size")
    return [TensorSpec((*sizes, *table.shape[1:]), DType.F32)]


def _reference(attributes: Combiner, arrays: Arrays) -> list[Array]:
    """In TFLite's order: what a row has so far is divided whenever the next lookup is of another
    one."""
    ids, indices, dense, weights, table = (present(a) for a in arrays)
    sizes = integers(dense)[:-1]
    found = np.zeros((math.prod(sizes), *table.shape[1:]), table.dtype)
    nothing = weights.dtype.type(0)
    total = squares = nothing
    current, many = 0, 0
    for row, at, weight in zip(ids.tolist(), _rows(indices, sizes), weights, strict=True):
        if not 0 <= row < len(table):
            raise InputError(f"{_SPARSE}: id {row} is outside [0, {len(table)})")
        if at != current:
            _finish(attributes, found, current, many, total, squares)
            total = squares = nothing
            current, many = at, 0
        many += 1
        total, squares = total + weight, squares + weight * weight
        found[at] += table[row] * weight
    _finish(attributes, found, current, many, total, squares)
    return [found.reshape(*sizes, *table.shape[1:])]


def _rows(indices: Array, sizes: Shape) -> list[int]:
    """The row that each lookup is added to."""
    place = indices[:, :-1]
    outside = (place < 0) | (place >= np.array(sizes, np.int64))
    if outside.any():
        raise InputError(f"{_SPARSE}: an index is outside a dense shape of {[*sizes]}")
    steps = [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return [int(r) for r in place.astype(np.int64) @ np.array(steps, np.int64)]


def _finish(
    attributes: Combiner, found: Array, at: int, many: int, total: Any, squares: Any
) -> None:
    if attributes.kind != _SUM and many:
        found[at] /= total if attributes.kind == _MEAN else np.sqrt(squares)


def _no_scale(fields: Fields) -> NoAttrs:
    if fields.get("output_quantization") is not None:
        # A key that is not there gives a stored 0, which need not be the number 0.
        raise UnsupportedError(f"{_BY_KEY}: its values are quantized")
    return NoAttrs()


def _infer_by_key(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    asked, keys, values = take_operands(_BY_KEY, operands, 3)
    for operand, what in ((asked, "lookup (operand 0)"), (keys, "keys (operand 1)")):
        if operand.dtype is not DType.I32:
            raise ModelError(f"{_BY_KEY}: {what} is {operand.dtype.value}, not i32")
        need_rank(_BY_KEY, operand, what, 1)
    is_text = values.dtype is DType.STRING
    if (
        not values.rank
        or not keys.shape[0] == values.shape[0] > 0
        or (is_text and values.rank != 1)
    ):
        raise ModelError(
            f"{_BY_KEY}: values {values.dtype.value}{list(values.shape)} for keys "
            f"{list(keys.shape)}"
        )
    hits = TensorSpec(asked.shape, DType.U8)
    return [TensorSpec((*asked.shape, *values.shape[1:]), values.dtype), hits]


def _by_key(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    asked, keys, values = (present(a) for a in arrays)
    found = [_search(int(key), keys.tolist()) for key in asked]
    hits = np.array([at is not None for at in found], np.uint8)
    nothing = b"" if values.dtype.hasobject else 0
    made = np.full((len(asked), *values.shape[1:]), nothing, values.dtype)
    for row, at in enumerate(found):
        if at is not None:
            made[row] = values[at]
    return [made, hits]


def _search(key: int, keys: list[int]) -> int | None:
    """By halves, as C's bsearch does: TFLite wants keys that rise, and what it finds in others, or
    of equal ones, is what the halves lead to."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if key == keys[middle]:
            return middle
        if key < keys[middle]:
            high = middle
        else:
            low = middle + 1
    return None


def _samples() -> list[Sample]:
    def sample(
        id: str, kind: int, rows: Sequence[Sequence[int]], dense: Sequence[int], table: Shape
    ) -> Sample:
        ids = Arg((len(rows),), DType.I32, 0, table[0])
        weights = Arg((len(rows),), low=0.5, high=2)
        where = Arg.of(np.reshape(rows, (len(rows), len(dense))), DType.I32)
        args = (ids, where, Arg.of(dense, DType.I32), weights, Arg(table))
        return Sample(id, {"combiner": kind}, args, accumulates=len(rows) + 1)

    once = [[0, 0], [2, 0], [2, 1], [2, 5], [3, 0]]
    return [
        sample("sum", _SUM, once, [5, 2], (7, 3)),
        sample("mean", _MEAN, once, [5, 2], (7, 3)),
        sample("sqrtn", _SQRTN, once, [5, 2], (7, 2, 3)),
        sample("back_again", _MEAN, [[1, 0], [0, 0], [1, 0]], [2, 9], (5, 4)),
        sample("rank3", _SQRTN, [[0, 1, 0], [0, 1, 3], [1, 2, 0]], [2, 3, 4], (5, 3)),
    ]


def _key_samples() -> list[Sample]:
    def sample(id: str, keys: Sequence[int], values: Shape, dtype: DType = DType.F32) -> Sample:
        asked = Arg((11,), DType.I32, -3, 9)
        return Sample(id, {}, (asked, Arg.of(keys, DType.I32), Arg(values, dtype, -9, 9)))

    return [
        sample("rows", [-2, 0, 3, 4, 8], (5, 3)),
        sample("rank3", [1, 2, 3, 5], (4, 2, 3)),
        sample("i32", [0, 2, 5], (3,), DType.I32),
        sample("equal", [1, 1, 1, 4, 4, 7, 8], (7, 2)),
        sample("not_sorted", [6, 1, 5, 0, 3], (5, 1)),
    ]


OPS = (
    OpDef(
        _SPARSE,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        device=OnDevice(checked=(0, 1)),
    ),
    OpDef(
        _BY_KEY,
        _no_scale,
        _infer_by_key,
        _by_key,
        _key_samples,
        accuracy=Accuracy.EXACT,
        contents=Contents(texts=True),
        movement=Movement(keeps_values=True),
    ),
)
