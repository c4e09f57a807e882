"""What the definition of an operator imports."""

from __future__ import annotations

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.ir.quant import Quantization
from tflgpu.ops.base import Accuracy, Arg, Draw, Fields, NoAttrs, OpDef, Operand, Sample, no_attrs
from tflgpu.ops.facets import (
    Batched,
    Filter,
    Hybrid,
    InDigits,
    Integers,
    Items,
    NarrowTypes,
    OnTheFly,
    Pads,
    PostOp,
    Reordered,
    Replacement,
    Rounding,
    Work,
    no_zeros,
)

__all__ = [
    "Accuracy",
    "Arg",
    "Array",
    "Batched",
    "DType",
    "Draw",
    "Fields",
    "Filter",
    "Hybrid",
    "InDigits",
    "Integers",
    "Items",
    "NarrowTypes",
    "NoAttrs",
    "Node",
    "OnTheFly",
    "OpDef",
    "Operand",
    "Pads",
    "PostOp",
    "Quantization",
    "Reordered",
    "Replacement",
    "Rounding",
    "Sample",
    "TensorSpec",
    "Value",
    "Work",
    "no_attrs",
    "no_zeros",
]
