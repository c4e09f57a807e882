"""What printers of kernels import."""

from tflgpu.errors import KernelError
from tflgpu.language.c_family import CPrinter
from tflgpu.language.caps import DeviceCaps, Features
from tflgpu.language.check import check
from tflgpu.language.defining import DefiningPrinter
from tflgpu.language.generator import ShaderGenerator
from tflgpu.language.interpreter import interpret
from tflgpu.language.needs import Needs, check_needs, needs_of
from tflgpu.language.printer import Printer
from tflgpu.language.tree import Expr, Kernel, KernelBuffer, Stmt
from tflgpu.language.types import BOOL, F16, F32, I32, U32, Scalar, Size3, Type
from tflgpu.plugins.registry import registry

__all__ = [
    "BOOL",
    "F16",
    "F32",
    "I32",
    "U32",
    "CPrinter",
    "DefiningPrinter",
    "DeviceCaps",
    "Expr",
    "Features",
    "Kernel",
    "KernelBuffer",
    "KernelError",
    "Needs",
    "Printer",
    "Scalar",
    "ShaderGenerator",
    "Size3",
    "Stmt",
    "Type",
    "check",
    "check_needs",
    "interpret",
    "needs_of",
    "registry",
]
