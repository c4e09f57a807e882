"""Every operation and function of the kernel language as a table: how it is built, what it should
give by a computation that is not the interpreter's own, and how far a device may be off.

`build_table` makes one kernel of all cases of a type and width; the interpreter and each device
run that same kernel.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.conformance.function_table import rows_of
from tflgpu.ir.dtypes import Array
from tflgpu.language import make
from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import Expr, Kernel
from tflgpu.language.types import Scalar, Type

COUNT = 97  # elements: a prime, so that the last workgroup is partly idle
_GROUP = 16


@attrs.frozen
class NodeCase:
    """One operation. ``ulp`` is the worst error that the OpenCL specification allows."""

    name: str
    result: Scalar
    build: Callable[..., Expr]
    expected: Callable[..., Any]  # of Python numbers, lane by lane
    ulp: float = 0.0
    domain: str = "any"
    arity: int = 2


def _int_cases(scalar: Scalar) -> list[NodeCase]:
    bits = 2**32

    def wrap(value: int) -> int:
        value %= bits
        return value - bits if scalar is Scalar.I32 and value >= bits // 2 else value

    def quotient(a: int, b: int) -> int:
        return wrap((abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1))

    def remainder(a: int, b: int) -> int:
        return a - b * ((abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1))

    plain: dict[str, Callable[[int, int], int]] = {
        "add": lambda a, b: wrap(a + b),
        "sub": lambda a, b: wrap(a - b),
        "mul": lambda a, b: wrap(a * b),
        "min": min,
        "max": max,
        "and": lambda a, b: wrap(a & b),
        "or": lambda a, b: wrap(a | b),
        "xor": lambda a, b: wrap(a ^ b),
    }
    found = [NodeCase(op, scalar, _binary(op), fn) for op, fn in plain.items()]
    found += [
        NodeCase("div", scalar, _binary("div"), quotient, domain="divisor"),
        NodeCase("rem", scalar, _binary("rem"), remainder, domain="divisor"),
        NodeCase("shl", scalar, _binary("shl"), lambda a, b: wrap(a << b), domain="shift"),
        NodeCase("shr", scalar, _binary("shr"), lambda a, b: a >> b, domain="shift"),
        NodeCase("neg", scalar, lambda k, a: -a, lambda a: wrap(-a), arity=1),
    ]
    return found


def _float_cases(scalar: Scalar) -> list[NodeCase]:
    def divide(a: float, b: float) -> float:
        return a / b if b else math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)

    return [
        NodeCase("add", scalar, _binary("add"), lambda a, b: a + b),
        NodeCase("sub", scalar, _binary("sub"), lambda a, b: a - b),
        NodeCase("mul", scalar, _binary("mul"), lambda a, b: a * b),
        NodeCase("div", scalar, _binary("div"), divide, 2.5, "nonzero"),
        NodeCase("min", scalar, _binary("min"), min),
        NodeCase("max", scalar, _binary("max"), max),
        NodeCase("neg", scalar, lambda k, a: -a, lambda a: -a, arity=1),
    ]


def _function_cases(scalar: Scalar) -> list[NodeCase]:
    return [
        NodeCase(
            row.name,
            row.result(scalar),
            row.build,
            row.number,
            row.ulp,
            row.domain,
            FUNCTIONS[row.name].arity,
        )
        for row in rows_of(scalar)
    ]


def _compare_cases() -> list[NodeCase]:
    def build(op: str) -> Callable[..., Expr]:
        return lambda k, a, b: k.cast(make.binary(op, a, b), Scalar.I32)

    return [
        NodeCase("eq", Scalar.I32, build("eq"), lambda a, b: int(a == b), domain="equal"),
        NodeCase("ne", Scalar.I32, build("ne"), lambda a, b: int(a != b), domain="equal"),
        NodeCase("lt", Scalar.I32, build("lt"), lambda a, b: int(a < b), domain="equal"),
        NodeCase("le", Scalar.I32, build("le"), lambda a, b: int(a <= b), domain="equal"),
        NodeCase("gt", Scalar.I32, build("gt"), lambda a, b: int(a > b), domain="equal"),
        NodeCase("ge", Scalar.I32, build("ge"), lambda a, b: int(a >= b), domain="equal"),
    ]


def _logic_cases(scalar: Scalar) -> list[NodeCase]:
    """Booleans, and what chooses by them; conditions are made of the numbers."""

    def constants(k: Builder, a: Expr, b: Expr) -> Expr:
        true = k.const(True, Type(Scalar.BOOL, a.type.width))
        return k.cast(((a > 0) & true) | k.const(False, true.type), Scalar.I32)

    def lanes(k: Builder, a: Expr, b: Expr) -> Expr:
        parts = [x > y for x, y in zip(a.lanes, b.lanes, strict=True)]
        whole = k.vec(parts)
        again = k.vec([~lane for lane in (~whole).lanes])
        return k.cast(again, Scalar.I32)

    i32 = Scalar.I32
    return [
        NodeCase("land", i32, lambda k, a, b: k.cast((a > 0) & (b > 0), i32),
                 lambda a, b: int(a > 0 and b > 0)),
        NodeCase("lor", i32, lambda k, a, b: k.cast((a > 0) | (b > 0), i32),
                 lambda a, b: int(a > 0 or b > 0)),
        NodeCase("not", i32, lambda k, a, b: k.cast(~((a > 0) | (b > 0)), i32),
                 lambda a, b: int(not (a > 0 or b > 0))),
        NodeCase("eq bool", i32, lambda k, a, b: k.cast((a > 0).eq(b > 0), i32),
                 lambda a, b: int((a > 0) == (b > 0))),
        NodeCase("ne bool", i32, lambda k, a, b: k.cast((a > 0).ne(b > 0), i32),
                 lambda a, b: int((a > 0) != (b > 0))),
        NodeCase("select", scalar, lambda k, a, b: k.select(a < b, a, b), min),
        NodeCase("select whole", scalar, lambda k, a, b: k.select(k.group_id(0) >= 0, b, a),
                 lambda a, b: b),
        NodeCase("select bool", i32, lambda k, a, b: k.cast(k.select(a < b, b > 0, a > 0), i32),
                 lambda a, b: int(max(a, b) > 0)),
        NodeCase("bool constants", i32, constants, lambda a, b: int(a > 0)),
        NodeCase("bool lanes", i32, lanes, lambda a, b: int(a > b)),
        NodeCase("bool splat", i32,
                 lambda k, a, b: k.cast(k.splat(k.group_id(0) >= 0, a.type.width) & (a > b), i32),
                 lambda a, b: int(a > b)),
    ]  # fmt: skip


def _cast_cases(scalar: Scalar) -> list[NodeCase]:
    def limit(low: int, high: int) -> Callable[[float], int]:
        return lambda a: 0 if math.isnan(a) else math.trunc(max(low, min(high, a)))

    def wrap(a: int) -> int:
        return (a + 2**31) % 2**32 - 2**31

    def to(target: Scalar) -> Callable[..., Expr]:
        return lambda k, a: k.cast(a, target)

    def through_bool(k: Builder, a: Expr) -> Expr:
        return k.cast(k.cast(a, Scalar.BOOL), scalar)

    found = [NodeCase("through bool", scalar, through_bool, lambda a: int(a != 0), arity=1)]
    if scalar.is_float:
        low, high = -(2**31), 2**31 - 1
        found += [
            NodeCase("to i32", Scalar.I32, to(Scalar.I32), limit(low, high), 0, "huge", 1),
            NodeCase("to u32", Scalar.U32, to(Scalar.U32), limit(0, 2**32 - 1), 0, "huge", 1),
        ]
    elif scalar is Scalar.I32:
        found.append(NodeCase("to u32", Scalar.U32, to(Scalar.U32), lambda a: a % 2**32, arity=1))
    else:
        found.append(NodeCase("to i32", Scalar.I32, to(Scalar.I32), wrap, arity=1))
    if scalar is not Scalar.F32:
        found.append(NodeCase("to f32", Scalar.F32, to(Scalar.F32), np.float32, arity=1))
    return found


def _bit_cases(scalar: Scalar) -> list[NodeCase]:
    """Bits read as another type; numbers only, since a device may change a NaN's."""

    def to(target: Scalar) -> Callable[..., Expr]:
        return lambda k, a: k.bitcast(a, target)

    def shorten(k: Builder, a: Expr) -> Expr:
        return k.bitcast(k.bitcast(a, Scalar.U32) & 0xFFFFE000, Scalar.F32)

    def normal(k: Builder, a: Expr) -> Expr:
        return k.bitcast(a & 0x3FFFFFFF | 0x00800000, Scalar.F32)

    if scalar is Scalar.F32:
        return [
            NodeCase(
                "bits as i32", Scalar.I32, to(Scalar.I32), lambda a: _bits("f", "i", a), arity=1
            ),
            NodeCase(
                "bits as u32", Scalar.U32, to(Scalar.U32), lambda a: _bits("f", "I", a), arity=1
            ),
            NodeCase(
                "bits and back",
                scalar,
                shorten,
                lambda a: _bits("I", "f", _bits("f", "I", a) & 0xFFFFE000),
                arity=1,
            ),
        ]
    if scalar is Scalar.I32:
        return [
            NodeCase(
                "bits as u32", Scalar.U32, to(Scalar.U32), lambda a: _bits("i", "I", a), arity=1
            )
        ]
    if scalar is not Scalar.U32:
        return []
    return [
        NodeCase("bits as i32", Scalar.I32, to(Scalar.I32), lambda a: _bits("I", "i", a), arity=1),
        NodeCase(
            "bits as f32",
            Scalar.F32,
            normal,
            lambda a: _bits("I", "f", a & 0x3FFFFFFF | 0x00800000),
            arity=1,
        ),
    ]


