"""BITWISE_XOR and RIGHT_SHIFT (TFLite version 1): whole numbers, bit by bit, with broadcasting.

RIGHT_SHIFT keeps the sign of signed numbers. As in TFLite's kernel (right_shift.cc) a negative
count shifts by nothing, and one above the number's bits by all but one of them. Neither looks at a
scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    FileForm,
    NoAttrs,
    OpDef,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import infer_broadcast

_WHOLE = frozenset({DType.I8, DType.U8, DType.I16, DType.U16, DType.I32, DType.U32})


def _reference(fn: Callable[[Array, Array], Array]) -> Callable[..., list[Array]]:
    def reference(attributes: NoAttrs, arrays: Arrays) -> list[Array]:
        a, b = (present(x) for x in arrays)
        return [np.asarray(fn(a, b), a.dtype)]

    return reference


def _shift(a: Array, b: Array) -> Array:
    return np.asarray(np.right_shift(a, np.clip(b, 0, 8 * a.itemsize - 1).astype(a.dtype)))


def _samples(low: int, high: int) -> Callable[[], Sequence[Sample]]:
    """Second operands lie in [low, high)."""

    def make() -> Sequence[Sample]:
        def sample(
            id: str,
            a: tuple[int, ...],
            b: tuple[int, ...],
            dtype: DType = DType.I32,
            const: bool = False,
        ) -> Sample:
            least = max(low, 0) if dtype in (DType.U8, DType.U32) else low
            bits = Arg(a, dtype, 0 if least >= 0 else -99, 99)
            return Sample(id, {}, (bits, Arg(b, dtype, least, high, const)))

        return [
            sample("same", (1, 5, 7, 3), (1, 5, 7, 3)),
            sample("scalar", (2, 3, 8), (), const=True),
            sample("channels", (1, 5, 3, 6), (6,), const=True),
            sample("outer_product", (5, 1), (1, 7)),
            sample("rank1", (7,), (7,)),
            sample("i8", (3, 5), (3, 5), DType.I8),
            sample("u8", (3, 5), (3, 5), DType.U8),
            sample("i16", (3, 5), (5,), DType.I16),
            sample("u32", (3, 5), (3, 5), DType.U32),
        ]

    return make


def _op(name: str, fn: Callable[[Array, Array], Array], low: int, high: int) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        infer_broadcast(name, _WHOLE),
        _reference(fn),
        _samples(low, high),
        accuracy=Accuracy.EXACT,
        elementwise=True,
        quantized=Quantized(stored=True),
        file=FileForm(result_type=0),
    )


OPS = (
    _op("BITWISE_XOR", np.bitwise_xor, -99, 99),
    _op("RIGHT_SHIFT", _shift, -3, 40),
)
