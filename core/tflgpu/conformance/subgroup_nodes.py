"""Level 1: shuffles and reductions among neighbours, bit for bit as the interpreter has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from tflgpu.conformance.memory_nodes import move_data
from tflgpu.conformance.programs import ProgramCase
from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.types import LARGEST_GROUP, Scalar, Size3

_SCALARS = (Scalar.F32, Scalar.I32, Scalar.U32, Scalar.F16)
_REDUCTIONS = ("add", "min", "max")
_GROUPS = 3
#: Workgroups of one axis and of two, with more invocations than a subgroup has.
SHAPES: tuple[Size3, ...] = ((64, 1, 1), (32, 2, 1))

#: Makes a program of a subgroup's size and a workgroup's shape.
InSubgroups = Callable[[int, Size3], ProgramCase]


def subgroup_programs() -> Iterator[tuple[str, InSubgroups, Scalar]]:
    """Every type, width and mask, and every reduction: a check's name, what makes the program, and
    the type that it computes in."""
    for scalar in _SCALARS:
        for width in (1, 2, 3, 4):
            yield f"1/shuffles/{scalar.value}x{width}", partial(_shuffles, scalar, width), scalar
    for op in _REDUCTIONS:
        for scalar in _SCALARS[:3]:
            for width in (1, 4):
                name = f"1/reductions/{op}/{scalar.value}x{width}"
                yield name, partial(_sums, op, scalar, width), scalar


def _shuffles(scalar: Scalar, width: int, size: int, shape: Size3) -> ProgramCase:
    """A value's exchange by every mask below ``size``."""
    masks = range(1, min(size, LARGEST_GROUP))
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
