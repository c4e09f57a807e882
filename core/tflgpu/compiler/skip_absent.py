"""Leaves out workgroups that make nothing but positions that do not count.

A plan for 512 tokens that computes 200 leaves out most workgroups of most launches so. Which rows a
workgroup writes follows from the indices of its stores (`tflgpu.language.index_range`), whatever
kernel it is. A launch says how many workgroups along each axis are enough
(`PlannedDispatch.fewer`). Where the rows of several items lie behind each other that is more than
are needed, and the kernel looks into a table of how many positions have to be absent for each:

    kernel(x, y): ... store(y, i, f(load(x, i)))
    kernel(x, y, ends, absent): if load(ends, group) + load(absent, 0) >= 0: return; ...

A kernel that makes temporary tensors, states, or whole numbers, which may be places in other
tensors, computes them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.ir.graph import Value
from tflgpu.language.budget import MAX_BUFFERS
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.index_range import BEYOND, written
from tflgpu.language.kernel import Kernel
from tflgpu.language.tree import Builtin, Const, If, KernelBuffer, Load, Return
from tflgpu.language.types import I32, Scalar, Size3
from tflgpu.language.unique import unique
from tflgpu.lowering.absent import AbsentCount, AbsentInPart
from tflgpu.lowering.layout import Layout
from tflgpu.lowering.lowering import Constant, Dispatch

#: Workgroups of a launch, at most: of more, a table would be larger than what it is good for.
_MOST_GROUPS = 1 << 18
_NEVER = -(1 << 30)
_ENDS = KernelBuffer("absent_ends", Scalar.I32, 1, "read")
_COUNT = KernelBuffer("absent_count", Scalar.I32, 1, "read")


@attrs.frozen
class SkipAbsent:
    """What has to be known of a part.

    Attributes:
        absent: The positions.
        layout: How a tensor lies.
        caps: The device's.
        kept: The ids of what is read elsewhere.
    """

    absent: AbsentInPart
    layout: Callable[[Value], Layout]
    caps: DeviceCaps
    kept: frozenset[int]

    def apply(self, dispatches: Sequence[Dispatch]) -> list[Dispatch]:
        """The launches, of which some return early."""
        read = self._read(dispatches)
        return [self._skipping(each, read) for each in dispatches]

    def _read(self, dispatches: Sequence[Dispatch]) -> frozenset[int]:
        """The ids of the tensors that some launch reads to the end."""
        found: set[int] = set()
        for each in dispatches:
            bound = zip(each.kernel.buffers, each.bindings, strict=True)
            ids = [v.id for b, v in bound if b.access != "write" and isinstance(v, Value)]
            ends = [i for v in each.bindings if isinstance(v, AbsentCount) for i in v.ends]
            found.update(i for i in ids if ids.count(i) != ends.count(i))
        return frozenset(found)

    def _skipping(self, launch: Dispatch, read: frozenset[int]) -> Dispatch:
        kernel, groups, count = launch.kernel, launch.groups, self.absent.count
        bound = [count if isinstance(b, AbsentCount) else b for b in launch.bindings]
        launch = attrs.evolve(launch, bindings=tuple(bound))
        if not 1 < math.prod(groups) <= _MOST_GROUPS:
            return launch
        ends = np.full(math.prod(groups), -1, np.int64)
        for buffer, value in zip(kernel.buffers, bound, strict=True):
            if buffer.access == "read":
                continue
            if not isinstance(value, Value) or not self._is_free(value, read):
                return launch
            ends = np.minimum(ends, self._ends(kernel, groups, buffer, value))
        if (ends == _NEVER).all():
            return launch
        fewer, is_exact = _fewer(ends, groups)
        launch = attrs.evolve(launch, fewer=fewer)
        if is_exact or len(kernel.buffers) + 2 > min(self.caps.max_bindings, MAX_BUFFERS):
            return launch
        return attrs.evolve(
            launch,
            kernel=_returning(kernel, groups),
            bindings=(*bound, Constant(ends.astype(np.int32)), count),
        )

    def _is_free(self, value: Value, read: frozenset[int]) -> bool:
        """Whether a tensor may hold anything at positions that do not count."""
        if not value.dtype.is_float or value.quant is not None:
            return False
        ids = {each.id for each in self.absent.members(value)}
        return not ids & self.absent.positions.filled or not ids & (read | self.kept)

    def _ends(
        self, kernel: Kernel, groups: Size3, buffer: KernelBuffer, value: Value
    ) -> npt.NDArray[np.int64]:
        """For each workgroup: minus how many positions have to be absent for it to write none that
        counts."""
        axis = self.absent.axis_of(value)
        stores = written(kernel, groups, buffer)
        ends = np.full(math.prod(groups), -1, np.int64)
        if axis is None or axis == len(value.shape) - 1 or not stores:
            return np.full_like(ends, _NEVER)
        layout, size = self.layout(value), value.shape[axis]
        row = layout.slices * 4 if layout.is_vector else layout.channels
        for least, most in stores:
            # Positions along the axis, counted on through the axes before it.
            step = row * math.prod(value.shape[axis + 1 : -1])
            first = np.maximum(least, 0) // step
            last = np.minimum(most, row * layout.outer - 1) // step
            at = np.where(first // size == last // size, first % size - size, _NEVER)
            ends = np.minimum(ends, np.where(least == BEYOND, -1, at))
        return np.where(ends == -size, _NEVER, ends)


def _fewer(ends: npt.NDArray[np.int64], groups: Size3) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """`PlannedDispatch.fewer` of what `SkipAbsent._ends` says, and whether these workgroups make
    nothing else."""
    absent = np.arange(1 - ends[ends > _NEVER].min(initial=-1))
    fewer, product = [], np.ones_like(absent)
    for axis, size in enumerate(groups):
        others = tuple(i for i in range(3) if i != 2 - axis)
        least = ends.reshape(groups[::-1]).min(axis=others)
        behind = np.minimum.accumulate(least[::-1])[::-1]
        counts = np.searchsorted(behind, -absent)
        product *= counts
        fewer.append(() if (counts == size).all() else tuple(counts.tolist()))
    needed = np.searchsorted(np.sort(ends), -absent)
    return tuple(fewer), bool((needed == product).all())


def _returning(kernel: Kernel, groups: Size3) -> Kernel:
    """A kernel with two buffers more, whose workgroups return where these say so."""
    x, y, z = (Builtin("group_id", axis) for axis in range(3))
    number = x + y * groups[0] + z * (groups[0] * groups[1])
    returns = Load(I32, _ENDS, number) + Load(I32, _COUNT, Const(I32, 0)) >= 0
    buffers = (*kernel.buffers, _ENDS, _COUNT)
    body = (If(returns, (Return(),)), *kernel.body)
    return unique(Kernel(kernel.name, kernel.workgroup, buffers, kernel.shared, body))
