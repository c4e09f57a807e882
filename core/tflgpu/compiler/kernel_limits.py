"""What a device allows a launch, of which only a finished kernel tells."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.fuse import Group
from tflgpu.errors import KernelError
from tflgpu.ir.graph import Node
from tflgpu.language.budget import MAX_KERNEL
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Dispatch


class OverLimit(KernelError):
    """A node's kernel needs more than the device has; ``node`` tells which."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


def check_limits(
    group: Group, dispatches: Sequence[Dispatch], costs: Sequence[int], caps: DeviceCaps
) -> None:
    """Check the launches of a group, whose kernels have these costs.

    Raises:
        OverLimit: one is over a limit.
    """
    for item, its_cost in zip(dispatches, costs, strict=True):
        kernel = item.kernel
        x, y, z = kernel.workgroup
        problems = [
            (
                len(kernel.buffers) > caps.max_bindings,
                f"{len(kernel.buffers)} buffers of {caps.max_bindings}",
            ),
            (
                x * y * z > caps.max_workgroup,
                f"{x * y * z} invocations a workgroup of {caps.max_workgroup}",
            ),
            (
                any(n > m for n, m in zip(kernel.workgroup, caps.max_workgroup_size, strict=True)),
                f"workgroup {kernel.workgroup} of {caps.max_workgroup_size}",
            ),
            (
                kernel.shared_bytes > caps.shared_bytes,
                f"{kernel.shared_bytes} bytes shared of {caps.shared_bytes}",
            ),
            (
                any(n > m for n, m in zip(item.groups, caps.max_groups, strict=True)),
                f"{item.groups} workgroups of {caps.max_groups}",
            ),
        ]
        for wrong, what in problems:
            if wrong:
                raise OverLimit(
                    group.head,
                    f"{group.label}: rule {group.rule.name} wants {what} that the device has",
                )
        if its_cost > MAX_KERNEL:
            raise OverLimit(
                group.head,
                f"{group.label}: rule {group.rule.name} makes a kernel too large to be compiled in "
                f"reasonable time (its cost is {its_cost}, of {MAX_KERNEL})",
            )
