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
    Behind,
    Filter,
    Held,
    Hybrid,
    InDigits,
    Instead,
    Integers,
    Items,
    OnTheFly,
    Pads,
    Reordered,
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
    "Behind",
    "Composed",
    "DType",
    "Draw",
    "Fields",
    "Filter",
    "Held",
    "Hybrid",
    "InDigits",
    "Instead",
    "Integers",
    "Items",
    "ModelError",
    "Moves",
    "NoAttrs",
    "Node",
    "OnTheFly",
    "OpDef",
    "Operand",
    "Padding",
    "Pads",
    "Quantization",
    "Reordered",
    "Rounding",
    "Sample",
    "TensorSpec",
    "UnsupportedError",
    "Value",
    "Work",
    "no_attrs",
    "no_zeros",
]
