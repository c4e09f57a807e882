"""Shared by ops that sum products: operand checks, and finishing a sum.

References accumulate in f32 through BLAS and give the result the input's type.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.axes import elements, present
from tflgpu.ops.base import Activation, Operand, Operands
from tflgpu.ops.elementwise import FLOATS, QUANTIZED, check_dtype, check_unscaled

PRODUCT_TYPES = FLOATS | QUANTIZED


def take(
    op: str, operands: Operands, names: Sequence[str], optional: int = 0
) -> list[Operand | None]:
    """The operands by position, None where one of the last ``optional`` is absent.

    Raises:
        ModelError: a wrong number of them, or one that must be there is absent; names it.
    """
    least = len(names) - optional
    if not least <= len(operands) <= len(names):
        count = str(least) if not optional else f"{least} to {len(names)}"
        raise ModelError(f"{op} takes {count} operands ({', '.join(names)}), got {len(operands)}")
    for index in range(least):
        if operands[index] is None:
            raise ModelError(f"{op}: the {names[index]} is absent")
    return [*operands, *[None] * (len(names) - len(operands))]


def needed(
    op: str,
    operand: Operand | None,
    what: str,
    *ranks: int,
    batch: int = 0,
    types: frozenset[DType] = PRODUCT_TYPES,
    beside: Operand | None = None,
) -> Operand:
    """An operand of ``types`` with one of the given ranks (any, where none is given) and no
    empty dimension, but for the first ``batch``, which may hold nothing to compute. ``beside`` is
    the data that it multiplies: stored numbers meet stored numbers.

    Raises:
        ModelError: it is absent, or its rank, type or shape is not so.
    """
    if operand is None:
        raise ModelError(f"{op}: the {what} is absent")
    if ranks and operand.rank not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ModelError(f"{op}: the {what} has shape {list(operand.shape)}, not rank {wanted}")
    if 0 in operand.shape[batch:]:
        raise ModelError(f"{op}: the {what} of shape {list(operand.shape)} is empty")
    if beside is not None and beside.dtype in QUANTIZED:
        types -= FLOATS
    check_dtype(f"{op}: the {what}", operand.dtype, types)
    return operand


def check_bias(op: str, bias: Operand | None, channels: int) -> None:
    """That a bias, where there is one, has a number per output channel.

    Raises:
        ModelError: it has not.
    """
    if bias is None:
        return
    check_dtype(f"{op}: the bias", bias.dtype, FLOATS | {DType.I32, DType.I64})
    if elements(bias.shape) != channels or (bias.shape and bias.shape[-1] != channels):
        raise ModelError(
            f"{op}: the bias has shape {list(bias.shape)} for {channels} output channels"
        )


def floats(op: str, array: Array | None) -> Array:
    """An operand's contents in f32; those of f64, which a judge between two results asks with, as
    they are.

    Raises:
        UnsupportedError: they are 8- or 16-bit numbers, which need a scale.
    """
    array = present(array)
    check_unscaled(op, array)
    wide = np.float64 if array.dtype == np.float64 else np.float32
    return array.astype(wide, copy=False)


def finish(sums: Array, bias: Array | None, activation: Activation, like: Array | None) -> Array:
    """Sums (changed in place) with bias and activation, in the type of the op's input."""
    if bias is not None:
        sums += bias.astype(sums.dtype, copy=False).reshape(-1)
    return apply_activation(activation, sums).astype(present(like).dtype, copy=False)
