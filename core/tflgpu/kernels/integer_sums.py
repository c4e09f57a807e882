"""Sums of products of stored numbers, brought to the 16 bits of the next step: what the recurrent
kernels on whole numbers share (as `kernels/recurrent.py` has it for real ones)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.kernels.fixed_point import shift_right, upper_half
from tflgpu.kernels.quantized_sums import byte_storage
from tflgpu.kernels.recurrent import pack_matrices, pack_vectors
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Buffer, Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.ops.fixed_point import Multiplier

_WORKGROUP = 64
_I16 = (-(1 << 15), (1 << 15) - 1)
#: What a slice of sums has: what is added first, then its multiplier's value, left and right.
ROWS = 4


def pack_factors(offsets: Sequence[Array], multipliers: Sequence[Multiplier]) -> Array:
    """[column, one of `ROWS`, lane] of offsets [units] and a multiplier for each gate."""
    rows = [list(offsets)]
    rows += [
        [np.full(len(offsets[0]), getattr(m, part)) for m in multipliers]
        for part in ("value", "left", "right")
    ]
    packed = np.stack([pack_vectors(row, np.int32) for row in rows])
    return np.asarray(packed.reshape(ROWS, -1, 4).transpose(1, 0, 2))


def finished(k: Builder, total: Expr, load: Callable[[int], Expr], *, grows: bool) -> Expr:
    """Sums times the multiplier of their slice, whose row ``load`` gives; ``grows`` says that one
    shifts to the left."""
    value, left, right = (k.let(load(row), "factor") for row in (1, 2, 3))
    return shift_right(k, upper_half(k, total << left if grows else total, value), right)


def add_products(
    k: Builder, total: Expr, load: Callable[[Expr], Expr], slices: int, weights: Buffer,
    column: Expr, columns: int, start: int = 0,
) -> None:  # fmt: skip
    """As `recurrent.multiply`, of whole numbers."""
    with k.loop(0, slices, name="q") as q:
        value = k.let(load(q), "x")
        base = k.let(q * (4 * columns) + column + start, "w0")
        for lane in range(4):
            weight = k.load(weights, base + lane * columns)
            k.add_to(total, k.splat(value.lane(lane), 4) * weight)  # type: ignore[arg-type]


def input_sums(
    low: Lowering, index: int, matrices: Sequence[Array], factors: Array, *, grows: bool
) -> Temp:
    """One dispatch: [rows, gates * padded units], products of operand ``index`` with matrices i8 [units,
    inputs], finished by `pack_factors` and clamped to 16 bits, i32."""
    columns = len(factors)
    rows = math.prod(low.node.input(index).shape[:-1])
    sums = low.temp((rows, columns * 4), Scalar.I32)
    k = low.kernel("integer_input_sums", (_WORKGROUP, 1, 1))
    view = low.read(k, index)
    weights = low.weights(k, pack_matrices(matrices, np.int32), scalar=byte_storage(low))
    numbers = low.weights(k, factors, "factors", scalar=Scalar.I32)
    out = low.write_temp(k, sums, "sums")
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < columns)

    def load(at: int) -> Expr:
        return k.load(numbers, column * ROWS + at)

    total = k.var(load(0), "acc")
    add_products(k, total, lambda q: view.load(row, q), view.slices, weights, column, columns)
    out.store(row, column, k.clamp(finished(k, total, load, grows=grows), *_I16))
    low.dispatch(k, (columns, rows, 1))
    return sums
