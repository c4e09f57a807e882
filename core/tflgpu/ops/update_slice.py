"""DYNAMIC_UPDATE_SLICE (TFLite versions 1-6): a tensor with a box of it replaced.

Where the box begins may be known only when the model runs. As in TFLite's kernel
(dynamic_update_slice.cc) it is moved so that the update lies inside the operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import INDEX_TYPES, need_rank, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    FileForm,
    Movement,
    NoAttrs,
    OpDef,
    Operands,
    Sample,
    no_attrs,
)

_NAME = "DYNAMIC_UPDATE_SLICE"


def _infer(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, update, start = take_operands(_NAME, operands, 3)
    if x.dtype is not update.dtype:
        raise ModelError(f"{_NAME}: operands are {x.dtype.value} and {update.dtype.value}")
    if start.dtype not in INDEX_TYPES:
        raise ModelError(f"{_NAME}: start indices (operand 2) are {start.dtype.value}")
    need_rank(_NAME, start, "start indices (operand 2)", 1)
    if start.shape != (x.rank,):
        raise ModelError(
            f"{_NAME}: {start.shape[0]} start indices (operand 2) for a rank of {x.rank}"
        )
    fits = update.rank == x.rank and all(
        u <= size for u, size in zip(update.shape, x.shape, strict=True)
    )
    if not fits:
        raise ModelError(
            f"{_NAME}: an update (operand 1) of shape {list(update.shape)} in {list(x.shape)}"
        )
    return [x.spec]


def _reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
    x, update, start = (present(a) for a in arrays)
    found = x.copy()
    room = np.subtract(x.shape, update.shape, dtype=np.int64)
    first = np.clip(start.astype(np.int64), 0, room) if x.ndim else ()
    box = tuple(slice(at, at + size) for at, size in zip(first, update.shape, strict=True))
    found[box] = update
    return [found]


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: tuple[int, ...],
        update: tuple[int, ...],
        dtype: DType = DType.F32,
        start: Sequence[int] | None = None,
        wide: bool = False,
    ) -> Sample:
        kind = DType.I64 if wide else DType.I32
        # Beyond both ends: such boxes are moved inside.
        first = Arg((len(shape),), kind, -2, max(shape, default=0) + 1)
        if start is not None:
            first = Arg.of(np.array(start).reshape(-1), kind)
        return Sample(id, {}, (Arg(shape, dtype, -9, 9), Arg(update, dtype, -9, 9), first))

    return [
        sample("matrix", (5, 7), (2, 3)),
        sample("row_of_a_cache", (1, 13, 2, 8), (1, 1, 2, 8), start=(0, 4, 0, 0)),
        sample("aligned", (3, 8), (1, 8)),
        sample("channels", (2, 3, 7), (2, 3, 2)),
        sample("all", (3, 5), (3, 5)),
        sample("vector", (11,), (4,)),
        sample("beyond", (5, 6), (2, 2), start=(4, -3)),
        sample("i32", (5, 6), (2, 3), DType.I32),
        sample("bool", (5, 6), (2, 3), DType.BOOL),
        sample("wide_const", (5, 6), (2, 3), start=(1, 2), wide=True),
        sample("wide", (5, 6), (2, 3), wide=True),
    ]


OPS = (
    OpDef(
        _NAME,
        no_attrs,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.EXACT,
        file=FileForm(max_version=6, result_type=0),
        movement=Movement(keeps_values=True),
        contents=Contents(indices=(2,)),
    ),
)
