"""What graph passes import."""

from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, TensorSpec, Value
from tflgpu.passes.base import Pass, PassContext

__all__ = [
    "Array",
    "DType",
    "Graph",
    "Node",
    "Pass",
    "PassContext",
    "TensorSpec",
    "Value",
]
