"""Small kernels of loads, stores, literals and types, with what each should leave behind."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from tflgpu.conformance.programs import ProgramCase
from tflgpu.ir.dtypes import Array
from tflgpu.language.builder import Builder
from tflgpu.language.interpreter import interpret
from tflgpu.language.make import binary
from tflgpu.language.tree import Expr, Kernel
from tflgpu.language.types import Scalar, Type


def move_data(scalar: Scalar, count: int) -> Array:
    """Numbers that a wrong conversion would change: limits, subnormals, negatives."""
    rng = np.random.default_rng(count)
    if scalar.is_float:
        info = np.finfo(scalar.numpy)
        data = rng.normal(0, 4, count).astype(scalar.numpy)
        data[:5] = [info.max, info.min, -0.0, 1.5, np.inf]
        if scalar is Scalar.F16:
            data[5:7] = [info.smallest_subnormal, -info.smallest_subnormal * 3]
        return data
    limits = np.iinfo(scalar.numpy)
    data = rng.integers(limits.min, limits.max, count, endpoint=True).astype(scalar.numpy)
    data[:2] = [limits.min, limits.max]
    return data


def move(scalar: Scalar, width: int, lanes: bool, as_scalar: Scalar | None) -> Kernel:
    """Copies 12 elements by vectors, or by their lanes."""
    k = Builder("move", (4, 1, 1))
    src, dst = k.buffer("src", scalar, width, "read"), k.buffer("dst", scalar, width, "write")
    i = k.let(k.global_id(0), "i")
    if lanes:
        for lane in range(width):
            at = i * width + lane
            k.store_lane(dst, at, k.load_lane(src, at, as_scalar))
    else:
        k.store(dst, i, k.load(src, i, as_scalar))
    return k.build()


def _rounded(width: int) -> ProgramCase:
    """Stores of f32 into f16 round to nearest even, overflow to infinity, and keep subnormals,
    infinities and NaN."""
    k = Builder(f"half_rounding_{width}", (4, 1, 1))
    src = k.buffer("src", Scalar.F32, width, "read")
    dst = k.buffer("dst", Scalar.F16, width, "write")
    k.store(dst, k.global_id(0), k.load(src, k.global_id(0)))
    data = np.random.default_rng(0).normal(0, 300, 16 * width).astype(np.float32)
    data[:7] = [2049, 2051, 65519, 65520, 1e-7, -3e-8, 1.00048828125]
    data[8:13] = [np.nan, -np.nan, np.inf, -np.inf, -3e38]
    with np.errstate(over="ignore"):
        want = data.astype(np.float16)
    return ProgramCase(k.build(), (4, 1, 1), [data, np.zeros_like(want)], {1: want})


def half_values() -> ProgramCase:
    """f32 values rounded to f16 and computed with as f32 again, in vectors of every width:
    halves to even, beyond 65504, and values whose sign is all that is left.

    Subnormals are left out: WGSL lets a device flush them.
    """
    k = Builder("half_values", (4, 1, 1))
    src = k.buffer("src", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    x = k.let(k.load(src, k.global_id(0)), "x")
    parts = [k.vec(x.lanes[:2]), x.lane(2), x.lane(3)]
    back = [k.cast(k.let(k.cast(p, Scalar.F16), "half"), Scalar.F32) for p in parts]
    lanes = k.vec([*back[0].lanes, *back[1:]])
    whole = k.cast(k.cast(x, Scalar.F16), Scalar.F32)
    with k.if_((k.global_id(0) % 2).eq(0)):
        k.store(dst, k.global_id(0), whole * 2.0)
    with k.else_():
        k.store(dst, k.global_id(0), lanes * 2.0)
    rng = np.random.default_rng(1)
    signs = rng.choice([-1.0, 1.0], 2048)
    data = np.ldexp(signs * rng.uniform(1, 2, 2048), rng.integers(-14, 17, 2048)).astype(np.float32)
    data[:8] = [2049, 2051, 65519, 65520, -65520, 0.1, -0.0, -1e-9]
    data[16:24] = data[:8]
    data[24:29] = [np.nan, -np.nan, np.inf, -np.inf, 3e38]
    # A NaN with all bits set: what is added in rounding must not carry out of it.
    data[30] = np.array([0x7FFFFFFF], np.uint32).view(np.float32)[0]
    data[33:36] = data[[24, 27, 30]]
    with np.errstate(over="ignore"):
        want = data.astype(np.float16).astype(np.float32) * np.float32(2)
    return ProgramCase(k.build(), (128, 1, 1), [data, np.zeros_like(data)], {1: want})


def half_bits() -> ProgramCase:
    """Two vectors of f16 as the bits of u32x4; numbers only, since a device may change a NaN's."""
    k = Builder("half_bits", (4, 1, 1))
    src = k.buffer("src", Scalar.F32, 4, "read")
    dst = k.buffer("dst", Scalar.U32, 4, "write")
    item = k.let(k.global_id(0), "item")
    halves = [k.cast(k.load(src, item * 2 + i), Scalar.F16) for i in range(2)]
    words = [k.let(k.bitcast(each, Scalar.U32), "words") for each in halves]
    k.store(dst, item, k.vec([*words[0].lanes, *words[1].lanes]))
    data = np.random.default_rng(4).normal(0, 30, 512).astype(np.float32)
    data[:4] = [-0.0, 65504, -np.inf, 1 / 3]
    want = data.astype(np.float16).view(np.uint32)
    return ProgramCase(k.build(), (16, 1, 1), [data, np.zeros_like(want)], {1: want})


