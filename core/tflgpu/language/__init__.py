"""The kernel language: GPU kernels as typed trees, built, checked, interpreted and printed."""

from __future__ import annotations

from tflgpu.language.builder import Builder
from tflgpu.language.interpret import interpret
from tflgpu.language.tree import Buffer, Expr, Kernel, Name, Shared
from tflgpu.language.types import Scalar, Type

__all__ = ["Buffer", "Builder", "Expr", "Kernel", "Name", "Scalar", "Shared", "Type", "interpret"]
