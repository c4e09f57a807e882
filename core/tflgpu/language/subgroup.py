"""Shuffles: invocations of a subgroup hand each other values without memory or a barrier.

`SubgroupShuffleXor` gives every invocation the value that another one has, whose place in the
subgroup differs from its own in the bits of a mask. The invocations that exchange values with a
mask are the ``group_size(mask)`` that follow each other along the first axis of the workgroup, so
the workgroup's size along that axis is a multiple of it. A device runs a kernel whose groups are
no larger than its ``caps.subgroup_shuffle``.

All invocations of a workgroup must get to a shuffle together, as to a barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.tree import Expr, Kernel, Stmt
from tflgpu.language.types import LARGEST_GROUP, Scalar, Type
from tflgpu.language.walk import statements
from tflgpu.values import frozen

if TYPE_CHECKING:
    from tflgpu.language.invocations import Invocations

_SCALARS = (Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16)


@frozen(eq=False)
class SubgroupShuffleXor(Stmt):
    """Name the ``value`` of the invocation whose place is this one's XOR ``mask``."""

    ident: str
    value: Expr
    mask: int

    collective: ClassVar[str] = "shuffle"

    @property
    def type(self) -> Type:
        """The type of what is named."""
        return self.value.type

    @property
    def declares(self) -> tuple[str, ...]:
        """What the neighbour has."""
        return (self.ident,)

    def problem(self, kernel: Kernel) -> str | None:
        """A type, mask or workgroup that does not allow it."""
        problem = shuffle_problem(self.value, self.mask)
        if problem:
            return problem
        size = group_size(self.mask)
        if kernel.workgroup[0] % size:
            return (
                f"a shuffle among {size} neighbours in a workgroup {kernel.workgroup}: its first "
                f"size must be a multiple of {size}"
            )
        return None

    def run(self, here: Invocations, *values: Array) -> None:
        """Exchange values within whole groups of neighbours."""
        (value,) = values
        size, who = group_size(self.mask), here.who
        rows = who.reshape(-1, size) if len(who) % size == 0 else None
        if (
            rows is None
            or (rows != rows[:, :1] + np.arange(size)).any()
            or (rows[:, 0] % size).any()
        ):
            raise KernelError(f"a shuffle was reached by a part of {size} neighbours")
        if len(value) > 1:  # otherwise all have the same
            value = value[np.arange(len(value)) ^ self.mask]
        here.frame.declare(self.ident, value)


def group_size(mask: int) -> int:
    """How many neighbours exchange values with a mask, a power of two."""
    return 1 << mask.bit_length()


def largest_group(kernel: Kernel) -> int:
    """The ``caps.subgroup_shuffle`` that a kernel needs, 0 where it has no shuffles."""
    masks = (s.mask for s in statements(kernel.body) if isinstance(s, SubgroupShuffleXor))
    return max((group_size(mask) for mask in masks), default=0)


def shuffle_problem(value: Expr, mask: int) -> str | None:
    """What is wrong with a shuffle taken by itself."""
    if value.type.scalar not in _SCALARS:
        return f"a shuffle of {value.type}: f32, i32, u32 and f16 can be shuffled"
    if not isinstance(mask, int) or not 1 <= mask < LARGEST_GROUP:
        return f"a shuffle by the mask {mask!r}: it is a whole number from 1 to {LARGEST_GROUP - 1}"
    return None


def lacking(needed: int, has: int) -> str:
    """Why a device that shuffles among ``has`` neighbours does not run a kernel."""
    if not has:
        return "a shuffle, which this device does not have (caps.subgroup_shuffle)"
    return (
        f"a shuffle among {needed} neighbours, and this device has it among at most {has} "
        "(caps.subgroup_shuffle)"
    )