def halves_of_bits() -> ProgramCase:
    """Four words as two vectors of f16; numbers only, since a device may change a NaN's bits."""
    k = Builder("halves_of_bits", (4, 1, 1))
    src = k.buffer("src", Scalar.U32, 4, "read")
    dst = k.buffer("dst", Scalar.F32, 4, "write")
    item = k.let(k.global_id(0), "item")
    words = k.let(k.load(src, item), "words").lanes
    for i in range(2):
        half = k.bitcast(k.vec(words[2 * i : 2 * i + 2]), Scalar.F16)
        k.store(dst, item * 2 + i, k.cast(half, Scalar.F32))
    want = np.random.default_rng(4).normal(0, 30, 512).astype(np.float16)
    want[:5] = [-0.0, 65504, -np.inf, 1 / 3, 2**-24]
    data = want.view(np.uint32)
    return ProgramCase(
        k.build(), (16, 1, 1), [data, np.zeros(512, np.float32)], {1: want.astype(np.float32)}
    )


def literals() -> ProgramCase:
    """Literals arrive exactly: limits, subnormals, infinities, the sign of zero, no number."""
    floats = [
        0.1,
        1 / 3,
        1e-38,
        3.4028235e38,
        -0.0,
        16777217.0,
        float("inf"),
        float("-inf"),
        1e-6,
        float("nan"),
    ]
    whole = [-(2**31), 2**31 - 1, 0, -1]
    k = Builder("literals", (1, 1, 1))
    f, i, u = (
        k.buffer(n, s, 1, "write")
        for n, s in (("f", Scalar.F32), ("i", Scalar.I32), ("u", Scalar.U32))
    )
    for at, number in enumerate(floats):
        k.store(f, at, k.f32(number))
    for at, value in enumerate(whole):
        k.store(i, at, k.i32(value))
    k.store(u, 0, k.const(2**32 - 1, Type(Scalar.U32)))
    want = {
        0: np.array(floats, np.float32),
        1: np.array(whole, np.int32),
        2: np.array([2**32 - 1], np.uint32),
    }
    return ProgramCase(k.build(), (1, 1, 1), [np.zeros_like(a) for a in want.values()], want)


def half_literals() -> ProgramCase:
    """16-bit literals arrive exactly."""
    want = np.array([0.1, 65504, -65504, 6.1e-5, 1 / 3, np.inf, -np.inf, -0.0], np.float16)
    k = Builder("half_literals", (1, 1, 1))
    dst = k.buffer("dst", Scalar.F16, 1, "write")
    for at, number in enumerate(want.tolist()):
        k.store(dst, at, k.const(number, Type(Scalar.F16)))
    return ProgramCase(k.build(), (1, 1, 1), [np.zeros_like(want)], {0: want})


