"""Shared by the elementwise families: type checks, broadcasting, arithmetic in f32.

Numbers of 8 and 16 bits are mostly stored by TFLite together with a scale; arithmetic on them needs
it and is the business of quantized execution, so the references here refuse them. Some kernels also
compute on whole numbers that have none, and an op says of which types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Shape, TensorSpec
from tflgpu.ops.axes import present, take_operands
from tflgpu.ops.base import Arrays, Operands

FLOATS = frozenset({DType.F32, DType.F16, DType.F64})
WHOLE = frozenset({DType.I32, DType.I64, DType.U32})
#: Types that TFLite computes on with the help of a scale.
BYTES = frozenset({DType.I8, DType.U8})
QUANTIZED = BYTES | {DType.I16}

Infer = Callable[[Any, Operands], list[TensorSpec]]
Reference = Callable[[Any, Arrays], list[Array]]


def check_dtype(op: str, dtype: DType, allowed: frozenset[DType]) -> None:
    """That an op takes elements of a type.

    Raises:
        ModelError: it does not.
    """
    if dtype not in allowed:
        names = ", ".join(sorted(d.value for d in allowed))
        raise ModelError(f"{op} takes {names}, not {dtype.value}")


def check_unscaled(op: str, array: Array, plain: frozenset[DType] = frozenset()) -> None:
    """That arithmetic on an array needs no scale.

    Args:
        op: Its name.
        array: An operand. One that has a scale never comes here: it is dequantized before.
        plain: Small types on which the op computes without a scale.

    Raises:
        UnsupportedError: it holds 8- or 16-bit numbers of another type.
    """
    small = array.dtype.kind in "iu" and array.dtype.itemsize < 4
    if small and not any(array.dtype == dtype.numpy for dtype in plain):
        raise UnsupportedError(
            f"{op} of {array.dtype} needs the tensors' scales: dequantize its operands first"
        )


def infer_unary(op: str, allowed: frozenset[DType], result: DType | None = None) -> Infer:
    """Shape inference of an op whose one result has its one operand's shape; ``result`` None means
    its type, too."""

    def infer(attributes: Any, operands: Operands) -> list[TensorSpec]:
        (x,) = take_operands(op, operands, 1)
        check_dtype(op, x.dtype, allowed)
        return [TensorSpec(x.shape, result or x.dtype)]

    return infer


def broadcast_shape(op: str, *shapes: Shape) -> Shape:
    """The shape of a result whose operands broadcast as in NumPy.

    Raises:
        ModelError: they do not.
    """
    try:
        return tuple(np.broadcast_shapes(*shapes))
    except ValueError:
        listed = " and ".join(str(list(s)) for s in shapes)
        raise ModelError(f"{op}: shapes {listed} do not broadcast") from None


def infer_broadcast(op: str, allowed: frozenset[DType], result: DType | None = None) -> Infer:
    """Shape inference of two operands of one type; ``result`` None means that type."""

    def infer(attributes: Any, operands: Operands) -> list[TensorSpec]:
        a, b = take_operands(op, operands, 2)
        check_dtype(op, a.dtype, allowed)
        if a.dtype is not b.dtype:
            raise ModelError(f"{op}: operands are {a.dtype.value} and {b.dtype.value}")
        return [TensorSpec(broadcast_shape(op, a.shape, b.shape), result or a.dtype)]

    return infer


def widen(array: Array) -> Array:
    """f16 as f32, everything else as it is."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def reference_of(
    op: str, compute: Callable[..., Any], plain: frozenset[DType] = frozenset()
) -> Reference:
    """A reference that calls ``compute(attributes, *operands)`` and gives its result the
    operands' type; f16 is computed in f32. ``plain`` is as for `check_unscaled`."""

    def reference(attributes: Any, arrays: Arrays) -> list[Array]:
        operands = [present(a) for a in arrays]
        for operand in operands:
            check_unscaled(op, operand, plain)
        result = compute(attributes, *(widen(a) for a in operands))
        return [np.asarray(result).astype(operands[0].dtype, copy=False)]

    return reference
