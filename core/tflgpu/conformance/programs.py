"""Small kernels of control flow and memory, with what they should give in plain NumPy.

The interpreter and every device run the same ones.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import I32, F32x4, Scalar, Type


@attrs.frozen
class ProgramCase:
    """A kernel, its workgroups, its arrays, and which array should end up as what."""

    kernel: Kernel
    groups: tuple[int, int, int]
    arrays: list[Array]
    want: dict[int, Array]


def _numbers(count: int) -> Array:
    return np.random.default_rng(count).integers(-9, 10, count).astype(np.int32)


def guarded_return() -> ProgramCase:
    """The excess invocations of the last workgroup leave early."""
    k = Builder("guarded_return", (8, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.global_id(0)
    with k.if_(~(i < 13)):
        k.return_()
    k.store(dst, i, k.load(src, i) + 1)
    x = _numbers(13)
    return ProgramCase(k.build(), (2, 1, 1), [x, np.zeros(13, np.int32)], {1: x + 1})


def if_else() -> ProgramCase:
    """Branches that differ between neighbours, each assigning an outer variable."""
    k = Builder("if_else", (7, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    x = k.let(k.load(src, k.global_id(0)))
    result = k.var(k.i32(0))
    with k.if_(x > 0):
        with k.if_((x % 2).eq(0)):
            k.set(result, x * 10)
        k.add_to(result, 1)
    with k.else_():
        k.set(result, -x)
    k.store(dst, k.global_id(0), result)
    data = _numbers(21)
    want = np.where(data > 0, np.where(data % 2 == 0, data * 10, 0) + 1, -data)
    return ProgramCase(k.build(), (3, 1, 1), [data, np.zeros(21, np.int32)], {1: want})


def nested_loops_with_break() -> ProgramCase:
    """Loops whose length differs between invocations, and a break out of the inner one only."""
    k = Builder("nested", (5, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0))
    total = k.var(k.i32(0))
    with k.loop(1, i, 2) as a:
        with k.loop(0, 6) as b:
            with k.if_(b * a > i):
                k.break_()
            k.add_to(total, a + b)
        k.add_to(total, 100)
    k.store(dst, i, total)
    want = []
    for n in range(15):
        total_n = 0
        for a_n in range(1, n, 2):
            for b_n in range(6):
                if b_n * a_n > n:
                    break
                total_n += a_n + b_n
            total_n += 100
        want.append(total_n)
    return ProgramCase(
        k.build(), (3, 1, 1), [np.zeros(15, np.int32)], {0: np.array(want, np.int32)}
    )


def return_inside_a_loop() -> ProgramCase:
    """The first index of a match; the invocations that find none go on to the end."""
    k = Builder("find", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0))
    with k.loop(0, 19) as j, k.if_(k.load(src, j).eq(i)):
        k.store(dst, i, j)
        k.return_()
    k.store(dst, i, k.i32(-1))
    x = np.abs(_numbers(19)) * 2
    want = [int(np.argmax(x == i)) if (x == i).any() else -1 for i in range(16)]
    return ProgramCase(
        k.build(), (4, 1, 1), [x, np.zeros(16, np.int32)], {1: np.array(want, np.int32)}
    )


def variable_keeps_value_across_masks() -> ProgramCase:
    """Assignments in a loop that some have left do not reach those."""
    k = Builder("collatz", (8, 1, 1))
    dst = k.buffer("dst", Scalar.U32, 1, "write")
    n = k.var(k.cast(k.global_id(0) + 1, Scalar.U32), "n")
    steps = k.var(k.const(0, Type(Scalar.U32)), "steps")
    with k.loop(0, 200):
        with k.if_(n.eq(1)):
            k.break_()
        with k.if_((n & 1).eq(0)):
            k.set(n, n >> 1)
        with k.else_():
            k.set(n, n * 3 + 1)
        k.add_to(steps, 1)
    k.store(dst, k.global_id(0), steps)
    want = []
    for start in range(1, 25):
        value, count = start, 0
        while value != 1:
            value, count = (value // 2 if value % 2 == 0 else 3 * value + 1), count + 1
        want.append(count)
    return ProgramCase(
        k.build(), (3, 1, 1), [np.zeros(24, np.uint32)], {0: np.array(want, np.uint32)}
    )


def workgroup_sum() -> ProgramCase:
    """A tree of sums in shared memory, with a barrier a level."""
    k = Builder("workgroup_sum", (16, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    part = k.shared("part", I32, 16)
    lane = k.let(k.local_id(0), "lane")
    k.store_shared(part, lane, k.load(src, k.global_id(0)))
    for half in (8, 4, 2, 1):
        k.barrier()
        with k.if_(lane < half):
            total = k.load_shared(part, lane) + k.load_shared(part, lane + half)
            k.store_shared(part, lane, total)
    with k.if_(lane.eq(0)):
        k.store(dst, k.group_id(0), k.load_shared(part, 0))
    x = _numbers(80)
    want = x.reshape(5, 16).sum(1).astype(np.int32)
    return ProgramCase(k.build(), (5, 1, 1), [x, np.zeros(5, np.int32)], {1: want})


def shared_tile_in_a_loop() -> ProgramCase:
    """A tile that is filled and used again and again: two barriers a round; 2-D workgroups."""
    k = Builder("tile", (4, 4, 1))
    a = k.buffer("a", Scalar.I32, 1, "read")
    b = k.buffer("b", Scalar.I32, 1, "read")
    c = k.buffer("c", Scalar.I32, 1, "write")
    ta, tb = k.shared("ta", I32, 16), k.shared("tb", I32, 16)
    x, y = k.let(k.local_id(0), "x"), k.let(k.local_id(1), "y")
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    total = k.var(k.i32(0), "total")
    with k.loop(0, 12, 4) as first:
        k.store_shared(ta, y * 4 + x, k.load(a, row * 12 + first + x))
        k.store_shared(tb, y * 4 + x, k.load(b, (first + y) * 8 + column))
        k.barrier()
        with k.loop(0, 4, unroll=True) as i:
            k.add_to(total, k.load_shared(ta, y * 4 + i) * k.load_shared(tb, i * 4 + x))
        k.barrier()
    k.store(c, row * 8 + column, total)
    p, q = _numbers(96), _numbers(97)[:96]
    want = (p.reshape(8, 12) @ q.reshape(12, 8)).ravel().astype(np.int32)
    return ProgramCase(k.build(), (2, 2, 1), [p, q, np.zeros(64, np.int32)], {2: want})


def shared_vectors() -> ProgramCase:
    """Vectors and booleans in shared memory, read by a neighbour."""
    k = Builder("shared_vectors", (8, 1, 1))
    src, dst = k.buffer("src", Scalar.F32, 4, "read"), k.buffer("dst", Scalar.F32, 4, "write")
    rows = k.shared("rows", F32x4, 8)
    flags = k.shared("flags", Type(Scalar.BOOL), 8)
    lane = k.let(k.local_id(0))
    k.store_shared(rows, lane, k.load(src, k.global_id(0)))
    k.store_shared(flags, lane, (lane % 3).eq(0))
    k.barrier()
    other = k.let(k.i32(7) - lane)
    value = k.select(k.load_shared(flags, other), k.load_shared(rows, other), k.f32(-1, 4))
    k.store(dst, k.global_id(0), value)
    x = np.arange(64, dtype=np.float32)
    want = x.reshape(2, 8, 4)[:, ::-1].copy()
    want[:, (7 - np.arange(8)) % 3 != 0] = -1
    return ProgramCase(k.build(), (2, 1, 1), [x, np.zeros(64, np.float32)], {1: want.ravel()})


def in_place() -> ProgramCase:
    """A buffer that is read and written by the same invocation, lanes of a vector buffer."""
    k = Builder("in_place", (4, 1, 1))
    data = k.buffer("data", Scalar.F32, 4, "read_write")
    i = k.let(k.global_id(0))
    k.store(data, i, k.load(data, i) * 2.0)
    k.store_lane(data, i * 4 + 1, k.load_lane(data, i * 4 + 2) + 1.0)
    x = np.arange(32, dtype=np.float32)
    want = x.reshape(-1, 4) * 2
    want[:, 1] = want[:, 2] + 1
    return ProgramCase(k.build(), (2, 1, 1), [x], {0: want.ravel()})


def vectors_and_lanes() -> ProgramCase:
    """Vectors taken apart and put together."""
    k = Builder("swizzle", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.F32, 4, "read"), k.buffer("dst", Scalar.F32, 4, "write")
    pair = k.buffer("pair", Scalar.F32, 2, "write")
    i = k.let(k.global_id(0))
    x = k.let(k.load(src, i), "x")
    k.store(dst, i, k.vec([x.lane(3), x.lane(0), 7.0, x.lane(1)]) + k.splat(x.lane(2), 4))
    k.store(pair, i, k.vec([x.lane(0), -x.lane(1)]))
    data = np.arange(32, dtype=np.float32)
    rows = data.reshape(-1, 4)
    seven = np.full(8, 7, np.float32)
    moved = np.stack([rows[:, 3], rows[:, 0], seven, rows[:, 1]], 1)
    pairs = np.stack([rows[:, 0], -rows[:, 1]], 1)
    return ProgramCase(
        k.build(),
        (2, 1, 1),
        [data, np.zeros(32, np.float32), np.zeros(16, np.float32)],
        {1: (moved + rows[:, 2:3]).ravel(), 2: pairs.ravel()},
    )


def ids_along_three_axes() -> ProgramCase:
    """All nine ids."""
    k = Builder("ids", (2, 3, 2))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    gx, gy, gz = (k.let(k.global_id(axis)) for axis in range(3))
    value = k.var(k.i32(0))
    for axis in range(3):
        k.set(value, value * 10 + k.local_id(axis) * 3 + k.group_id(axis))
    k.store(dst, (gz * 6 + gy) * 6 + gx, value)
    z, y, x = np.meshgrid(np.arange(2), np.arange(6), np.arange(6), indexing="ij")
    want = ((x % 2 * 3 + x // 2) * 10 + y % 3 * 3 + y // 3) * 10 + z % 2 * 3 + z // 2
    return ProgramCase(
        k.build(), (3, 2, 1), [np.zeros(72, np.int32)], {0: want.ravel().astype(np.int32)}
    )


def shared_subexpressions() -> ProgramCase:
    """A value squared 40 times over: a tree of it would have 2**40 nodes."""
    k = Builder("squares", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.U32, 1, "read"), k.buffer("dst", Scalar.U32, 1, "write")
    value = k.load(src, k.global_id(0))
    for _ in range(40):
        value = value * value + 1
    k.store(dst, k.global_id(0), value)
    x = np.arange(8, dtype=np.uint32)
    want = x
    for _ in range(40):
        want = want * want + np.uint32(1)
    return ProgramCase(k.build(), (2, 1, 1), [x, np.zeros(8, np.uint32)], {1: want})


def long_chain() -> ProgramCase:
    """An expression deeper than Python's recursion limit."""
    k = Builder("chain", (4, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.global_id(0)
    value = k.load(src, i)
    for n in range(3000):
        value = value + i if n % 2 else value ^ n
    k.store(dst, i, value)
    x = _numbers(8)
    want, ids = x, np.arange(8, dtype=np.int32)
    for n in range(3000):
        want = want + ids if n % 2 else want ^ np.int32(n)
    return ProgramCase(k.build(), (2, 1, 1), [x, np.zeros(8, np.int32)], {1: want})


def reserved_names() -> ProgramCase:
    """Names that shading languages have for themselves, and names that are none."""
    k = Builder("min", (4, 1, 1))
    src, dst = k.buffer("half", Scalar.F32, 1, "read"), k.buffer("var", Scalar.F32, 1, "write")
    local = k.shared("local", Type(Scalar.F32), 4)
    i = k.let(k.global_id(0), "get_global_id")
    x = k.let(k.load(src, i), "float4")
    k.store_shared(local, k.local_id(0), k.min(x, 2.0))
    k.barrier()
    max_ = k.var(k.max(x, k.load_shared(local, k.local_id(0))), "max")
    with k.loop(0, 2, name="kernel") as j:
        k.add_to(max_, k.cast(j, Scalar.F32))
    k.store(dst, i, k.let(max_ + 0.0, "a-b c"))
    data = np.linspace(-4, 4, 8, dtype=np.float32)
    return ProgramCase(k.build(), (2, 1, 1), [data, np.zeros(8, np.float32)], {1: data + 1})


def sums_that_wrap() -> ProgramCase:
    """What a compiler that takes signed numbers not to overflow would work out beforehand."""
    k = Builder("wrap", (7, 1, 1))
    src = k.buffer("src", Scalar.I32, 1, "read")
    dst = [k.buffer(f"dst{i}", Scalar.I32, 1, "write") for i in range(4)]
    i = k.global_id(0)
    x, total = k.let(k.load(src, i)), k.var(k.i32(2**31 - 3))
    with k.loop(0, 3):
        k.add_to(total, k.max(x, 1))
    for to, value in zip(dst, (x + 1 > x, x * 2 // 2, -x > 0, total > 0), strict=True):
        k.store(to, i, k.cast(value, Scalar.I32))
    data = np.array([2**31 - 1, -(2**31), 2**30, -(2**30) - 1, 0, 7, -7], np.int32)
    more = np.maximum(data, 1).astype(np.int64) * 3 + 2**31 - 3
    wants = (
        data != 2**31 - 1,
        data * np.int32(2) // 2,
        (data < 0) & (data != -(2**31)),
        more.astype(np.int32) > 0,
    )
    want = {i: each.astype(np.int32) for i, each in enumerate(wants, 1)}
    return ProgramCase(k.build(), (1, 1, 1), [data, *(np.zeros(7, np.int32) for _ in dst)], want)


PROGRAMS: list[Callable[[], ProgramCase]] = [
    guarded_return, if_else, nested_loops_with_break, return_inside_a_loop,
    variable_keeps_value_across_masks, workgroup_sum, shared_tile_in_a_loop, shared_vectors,
    in_place, vectors_and_lanes, ids_along_three_axes, shared_subexpressions, long_chain,
    reserved_names, sums_that_wrap,
]  # fmt: skip
