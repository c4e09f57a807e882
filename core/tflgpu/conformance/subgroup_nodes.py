"""Level 1: shuffles and reductions among neighbours, bit for bit as the interpreter has them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tflgpu.conformance.memory_nodes import move_data
from tflgpu.conformance.programs import ProgramCase
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.subgroup import LARGEST
from tflgpu.language.types import Scalar, Size3

_SCALARS = (Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16)
_REDUCTIONS = ("add", "min", "max")
_GROUPS = 3
#: Workgroups of one axis and of two, with more invocations than a subgroup has.
_SHAPES: tuple[Size3, ...] = ((64, 1, 1), (32, 2, 1))

Run = Callable[[Device, ProgramCase], None]


def subgroup_checks(run: Run) -> list[Check]:
    """Every type, width and mask, and every reduction; ``run`` compares a program's results."""
    checks = [
        Check(f"1/shuffles/{s.value}x{w}", partial(_check, partial(_shuffles, s, w), s, run))
        for s in _SCALARS
        for w in (1, 2, 3, 4)
    ]
    return checks + [
        Check(f"1/reductions/{op}/{s.value}x{w}", partial(_check, partial(_sums, op, s, w), s, run))
        for op in _REDUCTIONS
        for s in _SCALARS[:3]
        for w in (1, 4)
    ]


def _check(
    make: Callable[[int, Size3], ProgramCase], scalar: Scalar, run: Run, target: DeviceUnderTest
) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not kernels")
    reason = _lacks(scalar, target.caps)
    if reason is not None:
        return NotApplicable(f"{target.device.info.name} {reason}")
    for shape in _SHAPES:
        run(target.device, make(target.caps.subgroup_shuffle, shape))
    return None


def _lacks(scalar: Scalar, caps: DeviceCaps) -> str | None:
    if not caps.subgroup_shuffle:
        return "does not shuffle values among neighbours (caps.subgroup_shuffle)"
    if scalar is Scalar.F16 and not (caps.f16_storage and caps.f16_arithmetic):
        return "has no 16-bit arithmetic"
    return None


def _shuffles(scalar: Scalar, width: int, size: int, shape: Size3) -> ProgramCase:
    """A value's exchange by every mask below ``size``."""
    masks = range(1, min(size, LARGEST))
    count = int(np.prod(shape))
    k = Builder("shuffles", shape)
    src, dst = (k.buffer(n, scalar, 1, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.group_id(0) * count + k.local_id(1) * shape[0] + k.local_id(0), "i")
    lanes = [k.load(src, i * width + lane) for lane in range(width)]
    value = k.let(k.vec(lanes), "value")
    total = count * _GROUPS
    for row, mask in enumerate(masks):
        other = k.subgroup_shuffle_xor(value, mask)
        for lane in range(width):
            k.store(dst, (i + row * total) * width + lane, other.lane(lane))
    data = move_data(scalar, total * width)
    rows = data.reshape(total, width)
    want = np.concatenate([rows[np.arange(total) ^ mask] for mask in masks]).ravel()
    return ProgramCase(k.build(), (_GROUPS, 1, 1), [data, np.zeros_like(want)], {1: want})


def _sums(op: str, scalar: Scalar, width: int, size: int, shape: Size3) -> ProgramCase:
    """Reductions over every number of neighbours up to ``size``; all of them get the result."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32) if n <= size]
    count = int(np.prod(shape))
    k = Builder(f"reductions_{op}", shape)
    src, dst = (k.buffer(n, scalar, width, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.group_id(0) * count + k.local_id(1) * shape[0] + k.local_id(0), "i")
    total = count * _GROUPS
    for row, neighbours in enumerate(sizes):
        merged = k.subgroup_reduce(op, k.load(src, i), neighbours)
        k.store(dst, i + row * total, merged)
    rng = np.random.default_rng(4)
    if scalar.is_float:
        data = rng.normal(0, 9, total * width).astype(np.float32)  # any other order differs
        data[[5, 66, 131]] = [np.nan, np.inf, -np.inf]
    else:
        info = np.iinfo(scalar.numpy)
        data = rng.integers(info.min, info.max, total * width).astype(scalar.numpy)
    want = np.concatenate([_merged(op, data.reshape(-1, n, width)) for n in sizes])
    return ProgramCase(k.build(), (_GROUPS, 1, 1), [data, np.zeros_like(want)], {1: want})


def _merged(op: str, groups: Array) -> Array:
    """[groups, neighbours, lanes] -> every neighbour's result, halves first."""
    merge = {"add": np.add, "min": np.minimum, "max": np.maximum}[op]
    found, count = groups, groups.shape[1]
    while found.shape[1] > 1:
        half = found.shape[1] // 2
        found = merge(found[:, :half], found[:, half:])
    return np.repeat(found, count, axis=1).ravel()
