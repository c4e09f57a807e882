"""Values that are f16 so that they are rounded: made of f32, and soon f32 again.

A driver may compute such a pair of conversions as none (NVIDIA's does), so that nothing is
rounded; then it has to be done by other means.
"""

from __future__ import annotations

from tflgpu.language.tree import Cast, Expr, Kernel, Let, Name
from tflgpu.language.types import Scalar
from tflgpu.language.walk import statements


def rounded_names(kernel: Kernel) -> frozenset[str]:
    """The lets whose value is f16 and was f32."""
    return frozenset(
        stmt.ident
        for stmt in statements(kernel.body)
        if isinstance(stmt, Let) and is_rounded(stmt.value, frozenset())
    )


def is_rounded(expr: Expr, names: frozenset[str]) -> bool:
    """Whether an expression is f16 and was f32; ``names`` are the kernel's `rounded_names`."""
    if isinstance(expr, Name):
        return expr.ident in names
    return (
        isinstance(expr, Cast)
        and expr.type.scalar is Scalar.F16
        and expr.operand.type.scalar is Scalar.F32
    )
