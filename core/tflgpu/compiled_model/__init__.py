"""LiteRT 2's API: a compiled model that runs on buffers, by the names of ``ai_edge_litert``.

A script changes by its import:

    from tflgpu.compiled_model import CompiledModel, HardwareAccelerator

Names that ai_edge_litert has in modules of their own (``TensorBuffer``, ``Options``, ...) are all
here.
"""

from tflgpu.compiled_model.async_run import AsyncRun
from tflgpu.compiled_model.environment import Environment, EnvironmentOptions
from tflgpu.compiled_model.model import CompiledModel
from tflgpu.compiled_model.options import (
    CpuKernelMode,
    CpuOptions,
    GpuOptions,
    HardwareAccelerator,
    IntelOpenVinoOptions,
    Options,
    QualcommOptions,
)
from tflgpu.compiled_model.tensor_buffer import TensorBuffer

__all__ = [
    "AsyncRun",
    "CompiledModel",
    "CpuKernelMode",
    "CpuOptions",
    "Environment",
    "EnvironmentOptions",
    "GpuOptions",
    "HardwareAccelerator",
    "IntelOpenVinoOptions",
    "Options",
    "QualcommOptions",
    "TensorBuffer",
]
