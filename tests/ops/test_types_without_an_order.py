"""Types of which an op that counts, sorts or blends makes nothing are refused, as LiteRT refuses
them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Fields, Operand
from tflgpu.ops.registry import builtin_ops


def infer(op: str, fields: dict[str, Any], *operands: Operand) -> list[TensorSpec]:
    definition = builtin_ops()[op]
    return definition.infer(definition.parse(Fields(op, fields)), operands)


def const(value: Any, dtype: DType) -> Operand:
    data = np.array(value, dtype.numpy)
    return Operand(TensorSpec(data.shape, dtype), data)


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.C64, DType.C128])
def test_a_range(dtype: DType) -> None:
    with pytest.raises(ModelError, match=f"RANGE: start .* is {dtype.value}, not a number"):
        infer("RANGE", {}, *(const(n, dtype) for n in (0, 1, 1)))
    assert infer("RANGE", {}, *(const(n, DType.I16) for n in (0, 3, 1)))[0].shape == (3,)


@pytest.mark.parametrize("dtype", [DType.C64, DType.C128])
def test_the_largest_of_complex_numbers(dtype: DType) -> None:
    with pytest.raises(ModelError, match="complex numbers, of which none is the largest"):
        infer("TOPK_V2", {}, Operand(TensorSpec((5,), dtype)), const(2, DType.I32))
    found = infer("TOPK_V2", {}, Operand(TensorSpec((5,), DType.F64)), const(2, DType.I32))
    assert found[0] == TensorSpec((2,), DType.F64)


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.C64, DType.I32, DType.U64])
def test_between_two_pixels(dtype: DType) -> None:
    size, image = const([4, 4], DType.I32), (1, 2, 3, 1)
    with pytest.raises(ModelError, match=f"RESIZE_BILINEAR takes .*, not {dtype.value}"):
        infer("RESIZE_BILINEAR", {}, Operand(TensorSpec(image, dtype)), size)
    nearest = infer("RESIZE_NEAREST_NEIGHBOR", {}, Operand(TensorSpec(image, dtype)), size)
    assert nearest == [TensorSpec((1, 4, 4, 1), dtype)]
