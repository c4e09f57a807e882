"""The kernels of a group: those that a plugin's rules write are checked, and all are held to what a
device allows a launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tflgpu.compiler.fuse import Group
from tflgpu.compiler.parts import states_of
from tflgpu.errors import KernelError, PluginError
from tflgpu.errors.blame import Failed, Refused, attempt
from tflgpu.ir.edit_guard import EditGuard, answered
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_KERNEL
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.check import check
from tflgpu.language.kernel import Kernel
from tflgpu.lowering.absent import AbsentCount
from tflgpu.lowering.lowering import Constant, Dispatch, Lowering, NewState, Temp
from tflgpu.lowering.weights import Weights


class RuleError(PluginError, KernelError):
    """A plugin's kernel rule failed on a node that it had accepted.

    Attributes:
        rules: The plugins' rules that may be to blame, as (owner, op, name); an elementwise
            rule's name is "elementwise".
    """

    def __init__(self, message: str, rules: Collection[tuple[str, str, str]]) -> None:
        super().__init__(message)
        self.rules = frozenset(rules)


def build_checked(group: Group, low: Lowering) -> None:
    """Let a group's rule, and the expressions that joined it, write kernels into ``low``; some of
    them are plugins' (`Group.owners`).

    Raises:
        RuleError: a plugin's rule raised, or what it wrote is not what the contract says.
    """
    involved = group.owners
    before = EditGuard()
    for node in group.nodes:
        before.add(node)
    failed = answered(before, attempt(group.rule.build, low))
    if not isinstance(failed, Failed):
        failed = attempt(_check_built, group, low)
    if isinstance(failed, Failed):
        rules = "; ".join(f"plugin {o}: rule {n} for {op}" for o, op, n in sorted(involved))
        message = f"{rules} failed on {group.label}: {failed}"
        raise RuleError(message, involved) from failed.error


def _check_built(group: Group, low: Lowering) -> None:
    """Check that kernels are complete and that every result is written."""
    if not low.dispatches:
        raise Refused("it dispatched no kernel")
    written: set[int] = set()
    kept: set[int] = set()
    filled: set[object] = set()
    known = {id(v) for n in group.nodes for v in (*n.inputs, *n.outputs)}
    unmade = {v.id for n in group.nodes for v in n.outputs}
    for item in low.dispatches:
        if not isinstance(item, Dispatch) or not isinstance(item.kernel, Kernel):
            raise Refused(f"{item!r} is among its dispatches")
        check(item.kernel)
        if len(item.bindings) != len(item.kernel.buffers):
            raise Refused(
                f"kernel {item.kernel.name} has {len(item.kernel.buffers)} buffers and "
                f"{len(item.bindings)} bindings"
            )
        if len(item.groups) != 3 or not all(
            isinstance(g, (int, np.integer)) and g > 0 for g in item.groups
        ):
            raise Refused(f"kernel {item.kernel.name} is launched over {item.groups} workgroups")
        _check_order(item, unmade, filled)
        for buffer, binding in zip(item.kernel.buffers, item.bindings, strict=True):
            if isinstance(binding, AbsentCount):
                continue
            if isinstance(binding, Constant):
                if not isinstance(binding.data, (np.ndarray, Weights)) or buffer.access != "read":
                    raise Refused(f"constant {buffer.name} of kernel {item.kernel.name} is none")
            elif isinstance(binding, NewState):
                if buffer.access == "read" or id(binding.variable) not in known:
                    raise Refused(
                        f"{buffer.name} of kernel {item.kernel.name} is no state to write"
                    )
                kept.add(binding.variable.id)
            elif not isinstance(binding, Temp) and id(binding) not in known:
                raise Refused(f"{buffer.name} of kernel {item.kernel.name} is bound to {binding!r}")
            elif buffer.access != "read" and isinstance(binding, Value):
                written.add(binding.id)
    for value in group.results:
        if value.id not in written:
            raise Refused(f"no kernel of it writes its result {value}")
    if group.fused and not low.stored_chain:
        raise Refused(
            "no kernel of it stores through the view of its result, so that "
            f"{group.fused[0].node.label} is lost; a rule that writes in another way says "
            "fuses=False"
        )
    for value in states_of(group.nodes):
        if value.id not in kept:
            raise Refused(f"no kernel of it writes the new contents of its variable {value}")


def _check_order(item: Dispatch, unmade: Collection[int], filled: set[object]) -> None:
    """Check that a kernel reads nothing before a kernel has written it. ``unmade`` are the tensors
    that the group makes; ``filled`` what was written of these and of temporaries, to which this
    adds."""
    written: set[object] = set()
    read: dict[object, str] = {}
    for buffer, binding in zip(item.kernel.buffers, item.bindings, strict=True):
        if isinstance(binding, Temp):
            key: object = ("temp", binding.id)
        elif isinstance(binding, Value) and binding.id in unmade:
            key = binding.id
        else:
            continue
        if buffer.access == "read":
            read[key] = f"{buffer.name} of kernel {item.kernel.name}"
        else:
            written.add(key)
    for key, name in read.items():
        if key in written:
            raise Refused(f"{name} is written by the same kernel")
        if key not in filled:
            raise Refused(f"{name} is read, and no kernel has written it by then")
    filled |= written


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
