"""Small dispatches that need nothing of each other become one, with the workgroups of all of them.

    FULLY_CONNECTED(x) -> v, FULLY_CONNECTED(ADD(x, p)) -> k      one dispatch

So are a detector's heads, or what is made of a memory, whatever they read. Each workgroup finds by
its place whose it is. Small dispatches leave most of a device idle, so that none of them takes
longer for that; and where an API runs one after the other, none waits for another. Products of few
rows, each of which waits for its weights, are faster in kernels of their own: on an H100 (Vulkan)
style transfer, which has 13 pairs of them, took 1 % longer with one kernel a pair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import is_
from typing import Any

import attrs

from tflgpu.compiler.plan import PlannedDispatch
from tflgpu.language import make
from tflgpu.language.budget import MAX_KERNEL, cost
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.matrix import has_matrices
from tflgpu.language.tree import Builtin, If, Kernel, KernelBuffer, SharedArray, Stmt
from tflgpu.language.types import Size3
from tflgpu.language.walk import walk
from tflgpu.lowering.tuning import tuning_of

#: What a joined kernel on matrix tiles may cost to compile (`cost`). Heads of a detector are 1,000
#: to 1,400 each: joined they are no faster on Vulkan, and NVIDIA's driver took 0.43 s for three of
#: them in one, when nothing is left to be done meanwhile.
_MOST_ON_MATRICES = 2000


def side_by_side(level: Iterable[PlannedDispatch], caps: DeviceCaps) -> list[PlannedDispatch]:
    """Dispatches that need nothing of each other, each joined to an earlier one where it can be."""
    made: list[PlannedDispatch] = []
    for each in level:
        for at, first in enumerate(made):
            both = _joined(first, each, caps)
            if both is not None:
                made[at] = both
                break
        else:
            made.append(each)
    return made


def is_small(kernel: Kernel, groups: Size3, caps: DeviceCaps) -> bool:
    """Whether a dispatch leaves most of a device idle, so that another may be joined to it."""
    model, workgroups = tuning_of(caps).reduction, math.prod(groups)
    return workgroups <= model.few_groups * model.workgroup // math.prod(kernel.workgroup)


def _joined(a: PlannedDispatch, b: PlannedDispatch, caps: DeviceCaps) -> PlannedDispatch | None:
    """One dispatch for two of one kind of kernel, whose workgroups lie behind each other along an
    axis; None where they stay apart."""
    one, other = a.kernel, b.kernel
    # Where some may be left out (`PlannedDispatch.fewer`), they are the last ones of an axis.
    sides = [i for i in range(3) if not (a.fewer and a.fewer[i])] if a.fewer == b.fewer else ()
    axis = next((i for i in sides if _across(a, i) == _across(b, i)), None)
    small = is_small(one, a.groups, caps) and is_small(other, b.groups, caps)
    alike = (one.name, one.workgroup) == (other.name, other.workgroup)
    bound = len(one.buffers) + len(other.buffers) <= caps.max_bindings
    most = _MOST_ON_MATRICES if has_matrices(one) else MAX_KERNEL
    if (
        axis is None
        or one.name.endswith("_gemv")
        or not (alike and small and bound)
        or cost(one) + cost(other) > most
    ):
        return None
    buffers = {
        each: attrs.evolve(each, name=f"{each.name}_{i}")
        for i, each in enumerate(other.buffers, len(one.buffers))
    }
    # A workgroup has the arrays of one of them.
    arrays: dict[Any, Any] = {}
    for each in (*one.shared, *other.shared):
        rooms = [x for x in (*one.shared, *other.shared) if x.name == each.name]
        arrays[each] = max(rooms, key=lambda room: room.count)
        if any(room.type != each.type for room in rooms):
            return None
    begin = a.groups[axis]
    widened = any(arrays[each] != each for each in one.shared)
    body = If(
        make.binary("lt", Builtin("group_id", axis), begin),
        _moved(one, arrays, axis, 0) if widened else one.body,
        _moved(other, {**arrays, **buffers}, axis, begin),
    )
    both, shared = (*one.buffers, *buffers.values()), tuple(dict.fromkeys(arrays.values()))
    kernel = Kernel(one.name, one.workgroup, both, shared, (body,))
    x, y, z = (n + begin * (i == axis) for i, n in enumerate(b.groups))
    if kernel.shared_bytes > caps.shared_bytes or max(x, y, z) > min(caps.max_groups):
        return None
    return PlannedDispatch(
        kernel,
        (x, y, z),
        a.refs + b.refs,
        f"{a.label} + {b.label}",
        tuple(sorted({*a.origins, *b.origins})),
        ", ".join(filter(None, (a.tuned, b.tuned))),
        a.fewer,
    )


def _across(dispatch: PlannedDispatch, axis: int) -> tuple[int, ...]:
    """The workgroups along the other axes."""
    return dispatch.groups[:axis] + dispatch.groups[axis + 1 :]


def _moved(kernel: Kernel, memory: Mapping[Any, Any], axis: int, begin: int) -> tuple[Stmt, ...]:
    """A kernel's body, in workgroups that begin further along an axis, with other memory."""
    far = {"group_id": begin, "global_id": begin * kernel.workgroup[axis]}
    made: dict[int, Any] = {}

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        if isinstance(value, (KernelBuffer, SharedArray)):
            return memory.get(value, value)
        return statement(value) if isinstance(value, Stmt) else made.get(id(value), value)

    def node(value: Any) -> Any:
        before = [getattr(value, each) for each in type(value).__match_args__]
        after = list(map(changed, before))
        return value if all(map(is_, after, before)) else type(value)(*after)

    def statement(stmt: Stmt) -> Any:
        for each in walk(stmt).order:
            if isinstance(each, Builtin):
                by = far.get(each.kind, 0) if each.axis == axis else 0
                made[id(each)] = make.binary("sub", each, by) if by else each
            elif id(each) not in made:
                made[id(each)] = node(each)
        return node(stmt)

    return tuple(map(statement, kernel.body))
