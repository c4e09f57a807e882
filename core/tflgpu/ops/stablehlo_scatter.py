"""STABLEHLO_SCATTER (TFLite version 1): boxes of updates merged into a tensor, where indices say.

TFLite's kernel: stablehlo_scatter.cc. Updates outside the tensor are left out, as StableHLO's
interpreter has it (TFLite's kernel writes anywhere in memory where an index is negative). What
merges two elements is the operator of a subgraph; without one an update stays as it is, the last
one of several. It does not look at a scale.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import listed
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Contents,
    Fields,
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.stablehlo_gather import INDICES, check_axes, columns_of, rows_of
from tflgpu.ops.stablehlo_window import MERGES, merge_of
from tflgpu.values import frozen

_NAME = "STABLEHLO_SCATTER"
#: What TFLite's kernel takes.
_COMPUTATIONS: Mapping[str, str] = {
    "": "update",
    "STABLEHLO_ADD": "add",
    "STABLEHLO_MULTIPLY": "multiply",
    "STABLEHLO_MAXIMUM": "maximum",
    "STABLEHLO_MINIMUM": "minimum",
}


@frozen
class StablehloScatter:
    """Which dimension is what, by StableHLO's names.

    Attributes:
        merge: "update", or one of `stablehlo_window.MERGES`.
        window: Dimensions of the updates that run over a box.
        inserted: Dimensions of the operand that a box has one element of and the updates have not.
        places: For each column of indices, the dimension of the operand that it is a place in.
        vector: Dimension of the indices that is a row; as many as there are dimensions: each index
            is a row of its own.
    """

    merge: str
    window: tuple[int, ...]
    inserted: tuple[int, ...]
    places: tuple[int, ...]
    vector: int

    def box(self, rank: int, updates: Shape) -> tuple[int, ...]:
        """How many elements of each of the operand's dimensions a box has."""
        sizes = iter([updates[axis] for axis in self.window])
        return tuple(1 if axis in self.inserted else next(sizes) for axis in range(rank))

    def rows_first(self, rank: int) -> bool:
        """Whether of two updates for one place that of the earlier row always comes first, where
        updates have ``rank`` dimensions."""
        return list(self.window) == list(range(rank - len(self.window), rank))


def _parse(fields: Fields) -> StablehloScatter:
    return StablehloScatter(
        merge_of(_NAME, fields, _COMPUTATIONS),
        fields.integers("update_window_dims"),
        fields.integers("inserted_window_dims"),
        fields.integers("scatter_dims_to_operand_dims"),
        fields.integer("index_vector_dim"),
    )


def _infer(a: StablehloScatter, operands: Operands) -> list[TensorSpec]:
    x, indices, updates = take_operands(_NAME, operands, 3)
    if indices.dtype not in INDICES:
        raise ModelError(
            f"{_NAME}: indices (operand 1) are {indices.dtype.value}; i32 or i64 needed"
        )
    if updates.dtype is not x.dtype:
        raise ModelError(f"{_NAME}: operands are {x.dtype.value} and {updates.dtype.value}")
    check_axes(_NAME, "inserted_window_dims", a.inserted, x.rank)
    check_axes(_NAME, "update_window_dims", a.window, updates.rank)
    check_axes(_NAME, "scatter_dims_to_operand_dims", a.places, x.rank, rising=False)
    rows = columns_of(_NAME, indices.shape, a.vector, a.places)
    left = [d for axis, d in enumerate(updates.shape) if axis not in a.window]
    fits = len(a.window) + len(a.inserted) == x.rank and left == list(rows)
    if not fits or any(b > d for b, d in zip(a.box(x.rank, updates.shape), x.shape, strict=True)):
        raise ModelError(
            f"{_NAME}: updates (operand 2) of shape {list(updates.shape)}, with boxes along "
            f"{listed(a.window)}, for indices of {list(indices.shape)} in {list(x.shape)}"
        )
    return [x.spec]


def _reference(a: StablehloScatter, arrays: Arrays) -> list[Array]:
    x, indices, updates = (present(array) for array in arrays)
    found = x.copy()
    rows = rows_of(indices, a.vector)
    kept = [axis for axis in range(x.ndim) if axis not in a.inserted]
    for at in np.ndindex(*updates.shape):  # in TFLite's order, which decides what comes last
        place = np.zeros(x.ndim, np.int64)
        row = rows[tuple(i for axis, i in enumerate(at) if axis not in a.window)]
        place[list(a.places)] = row
        place[kept] += np.array([at[axis] for axis in a.window], np.int64)
        if (place < 0).any() or (place >= x.shape).any():
            continue
        where = tuple(place)
        update = updates[at]
        found[where] = update if a.merge == "update" else MERGES[a.merge](found[where], update)
    return [found]


def _samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        indices: Shape,
        updates: Shape,
        name: str,
        window: Shape,
        inserted: Shape,
        places: Shape,
        vector: int,
        dtype: DType = DType.F32,
        wide: bool = False,
    ) -> Sample:
        fields = {
            "computation": name,
            "update_window_dims": window,
            "inserted_window_dims": inserted,
            "scatter_dims_to_operand_dims": places,
            "index_vector_dim": vector,
        }
        # Some boxes reach beyond the operand.
        rows = Arg(indices, DType.I64 if wide else DType.I32, 0, max(shape), const=wide)
        args = (Arg(shape, dtype, -9, 9), rows, Arg(updates, dtype, -9, 9))
        return Sample(id, fields, args, accumulates=7)

    return [
        sample("rows", (5, 6), (4, 1), (4, 6), "", (1,), (0,), (0,), 1),
        sample("sums", (5, 7), (3, 2), (3,), "STABLEHLO_ADD", (), (0, 1), (1, 0), 1),
        sample("boxes", (3, 5, 7), (2, 2), (2, 2, 3), "STABLEHLO_MAXIMUM", (1, 2), (0,), (0, 1), 1),
        sample("i32", (5, 6), (4, 1), (6, 4), "STABLEHLO_MULTIPLY", (0,), (0,), (0,), 1, DType.I32),
        sample(
            "wide_const",
            (5, 6),
            (4, 1),
            (4, 6),
            "STABLEHLO_MINIMUM",
            (1,),
            (0,),
            (0,),
            1,
            wide=True,
        ),
    ]


OPS = (
    OpDef(
        _NAME,
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        quantized=Quantized(stored=True),
        contents=Contents(indices=(1,)),
    ),
)
