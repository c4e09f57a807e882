"""The kernel language: GPU kernels as typed trees, built, checked, interpreted and printed."""

from __future__ import annotations

from tflgpu.kernel.builder import Builder
from tflgpu.kernel.interpret import interpret
from tflgpu.kernel.tree import Buffer, Expr, Kernel, Name, Shared
from tflgpu.kernel.types import Scalar, Type

__all__ = ["Buffer", "Builder", "Expr", "Kernel", "Name", "Scalar", "Shared", "Type", "interpret"]
