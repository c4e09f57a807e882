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
    Arithmetic,
    Composed,
    Contents,
    Draw,
    Fields,
    FileForm,
    Movement,
    NoAttrs,
    OnDevice,
    OpDef,
    Operand,
    Padding,
    Quantized,
    Reading,
    Sample,
    Variables,
    no_attrs,
)
from tflgpu.ops.facets import Batched, Filter, Items, NarrowTypes, Pads, Reordered, Work, no_zeros
from tflgpu.ops.moves import Moves
from tflgpu.ops.quantized import Hybrid, InDigits, Integers, OnTheFly, PostOp, Replacement, Rounding

__all__ = [
    "Accuracy",
    "Activation",
    "Affine",
    "Arg",
    "Arithmetic",
    "Array",
    "Batched",
    "Composed",
    "Contents",
    "DType",
    "Draw",
    "Fields",
    "FileForm",
    "Filter",
    "Hybrid",
    "InDigits",
    "Integers",
    "Items",
    "ModelError",
    "Movement",
    "Moves",
    "NarrowTypes",
    "NoAttrs",
    "Node",
    "OnDevice",
    "OnTheFly",
    "OpDef",
    "Operand",
    "Padding",
    "Pads",
    "PostOp",
    "Quantization",
    "Quantized",
    "Reading",
    "Reordered",
    "Replacement",
    "Rounding",
    "Sample",
    "TensorSpec",
    "UnsupportedError",
    "Value",
    "Variables",
    "Work",
    "no_attrs",
    "no_zeros",
]