def remainders() -> ProgramCase:
    """Remainders have the sign of the dividend; the divisor's has no effect."""
    divisors = (3, -3, 8, -8)
    k = Builder("remainders", (32, 1, 1))
    src, dst = k.buffer("src", Scalar.I32, 1, "read"), k.buffer("dst", Scalar.I32, 1, "write")
    i = k.let(k.global_id(0))
    for at, divisor in enumerate(divisors):
        k.store(dst, i * 4 + at, k.load(src, i) % divisor)
    x = np.arange(-16, 16).astype(np.int32)
    want = np.stack([np.fmod(x, d) for d in divisors], 1).reshape(-1)
    return ProgramCase(k.build(), (1, 1, 1), [x, np.zeros_like(want)], {1: want})


def constants() -> ProgramCase:
    """Constants of every type and width."""
    k = Builder("constants", (1, 1, 1))
    out = k.buffer("out", Scalar.I32, 1, "write")
    at = 0
    for scalar, value in ((Scalar.F32, 3.0), (Scalar.I32, -4), (Scalar.U32, 5)):
        for width in (1, 2, 3, 4):
            total = k.cast(k.const(value, Type(scalar, width)), Scalar.I32)
            k.store(out, at, sum(total.lanes, start=k.i32(0)) + k.global_id(0))
            at += 1
    want = np.array([v * w for v in (3, -4, 5) for w in (1, 2, 3, 4)], np.int32)
    return ProgramCase(k.build(), (1, 1, 1), [np.zeros(at, np.int32)], {0: want})


def shifted_literals() -> ProgramCase:
    """One literal shifted by another number of bits in each lane."""
    k = Builder("shifted_literals", (5, 1, 1))
    src = k.buffer("src", Scalar.I32, 4, "read")
    out = k.buffer("out", Scalar.I32, 4, "write")
    bits = k.let(k.load(src, k.global_id(0)), "bits")
    ones, minus = k.const(1, bits.type), k.const(-(2**31), bits.type)
    k.store(out, k.global_id(0), (ones << bits) ^ (minus >> bits))
    data = np.random.default_rng(5).integers(0, 32, 20).astype(np.int32)
    want = np.left_shift(np.int32(1), data) ^ np.right_shift(np.int32(-(2**31)), data)
    return ProgramCase(
        k.build(), (1, 1, 1), [data, np.zeros_like(data)], {1: want.astype(np.int32)}
    )


def precedence() -> ProgramCase:
    """Random integer expressions of one another: 400, of 40 at a time, the first 40 with loads in
    them. Were all 400 of one another, and with loads, software Vulkan would compile them for 14
    s."""
    rng = np.random.default_rng(7)
    k = Builder("precedence", (1, 1, 1))
    src = k.buffer("src", Scalar.I32, 1, "read")
    out = k.buffer("out", Scalar.I32, 1, "write")
    made: list[Expr] = []
    for turn in range(10):
        loads = [k.load(src, i) for i in range(5)]
        pool: list[Expr] = [k.let(load) for load in loads] if turn else list(loads)
        for _ in range(40):
            pool.append(_random_expression(k, rng, pool))
        made += pool
    for at, expr in enumerate(made):
        k.store(out, at, expr)
    data = rng.integers(-20, 20, 5).astype(np.int32)
    arrays = [data, np.zeros(len(made), np.int32)]
    kernel, groups = k.build(), (1, 1, 1)
    wanted = [a.copy() for a in arrays]
    interpret(kernel, groups, wanted)
    return ProgramCase(kernel, groups, arrays, {1: wanted[1]})


def _random_expression(k: Builder, rng: np.random.Generator, pool: list[Expr]) -> Expr:
    a, b = (pool[int(i)] for i in rng.integers(0, len(pool), 2))
    op = str(rng.choice(["add", "sub", "mul", "and", "or", "xor", "neg", "select", "shl", "lt"]))
    if op == "neg":
        return -a
    if op == "select":
        return k.select((a < b) | ~(b < 0) & a.eq(1), a - b, b)
    if op == "lt":
        return k.cast((a < b).ne(a > 3), Scalar.I32)
    if op == "shl":
        return (a << (b & 7)) >> 2
    return binary(op, a, b)


