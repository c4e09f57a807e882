"""Sequences, and the ops that go through them in both directions: what each direction reads, and how
their outputs lie.

A second input comes from the backward direction of such an op before. With weights of its own, both
directions read it beside the input; without any, LiteRT's kernels do not read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.base import Operand
from tflgpu.ops.products import needed


def sizes_of(shape: Sequence[int], time_major: bool) -> tuple[int, int]:
    """Batch and time steps of sequences [time, batch, ...] or [batch, time, ...]."""
    return (shape[1], shape[0]) if time_major else (shape[0], shape[1])


def steps_of(sequences: Array, time_major: bool) -> Array:
    """[time, batch, ...]."""
    return sequences if time_major else sequences.swapaxes(0, 1)


def check_second(
    op: str, source: Operand, second: Operand | None, weights: Sequence[Operand | None]
) -> None:
    """Check a second input and its weights.

    Raises:
        ModelError: they do not fit each other or the input.
    """
    there = [w is not None for w in weights]
    if any(there) and not (all(there) and second is not None):
        raise ModelError(f"{op}: a second input has weights for both directions, or there are none")
    if second is None:
        return
    needed(op, second, "second input", 3)
    if second.shape[:2] != source.shape[:2]:
        raise ModelError(
            f"{op}: the second input of shape {list(second.shape)} is for other sequences than the "
            f"input, {list(source.shape)}"
        )


def join_specs(source: Operand, units: Sequence[int], *, merged: bool) -> list[TensorSpec]:
    """Of the outputs: one for each direction, or one for both."""
    sizes = [sum(units)] if merged else units
    return [TensorSpec((*source.shape[:2], size), source.dtype) for size in sizes]


def join(
    outputs: Sequence[Array], like: Array, time_major: bool, *, merged: bool = False
) -> list[Array]:
    """Outputs [time, batch, units] in the order and type of the input; ``merged`` into one."""
    if merged:
        outputs = [np.concatenate(outputs, axis=2)]
    return [
        np.ascontiguousarray(steps_of(found, time_major)).astype(like.dtype, copy=False)
        for found in outputs
    ]