def _bits(source: str, target: str, value: float) -> Any:
    return struct.unpack(target, struct.pack(source, value))[0]


def table(scalar: Scalar) -> list[NodeCase]:
    """All cases whose operands are lanes of ``scalar``."""
    own = _float_cases(scalar) if scalar.is_float else _int_cases(scalar)
    return (
        own
        + _function_cases(scalar)
        + _compare_cases()
        + _logic_cases(scalar)
        + _cast_cases(scalar)
        + _bit_cases(scalar)
    )


def _binary(op: str) -> Callable[..., Expr]:
    return lambda k, a, b: make.binary(op, a, b)


# Inputs


def operands(case: NodeCase, scalar: Scalar, lanes: int, seed: int) -> list[Array]:
    """Arrays for a case: random numbers of its domain, with the awkward ones among them."""
    rng = np.random.default_rng([seed, *case.name.encode()])
    dtype = scalar.numpy
    if scalar.is_float:
        arrays: list[Array] = [rng.normal(0, 8, lanes) for _ in range(case.arity)]
        arrays[0][:4] = [0.0, 0.5, 1.5, -2.5]
        if case.domain == "positive":
            arrays[0] = np.abs(arrays[0]) + 0.01
            arrays[1:] = [a / 4 for a in arrays[1:]]
        elif case.domain == "huge":
            arrays[0][4:9] = [3e9, -3e9, 1e20, -1e20, np.nan]
            arrays[0][9:13] = [2.0**31, -(2.0**31), 2.0**32, -1.0]  # the first that do not fit
            if scalar is Scalar.F16:
                arrays[0][9:13] = [1e3, -1e3, 2.5, -1.0]
                arrays[0][4:8] = [np.inf, -np.inf, 6e4, -6e4]
        elif case.domain == "nonzero":
            arrays[1] = np.where(np.abs(arrays[1]) < 0.1, 1.0, arrays[1])
    else:
        info = np.iinfo(dtype)
        arrays = [rng.integers(info.min, info.max, lanes) for _ in range(case.arity)]
        small = rng.integers(max(info.min, -50), 50, lanes)
        arrays[0][::3] = small[::3]
        arrays[0][:4] = [0, 1, info.max, info.min]
        if case.domain == "divisor":
            arrays[1] = np.where(small == 0, 7, small)
            arrays[0][3] = 5  # the smallest integer by -1 has no quotient
        elif case.domain == "shift":
            arrays[1] = rng.integers(0, 32, lanes)
    if case.domain == "equal":
        arrays[1][::2] = arrays[0][::2]
    return [a.astype(dtype) for a in arrays]


