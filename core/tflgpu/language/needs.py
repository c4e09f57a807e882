"""What a kernel needs of a device, and whether the device has it.

Printers of all languages ask here, once, before they print anything. What is left for them is to
make words of their APIs of it: extensions, capabilities, functions to define.
"""

from __future__ import annotations

from tflgpu.errors import KernelError
from tflgpu.language.caps import Features
from tflgpu.language.matrix import has_matrices
from tflgpu.language.subgroup import lacking, largest_group
from tflgpu.language.tree import Binary, Call, Cast, Expr, Kernel, KernelBuffer
from tflgpu.language.types import Scalar
from tflgpu.language.walk import children, expressions, statements, walk
from tflgpu.values import frozen

#: What gives an f16 that is none of its operands, nor one with another sign.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})
_EXACT = frozenset({"isnan", "sign"})


@frozen
class Needs:
    """What a kernel needs.

    Attributes:
        f16: It has 16-bit floats, in memory or as values.
        f16_arithmetic: What it does first that takes arithmetic of them; "" where nothing does.
        narrow: Its buffers whose elements have less than 32 bits.
        matrices: It has matrix statements.
        shuffle: Its largest group of neighbours that shuffle values, 0 where none do.
    """

    f16: bool
    f16_arithmetic: str
    narrow: tuple[KernelBuffer, ...]
    matrices: bool
    shuffle: int

    def problem(self, has: Features) -> str | None:
        """What a device lacks that has these features; None where that is nothing."""
        for buffer in self.narrow:
            what = f"buffer {buffer.name} of {buffer.scalar.value}: this device has no"
            if buffer.scalar.is_storage_only and not has.int8_storage:
                return f"{what} 8- and 16-bit integers in memory (caps.int8_storage)"
            if buffer.scalar.itemsize == 2 and not has.f16_storage:
                return f"{what} 16-bit elements in memory (caps.f16_storage)"
        if self.f16_arithmetic and not has.f16_arithmetic:
            return (
                f"{self.f16_arithmetic} in f16, which this device only loads and stores; compute "
                "in f32 (precision F32 or F32_F16)"
            )
        if self.matrices and not has.matrix_tiles:
            return "matrix tiles, which this device does not have (caps.matrix_tiles)"
        if self.shuffle > has.subgroup_shuffle:
            return lacking(self.shuffle, has.subgroup_shuffle)
        return None


def needs_of(kernel: Kernel) -> Needs:
    """What a kernel needs."""
    halves = [array for array in kernel.shared if array.type.scalar is Scalar.F16]
    f16 = bool(halves) or any(buffer.scalar is Scalar.F16 for buffer in kernel.buffers)
    arithmetic = f"shared array {halves[0].name}" if halves else ""
    half = Scalar.F16
    if any(
        expr.type.scalar is half for stmt in statements(kernel.body) for expr in walk(stmt).order
    ):
        f16 = True
        arithmetic = arithmetic or next(filter(None, map(_arithmetic_of, expressions(kernel))), "")
    narrow = tuple(buffer for buffer in kernel.buffers if buffer.scalar.itemsize < 4)
    return Needs(f16, arithmetic, narrow, has_matrices(kernel), largest_group(kernel))


def check_needs(kernel: Kernel, has: Features) -> Needs:
    """What a kernel needs of a device that has all of it.

    Raises:
        KernelError: it has not; the message says what it lacks.
    """
    needs = needs_of(kernel)
    problem = needs.problem(has)
    if problem is not None:
        raise KernelError(f"kernel {kernel.name}: {problem}")
    return needs


def _arithmetic_of(expr: Expr) -> str:
    """What an expression does that takes arithmetic of f16; "" where it does nothing of the
    kind."""
    if expr.keeps_lanes:
        return ""
    if isinstance(expr, Binary):
        computes = expr.left.type.scalar is Scalar.F16 and expr.op in _ARITHMETIC
        return expr.op if computes else ""
    if isinstance(expr, Call):
        computes = expr.args[0].type.scalar is Scalar.F16 and expr.fn not in _EXACT
        return expr.fn if computes else ""
    if isinstance(expr, Cast) and expr.type.scalar is Scalar.F16:
        # Zero and one are halves as they are.
        is_made = expr.operand.type.scalar not in (Scalar.F16, Scalar.BOOL)
        return f"a cast from {expr.operand.type}" if is_made else ""
    if isinstance(expr, Cast):
        return ""
    halves = any(each.type.scalar is Scalar.F16 for each in (expr, *children(expr)))
    return type(expr).__name__ if halves else ""
