"""Any number of invocations, over as many axes as a device's limits ask for."""

from __future__ import annotations

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering, guard


def spread(low: Lowering, k: Builder, count: int) -> Expr:
    """A number below ``count`` for each invocation; dispatch with `launch` and the same count."""
    groups = -(-count // k.workgroup[0])
    across = min(groups, low.caps.max_groups[0])
    i = k.global_id(0)
    if groups > across:
        i = k.global_id(1) * (across * k.workgroup[0]) + i
    i = k.let(i, "i")
    guard(k, i < count)
    return i


def launch(low: Lowering, k: Builder, count: int) -> None:
    """Dispatch ``count`` invocations, over two axes where one has too few workgroups."""
    groups = -(-count // k.workgroup[0])
    across = min(groups, low.caps.max_groups[0])
    low.dispatch_groups(k, (across, -(-groups // across), 1))