def expected(case: NodeCase, arrays: Sequence[Array]) -> Array:
    """What a case should give: computed number by number, in Python, then rounded once."""
    rows = zip(*(a.tolist() for a in arrays), strict=True)
    values = [case.expected(*row) for row in rows]
    with np.errstate(over="ignore"):
        return np.array(values).astype(case.result.numpy)


# One kernel of all cases


class TableBuffers:
    """Rows of lanes in buffers: in elements of as many lanes, or lane by lane where there are no
    buffers of such elements."""

    def __init__(self, k: Builder, scalar: Scalar, width: int, results: Iterable[Scalar]) -> None:
        self._k = k
        self._lanes = width if width == 3 else 1
        of_buffer = width // self._lanes
        self._sources = [k.buffer(name, scalar, of_buffer, "read") for name in "abc"]
        self._targets = {s: k.buffer(f"to_{s.value}", s, of_buffer, "write") for s in results}

    def load(self, operand: int, row: Expr) -> Expr:
        """A row of the first, second or third operand."""
        k, source = self._k, self._sources[operand]
        if self._lanes == 1:
            return k.load(source, row)
        return k.vec([k.load(source, row * self._lanes + lane) for lane in range(self._lanes)])

    def store(self, result: Scalar, row: Expr, value: Expr) -> None:
        """Write a row of the results of one type."""
        target = self._targets[result]
        if self._lanes == 1:
            self._k.store(target, row, value)
            return
        for lane in range(self._lanes):
            self._k.store(target, row * self._lanes + lane, value.lane(lane))