def dot_products() -> ProgramCase:
    """``dot`` of 2, 3 and 4 lanes, of whole numbers: every order of summation gives the same."""
    k = Builder("dot", (8, 1, 1))
    a = k.buffer("a", Scalar.F32, 1, "read")
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0))
    for n, width in enumerate((2, 3, 4)):
        x = k.vec([k.load(a, i * 4 + lane) for lane in range(width)])
        y = k.vec([k.load(a, i * 4 + lane) for lane in reversed(range(width))])
        k.store(dst, i * 3 + n, k.dot(x, y))
    data = np.random.default_rng(0).integers(-99, 99, 32).astype(np.float32)
    rows = data.reshape(8, 4)
    want = np.stack([(rows[:, :w] * rows[:, :w][:, ::-1]).sum(1) for w in (2, 3, 4)], 1)
    arrays = [data, np.zeros(24, np.float32)]
    return ProgramCase(k.build(), (1, 1, 1), arrays, {1: want.reshape(-1)})


def _shared(kind: Type) -> ProgramCase:
    """A shared array of a type, which no buffer need have."""
    k = Builder(f"exchange_{kind.scalar.value}_{kind.width}", (4, 1, 1))
    dst = k.buffer("dst", kind.scalar, 1, "write")
    tile = k.shared("tile", kind, 4)
    lane = k.let(k.local_id(0))
    base = k.cast(lane * 10, kind.scalar)
    k.store_shared(tile, lane, k.vec([base + i for i in range(kind.width)]))
    k.barrier()
    other = k.let(k.load_shared(tile, (lane + 1) % 4))
    for i, part in enumerate(other.lanes):
        k.store(dst, k.global_id(0) * kind.width + i, part)
    want = [(lane + 1) % 4 * 10 + i for lane in range(4) for i in range(kind.width)]
    dtype = kind.scalar.numpy
    return ProgramCase(
        k.build(), (1, 1, 1), [np.zeros(4 * kind.width, dtype)], {0: np.array(want, dtype)}
    )


def _widened(scalar: Scalar) -> ProgramCase:
    """Small whole numbers are what they were when they are loaded: by vectors, and by lanes."""
    k = Builder(f"widened_{scalar.value}", (4, 1, 1))
    src = k.buffer("src", scalar, 4, "read")
    vectors, lanes = (k.buffer(name, Scalar.I32, 4, "write") for name in ("vectors", "lanes"))
    i = k.let(k.global_id(0), "i")
    k.store(vectors, i, k.load(src, i) + 1)
    for lane in range(4):
        k.store_lane(lanes, i * 4 + lane, k.load_lane(src, i * 4 + lane) + 1)
    data = move_data(scalar, 64)
    want = data.astype(np.int32) + 1
    return ProgramCase(
        k.build(), (4, 1, 1), [data, np.zeros_like(want), np.zeros_like(want)], {1: want, 2: want}
    )


#: Kernels whose zeros must have the right sign; a sum may have either.
SIGNED: tuple[Callable[[], ProgramCase], ...] = (literals, half_literals)

#: Kernels for devices that store 16-bit floats and compute in any type, by name.
HALVES: dict[str, Callable[[], ProgramCase]] = {
    "half_rounding": partial(_rounded, 4),
    "half_rounding_x2": partial(_rounded, 2),
    "half_rounding_x1": partial(_rounded, 1),
}

_PLAIN = (literals, constants, precedence, shifted_literals, remainders, dot_products)
_SHARED = (
    Type(Scalar.F32, 3),
    Type(Scalar.I32),
    Type(Scalar.I32, 4),
    Type(Scalar.U32, 2),
    *(Type(Scalar.F16, width) for width in (1, 2, 3, 4)),
)
_OF_HALVES = (half_literals, half_values, half_bits, halves_of_bits)

#: Kernels by name: what makes each, and the type that a device must have for it.
KERNELS: dict[str, tuple[Callable[[], ProgramCase], Scalar | None]] = {
    **{make.__name__: (make, None) for make in _PLAIN},
    **{make.__name__: (make, Scalar.F16) for make in _OF_HALVES},
    **{f"shared_{t.scalar.value}x{t.width}": (partial(_shared, t), t.scalar) for t in _SHARED},
    **{f"widened_{s.value}": (partial(_widened, s), s) for s in (Scalar.I8, Scalar.U8, Scalar.I16)},
}
