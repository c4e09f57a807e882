"""What kernel rules import."""

from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Node, Value
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, Kernel
from tflgpu.language.types import BOOL, F16, F32, I32, U32, Scalar, Type
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.lowering.rule import (
    ElementwiseRule,
    GroupRule,
    KernelRule,
    Maker,
    RowReduction,
    Rule,
    Site,
)
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.lowering.view import ReadView, WriteView, load_broadcast

__all__ = [
    "BOOL",
    "F16",
    "F32",
    "I32",
    "U32",
    "Builder",
    "DType",
    "DeviceCaps",
    "ElementwiseRule",
    "Expr",
    "GroupRule",
    "IntegerStorage",
    "Kernel",
    "KernelRule",
    "Lowering",
    "Maker",
    "Node",
    "Precision",
    "ReadView",
    "ReasonCode",
    "RowReduction",
    "Rule",
    "Scalar",
    "Site",
    "Type",
    "Unsupported",
    "Value",
    "WriteView",
    "guard",
    "load_broadcast",
]
