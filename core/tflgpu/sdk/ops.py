"""What the definition of an operator imports."""

from __future__ import annotations

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec, Value
from tflgpu.ir.quant import Quantization
from tflgpu.ops.affine import Affine
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Composed,
    Draw,
    Fields,
    NoAttrs,
    OpDef,
    Operand,
    Padding,
    Sample,
    no_attrs,
)
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
from tflgpu.ops.moves import Moves

__all__ = [
    "Accuracy",
    "Activation",
    "Affine",
    "Arg",
    "Array",
    "Batched",
    "Composed",
    "DType",
    "Draw",
    "Fields",
    "Filter",
    "Hybrid",
    "InDigits",
    "Integers",
    "Items",
    "ModelError",
    "Moves",
    "NarrowTypes",
    "NoAttrs",
    "Node",
    "OnTheFly",
    "OpDef",
    "Operand",
    "Padding",
    "Pads",
    "PostOp",
    "Quantization",
    "Reordered",
    "Replacement",
    "Rounding",
    "Sample",
    "TensorSpec",
    "UnsupportedError",
    "Value",
    "Work",
    "no_attrs",
    "no_zeros",
]
