"""SEGMENT_SUM and UNSORTED_SEGMENT_SUM, _PROD, _MAX, _MIN (TFLite version 1): rows that are brought
together by number.

As in TFLite's kernels (unsorted_segment.cc, segment_sum.cc) rows of negative segments are left out,
and a segment without rows is 0, 1, or the lowest or highest number of its type, which is also where
extremes begin. SEGMENT_SUM makes as
many segments as its ids say, so these must be constants; they rise from 0 without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import const_integer, elements, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Operands,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import check_dtype
from tflgpu.values import frozen

_NUMBERS = frozenset({DType.F32, DType.I32})


@frozen
class Segments:
    """What becomes of the rows of a segment.

    Attributes:
        merge: Two rows become one.
        empty: A segment without rows, for a type.
    """

    merge: Callable[..., Array]
    empty: Callable[[np.dtype[Any]], float]


def _lowest(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).min) if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _highest(dtype: np.dtype[Any]) -> float:
    return float(np.finfo(dtype).max) if dtype.kind == "f" else int(np.iinfo(dtype).max)


#: By op name.
KINDS: dict[str, Segments] = {
    "SEGMENT_SUM": Segments(np.add, lambda dtype: 0),
    "UNSORTED_SEGMENT_SUM": Segments(np.add, lambda dtype: 0),
    "UNSORTED_SEGMENT_PROD": Segments(np.multiply, lambda dtype: 1),
    "UNSORTED_SEGMENT_MAX": Segments(np.maximum, _lowest),
    "UNSORTED_SEGMENT_MIN": Segments(np.minimum, _highest),
}


def _ids(op: str, x: Operand, ids: Operand) -> None:
    check_dtype(f"{op}: operand 0", x.dtype, _NUMBERS)
    if ids.dtype is not DType.I32:
        raise ModelError(f"{op}: segment ids (operand 1) are {ids.dtype.value}; i32 needed")


def _check(op: str, ids: Array, count: int) -> None:
    if ids.size and ids.max() >= count:
        raise InputError(f"{op}: segment {ids.max()} of {count}")


def _infer(op: str, attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, ids, count = take_operands(op, operands, 3)
    _ids(op, x, ids)
    if x.shape[: ids.rank] != ids.shape:
        raise ModelError(
            f"{op}: segment ids (operand 1) of shape {list(ids.shape)} for operand 0 of "
            f"{list(x.shape)}, which must begin with it"
        )
    if count.dtype is not DType.I32:
        raise ModelError(f"{op}: the count (operand 2) is {count.dtype.value}; i32 needed")
    need_rank(op, count, "the count (operand 2)", 0, 1)
    segments = const_integer(op, count, "the count (operand 2)")
    if segments < 0:
        raise ModelError(f"{op}: {segments} segments (operand 2)")
    if ids.data is not None:
        try:
            _check(op, ids.data, segments)
        except InputError as error:
            raise ModelError(f"{error} (constant ids)") from None
    return [TensorSpec((segments, *x.shape[ids.rank :]), x.dtype)]


def _infer_sorted(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    op = "SEGMENT_SUM"
    x, ids = take_operands(op, operands, 2)
    _ids(op, x, ids)
    if ids.rank != 1 or x.rank < 1 or x.shape[0] != ids.shape[0]:
        raise ModelError(
            f"{op}: segment ids (operand 1) of shape {list(ids.shape)} for operand 0 of "
            f"{list(x.shape)}; a number for each row needed"
        )
    given = ids.const(op, "segment ids (operand 1)")
    steps = np.diff(given.astype(np.int64))
    if given.size and (given[0] != 0 or ((steps != 0) & (steps != 1)).any()):
        raise ModelError(f"{op}: segment ids (operand 1) do not rise from 0 without gaps")
    return [TensorSpec((int(given[-1]) + 1 if given.size else 0, *x.shape[1:]), x.dtype)]


def _merged(op: str, x: Array, ids: Array, count: int) -> Array:
    _check(op, ids, count)
    kind = KINDS[op]
    rest = x.shape[ids.ndim :]
    rows, places = x.reshape(ids.size, *rest) if ids.ndim else x[None], ids.reshape(-1)
    if not elements(rest):
        return np.zeros((count, *rest), x.dtype)
    # Sums and products in f64 are the numbers that those in any order should come near.
    wide = np.float64 if x.dtype.kind == "f" and kind.merge in (np.add, np.multiply) else x.dtype
    found = np.full((count, *rest), kind.empty(x.dtype), wide)
    kept = places >= 0
    with np.errstate(all="ignore"):
        kind.merge.at(found, places[kept], rows[kept].astype(wide))  # type: ignore[attr-defined]
        return found.astype(x.dtype)


def _reference(op: str, attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, ids = present(arrays[0]), present(arrays[1])
    if op == "SEGMENT_SUM":
        return [_merged(op, x, ids, int(ids[-1]) + 1 if ids.size else 0)]
    return [_merged(op, x, ids, int(present(arrays[2]).reshape(-1)[0]))]


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        ids: int,
        count: int,
        dtype: DType = DType.F32,
        const: bool = False,
        low: int = -1,
    ) -> Sample:
        x = Arg(shape, dtype, -3, 3)
        places = Arg(shape[:ids], DType.I32, low, count, const)
        return Sample(id, {}, (x, places, Arg.of(count, DType.I32)), accumulates=7)

    return [
        sample("rows", (7, 5), 1, 3),
        sample("const_ids", (7, 8), 1, 4, const=True),
        sample("some_empty", (3, 5), 1, 11, low=0),
        sample("vector", (13,), 1, 5),
        sample("matrix_of_ids", (3, 5, 6), 2, 4),
        sample("rank4", (5, 2, 3, 7), 1, 3),
        sample("i32", (7, 5), 1, 3, DType.I32),
    ]


def _sorted_samples() -> list[Sample]:
    def sample(
        id: str, shape: tuple[int, ...], ids: Sequence[int], dtype: DType = DType.F32
    ) -> Sample:
        return Sample(id, {}, (Arg(shape, dtype, -3, 3), Arg.of(ids, DType.I32)), accumulates=7)

    return [
        sample("rows", (7, 5), [0, 0, 1, 1, 1, 2, 3]),
        sample("aligned", (5, 2, 8), [0, 1, 1, 2, 2]),
        sample("vector", (7,), [0, 0, 0, 0, 1, 1, 1]),
        sample("i32", (3, 7), [0, 1, 1], DType.I32),
    ]


def _op(name: str) -> OpDef:
    extreme = name.endswith(("MAX", "MIN"))
    return OpDef(
        name,
        no_attrs,
        partial(_infer, name),
        partial(_reference, name),
        _samples,
        accuracy=Accuracy.EXACT if extreme else Accuracy.ACCUMULATE,
        device=OnDevice(checked=(1,)),
    )


OPS = (
    OpDef(
        "SEGMENT_SUM",
        no_attrs,
        _infer_sorted,
        partial(_reference, "SEGMENT_SUM"),
        _sorted_samples,
        accuracy=Accuracy.ACCUMULATE,
    ),
    *(_op(name) for name in KINDS if name.startswith("UNSORTED")),
)