def build_table(cases: Sequence[NodeCase], scalar: Scalar, width: int) -> Kernel:
    """Element i of every case's result comes from element i of its operands."""
    k = Builder(f"table_{scalar.value}_{width}", (_GROUP, 1, 1))
    results = sorted({case.result for case in cases}, key=lambda s: s.value)
    table = TableBuffers(k, scalar, width, results)
    i = k.let(k.global_id(0), "i")
    with k.if_(i < COUNT):
        for number, case in enumerate(cases):
            at = i + number * COUNT
            args = [table.load(source, at) for source in range(case.arity)]
            value = k.let(case.build(k, *args), "value")
            table.store(case.result, at, value)
    return k.build()


GROUPS = (-(-COUNT // _GROUP), 1, 1)


def table_arrays(
    cases: Sequence[NodeCase], scalar: Scalar, width: int, seed: int = 0
) -> tuple[list[Array], list[list[Array]]]:
    """The buffers' arrays (operands, then zeroed results), and each case's own operands."""
    lanes = COUNT * width
    own = [operands(case, scalar, lanes, seed) for case in cases]
    empty = np.zeros(lanes, scalar.numpy)
    merged = [
        np.concatenate([arrays[i] if i < len(arrays) else empty for arrays in own])
        for i in range(3)
    ]
    results = sorted({case.result for case in cases}, key=lambda s: s.value)
    return merged + [np.zeros(lanes * len(cases), s.numpy) for s in results], own


def result_of(cases: Sequence[NodeCase], number: int, arrays: Sequence[Array], width: int) -> Array:
    """A case's part of the arrays after a run."""
    results = sorted({case.result for case in cases}, key=lambda s: s.value)
    array = arrays[3 + results.index(cases[number].result)]
    lanes = COUNT * width
    return array[number * lanes : (number + 1) * lanes]


def ulps(found: Array, want: Array) -> float:
    """The largest distance in units in the last place; integers count whole."""
    if found.dtype.kind != "f":
        return float(np.abs(found.astype(np.int64) - want.astype(np.int64)).max(initial=0))
    if (np.isnan(found) != np.isnan(want)).any():
        return math.inf
    same = (found == want) | np.isnan(want)
    with np.errstate(invalid="ignore"):
        distance = np.abs(found.astype(np.float64) - want.astype(np.float64))
        step = np.spacing(np.abs(want)).astype(np.float64)
    return float(np.where(same, 0, distance / np.where(same, 1, step)).max(initial=0))
