"""Measures among how many neighbours a device really shuffles values, by two small kernels.

No API promises which invocations of a workgroup are neighbours in a subgroup. Nearly all devices
fill subgroups in the order of the local ids; here is asked whether this one does, in a workgroup
of one axis and in one of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tflgpu.compiler.plan import InputRef, OutputRef, Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.device import Device
from tflgpu.errors import TflgpuError
from tflgpu.errors.blame import LOG
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.builder import Builder
from tflgpu.language.types import LARGEST_GROUP, Scalar, Size3

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel

_COUNT, _GROUPS = 64, 3  # invocations of a workgroup, and workgroups
#: Has no factor in common with their number.
_STRIDE = 89
_SHAPES: tuple[Size3, ...] = ((64, 1, 1), (8, 8, 1))


def probe_shuffle(device: Device, widest: int) -> int:
    """What a device's ``caps.subgroup_shuffle`` should be.

    Args:
        device: Opened, and able to load kernels with groups of up to ``widest`` neighbours.
        widest: The most that its driver allows; nothing runs where it is below 2.

    Returns:
        The largest power of two up to ``widest`` for which, and for all below it, every result
        was right; 0 where none was, or where the device refused the kernels.
    """
    widest = min(widest, LARGEST_GROUP)
    if widest < 2 or device.caps.max_workgroup < _COUNT:
        return 0
    widest = 1 << (widest.bit_length() - 1)
    try:
        found = _largest(device, widest)
    except TflgpuError as error:
        LOG.info(
            "tflgpu: %s: no shuffles, since their test failed: %s", device.info.name, str(error)
        )
        return 0
    if found < widest:
        LOG.info(
            "tflgpu: %s: shuffles among %d neighbours are right, among up to %d they are not; "
            "kernels use no others",
            device.info.name,
            found,
            widest,
        )
    return found


def results_of(device: Device, plan: Plan, operands: Array) -> list[Array]:
    """What a plan of one input makes of ``operands``: its outputs, which held -1 before.

    Raises:
        TflgpuError: the device refused it.
    """
    with closing(device.load(plan)) as recording:
        recording.inputs[0][...] = operands
        for results in recording.outputs:
            results[...] = -1
        recording.run()
        return [np.array(results) for results in recording.outputs]


def _largest(device: Device, widest: int) -> int:
    total = _COUNT * _GROUPS
    # No two are equal, and none has its neighbours' next to it; NumPy's random numbers take an
    # import.
    given = (np.arange(total) * _STRIDE % total).astype(np.int32)
    # In the row of a workgroup of two axes there may be fewer than that many.
    masks = [_masks(min(shape[0], widest)) for shape in _SHAPES]
    found = results_of(device, _plan(device.alignment, masks), given)
    return min(
        _right(f.reshape(-1, total), given, m, widest) for f, m in zip(found, masks, strict=True)
    )


def _plan(alignment: int, masks: Sequence[tuple[int, ...]]) -> Plan:
    total = _COUNT * _GROUPS
    counts = [total, *(total * len(m) for m in masks)]
    values, *results = (PlannedIO(f"io{i}", (n,), DType.I32, n * 4) for i, n in enumerate(counts))
    kernels = [_kernel(shape, m) for shape, m in zip(_SHAPES, masks, strict=True)]
    steps = tuple(
        PlannedDispatch(kernel, (_GROUPS, 1, 1), (InputRef(0), OutputRef(i)), kernel.name)
        for i, kernel in enumerate(kernels)
    )
    return Plan(0, alignment, (), (values,), tuple(results), steps)


def _right(found: Array, given: Array, masks: tuple[int, ...], widest: int) -> int:
    """The largest group that every result agrees with; ``widest`` where all do."""
    for row, mask in zip(found, masks, strict=True):
        if (row != given[np.arange(len(given)) ^ mask]).any():
            return mask if mask > 1 else 0
    return widest


def _masks(size: int) -> tuple[int, ...]:
    """One for each bit: a device that exchanges those right exchanges all others right."""
    return tuple(1 << i for i in range(size.bit_length() - 1))


@cache
def _kernel(shape: Size3, masks: tuple[int, ...]) -> Kernel:
    """``results[m, i] = values[i ^ masks[m]]``."""
    k = Builder(f"shuffle_probe_{shape[1]}", shape)
    src = k.buffer("src", Scalar.I32, 1, "read")
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    place = k.local_id(1) * shape[0] + k.local_id(0)
    i = k.let(k.group_id(0) * _COUNT + place, "i")
    value = k.let(k.load(src, i), "value")
    for row, mask in enumerate(masks):
        other = k.subgroup_shuffle_xor(value, mask)
        k.store(dst, i + row * (_COUNT * _GROUPS), other)
    return k.build()
