"""Shuffles of the kernel interpreter."""

from __future__ import annotations

import numpy as np

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.frame import Frame, Index
from tflgpu.language.subgroup import SubgroupShuffleXor, group_size


def run_shuffle(stmt: SubgroupShuffleXor, frame: Frame, value: Array, who: Index) -> None:
    """Run one statement.

    Args:
        stmt: The statement.
        frame: The invocations that got to it.
        value: Its operand's value.
        who: Which invocation of all each of the frame's is.

    Raises:
        KernelError: a part of a group of neighbours is missing.
    """
    size = group_size(stmt.mask)
    rows = who.reshape(-1, size) if len(who) % size == 0 else None
    if rows is None or (rows != rows[:, :1] + np.arange(size)).any() or (rows[:, 0] % size).any():
        raise KernelError(f"a shuffle was reached by a part of {size} neighbours")
    if len(value) > 1:  # otherwise all have the same
        value = value[np.arange(len(value)) ^ stmt.mask]
    frame.declare(stmt.ident, value)
