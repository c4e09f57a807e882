"""What every operation and function of the kernel language gives of special numbers: NaN,
infinities, zeros of both signs, huge, tiny and negative ones, in all pairs.

What is expected is computed in f64 by rules written down here, not by the interpreter.
`tflgpu.language.evaluate` says what is defined and what is open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.conformance.function_table import LARGEST_DIVISOR, FunctionRow, beyond, huge, rows_of
from tflgpu.conformance.node_table import TableBuffers
from tflgpu.ir.dtypes import Array
from tflgpu.language import make
from tflgpu.language.builder import Builder
from tflgpu.language.functions import FUNCTIONS
from tflgpu.language.tree import Expr, Kernel
from tflgpu.language.types import Scalar, Size3

_GROUP = 16
_NAN, _INF = math.nan, math.inf
#: Every value is finite in f16 too, but for the last row, which is each type's own.
_COMMON = (
    _NAN, -_NAN, _INF, -_INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 2.5, -2.5, 3.0, -3.0,
    0.25, -8.0,
)  # fmt: skip
#: The largest of each is close to the end of its type's range, the smallest is a normal number.
_OWN = {
    Scalar.F32: (5e37, -5e37, 3e38, -3e38, 1e-30, -1e-30, 100.0, -100.0),
    Scalar.F16: (1000.0, -1000.0, 6e4, -6e4, 2.0**-13, -(2.0**-13), 100.0, -100.0),
}

Rule = Callable[..., Any]
Leave = Callable[[Sequence[Array]], Array]


@attrs.frozen
class Special:
    """One operation on special numbers.

    Attributes:
        name: For messages.
        build: The expression, of a builder and three operands.
        expected: The result, of arrays of f64.
        result: Type of its lanes.
        leaves_out: Rows about which nothing is defined.
        exact: Whether finite results must be right to the last bit.
        signed: Whether the sign of a zero among the operands decides. (Elsewhere a device may
            lose it: the sign of what an operation makes of it is open.)
    """

    name: str
    build: Callable[[Builder, Expr, Expr, Expr], Expr]
    expected: Rule
    result: Scalar
    leaves_out: Leave | None = None
    exact: bool = True
    signed: bool = False


def _either(pick: Rule) -> Rule:
    """A rule that gives NaN if either operand is one."""
    return lambda a, b, c: np.where(np.isnan(a) | np.isnan(b), _NAN, pick(a, b))


def _smaller(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def _larger(a: Array, b: Array) -> Array:
    return np.where(a > b, a, b)


def _limited(low: float, high: float) -> Rule:
    return lambda a, b, c: np.where(a < low, low, np.where(a > high, high, a))


def _arithmetic(scalar: Scalar) -> list[Special]:
    def huge_divisor(operands: Sequence[Array]) -> Array:
        return beyond(operands[1], LARGEST_DIVISOR)

    def dot(k: Builder, a: Expr, b: Expr, c: Expr) -> Expr:
        pairs = zip(a.lanes, b.lanes, strict=True)
        return k.vec([k.dot(k.vec([x, y]), k.vec([y, x])) for x, y in pairs])

    def binary(op: str) -> Callable[..., Expr]:
        return lambda k, a, b, c: make.binary(op, a, b)

    return [
        Special("add", binary("add"), lambda a, b, c: a + b, scalar),
        Special("sub", binary("sub"), lambda a, b, c: a - b, scalar),
        Special("mul", binary("mul"), lambda a, b, c: a * b, scalar),
        Special("div", binary("div"), lambda a, b, c: a / b, scalar, huge_divisor, exact=False),
        Special("a - a", lambda k, a, b, c: a - a, lambda a, b, c: a - a, scalar),
        Special("a / a", lambda k, a, b, c: a / a, lambda a, b, c: a / a, scalar,
                lambda v: huge_divisor([v[1], v[0]]), exact=False),
        Special("a * 0", lambda k, a, b, c: a * 0.0, lambda a, b, c: a * 0, scalar),
        Special("0 / a", lambda k, a, b, c: 0.0 / a, lambda a, b, c: 0 / a, scalar,
                lambda v: huge_divisor([v[1], v[0]])),
        Special("neg", lambda k, a, b, c: -a, lambda a, b, c: -a, scalar),
        Special("dot", dot, lambda a, b, c: a * b + b * a, scalar, lambda v: huge(v, scalar),
                exact=False),
    ]  # fmt: skip


def _chains(scalar: Scalar) -> list[Special]:
    """Operations that undo each other, but for what is lost between them."""
    least, most = (80.0, 200.0) if scalar is Scalar.F32 else (_INF, _INF)  # of exp's zeros

    def stepwise(rule: Rule) -> Rule:
        return lambda *operands: rule(*(x.astype(scalar.numpy) for x in operands))

    def lost(v: Sequence[Array]) -> Array:
        product, normal = np.abs(v[0] * v[1]), float(np.finfo(scalar.numpy).smallest_normal)
        return np.asarray(beyond(v[1], LARGEST_DIVISOR) | ((product > 0) & (product < normal)))

    def far(v: Sequence[Array]) -> Array:
        return np.asarray((np.abs(v[0]) > least) & (np.abs(v[0]) < most))

    def far_or_rounded(v: Sequence[Array]) -> Array:
        # Of such a number exp is 1 when it is rounded to f16. NVIDIA computes both in f32.
        return np.asarray(far(v) | ((v[0] != 0) & (np.abs(v[0]) < 2.0**-12)))

    return [
        Special("a + -a", lambda k, a, b, c: a + -a, lambda a, b, c: a - a, scalar),
        Special("a + b - a", lambda k, a, b, c: a + b - a,
                stepwise(lambda a, b, c: a + b - a), scalar),
        Special("a - b + b", lambda k, a, b, c: a - b + b,
                stepwise(lambda a, b, c: a - b + b), scalar),
        Special("a - (a + b)", lambda k, a, b, c: a - (a + b),
                stepwise(lambda a, b, c: a - (a + b)), scalar),
        Special("a + b + 1 - a", lambda k, a, b, c: k.let(a + b + 1.0) - a,
                stepwise(lambda a, b, c: a + b + scalar.numpy.type(1) - a), scalar),
        Special("a * b / b", lambda k, a, b, c: a * b / b,
                stepwise(lambda a, b, c: a * b / b), scalar, lost, exact=False),
        Special("exp(a) * exp(-a)", lambda k, a, b, c: k.call("exp", a) * k.call("exp", -a),
                stepwise(lambda a, b, c: np.exp(a) * np.exp(-a)), scalar, far, exact=False),
        Special("log(exp(a))", lambda k, a, b, c: k.call("log", k.call("exp", a)),
                stepwise(lambda a, b, c: np.log(np.exp(a))), scalar, far_or_rounded, exact=False),
        Special("exp(log(a))", lambda k, a, b, c: k.call("exp", k.call("log", a)),
                stepwise(lambda a, b, c: np.exp(np.log(a))), scalar,
                lambda v: (v[0] > 0) & ((v[0] > 256) | (v[0] < 2.0**-8)), exact=False),
        Special("sqrt(a) * sqrt(a)", lambda k, a, b, c: (r := k.let(k.call("sqrt", a))) * r,
                stepwise(lambda a, b, c: np.sqrt(a) * np.sqrt(a)), scalar, exact=False),
    ]  # fmt: skip


def _extremes(scalar: Scalar) -> list[Special]:
    def kept(k: Builder, a: Expr, b: Expr, c: Expr) -> Expr:
        """The inner result is used twice, so that it has a name of its own."""
        above = k.max(a, -1.0)
        return k.min(above, 1.0) + above * 0.0

    return [
        Special("min", lambda k, a, b, c: k.min(a, b), _either(_smaller), scalar),
        Special("max", lambda k, a, b, c: k.max(a, b), _either(_larger), scalar),
        Special("min and max", lambda k, a, b, c: k.max(k.min(a, b), k.min(b, a)),
                _either(_smaller), scalar),
        Special("max(a, a)", lambda k, a, b, c: k.max(a, a), lambda a, b, c: a, scalar),
        Special("max(a, 0)", lambda k, a, b, c: k.max(a, 0.0), _limited(0, _INF), scalar),
        Special("max(0, a)", lambda k, a, b, c: k.max(0.0, a), _limited(0, _INF), scalar),
        Special("min(a, 2)", lambda k, a, b, c: k.min(a, 2.0), _limited(-_INF, 2), scalar),
        Special("min(2, a)", lambda k, a, b, c: k.min(2.0, a), _limited(-_INF, 2), scalar),
        Special("max(a, -inf)", lambda k, a, b, c: k.max(a, -_INF), lambda a, b, c: a, scalar),
        Special("min(a, nan)", lambda k, a, b, c: k.min(a, _NAN),
                lambda a, b, c: np.full(a.shape, _NAN), scalar),
        Special("max(nan, a)", lambda k, a, b, c: k.max(_NAN, a),
                lambda a, b, c: np.full(a.shape, _NAN), scalar),
        Special("clamp", lambda k, a, b, c: k.clamp(a, -1.0, 2.0), _limited(-1, 2), scalar),
        Special("clamp to inf", lambda k, a, b, c: k.clamp(a, 0.0, _INF), _limited(0, _INF),
                scalar),
        Special("clamp the other way", lambda k, a, b, c: k.max(k.min(a, 2.0), -1.0),
                _limited(-1, 2), scalar),
        Special("clamp by operands", lambda k, a, b, c: k.clamp(a, k.min(b, 1.0), 2.0),
                lambda a, b, c: np.where(np.isnan(a) | np.isnan(b), _NAN,
                                         _smaller(_larger(a, _smaller(b, np.ones(1))),
                                                  np.full(1, 2.0))), scalar),
        Special("clamp in two", kept,
                lambda a, b, c: np.where(np.isnan(a) | (a == _INF), _NAN, np.clip(a, -1, 1)),
                scalar),
    ]  # fmt: skip


def _choices_by(op: str, rule: Rule, scalar: Scalar) -> list[Special]:
    """What a comparison gives, and what is chosen by it."""

    def holds(a: Expr, b: Expr) -> Expr:
        return make.binary(op, a, b)

    def assigned(k: Builder, a: Expr, b: Expr, c: Expr) -> Expr:
        """The same choice by a statement, of which compilers make a select."""
        chosen = []
        for x, y in zip(a.lanes, b.lanes, strict=True):
            lane = k.var(y, "lane")
            with k.if_(k.let(holds(x, y), "holds")):
                k.set(lane, x)
            chosen.append(lane)
        return k.vec(chosen)

    return [
        Special(op, lambda k, a, b, c: k.cast(holds(a, b), Scalar.I32), rule, Scalar.I32),
        Special(f"not {op}", lambda k, a, b, c: k.cast(~holds(a, b), Scalar.I32),
                lambda a, b, c: ~rule(a, b, c), Scalar.I32),
        Special(f"select by {op}", lambda k, a, b, c: k.select(holds(a, b), a, b),
                lambda a, b, c: np.where(rule(a, b, c), a, b), scalar),
        Special(f"select the other by {op}", lambda k, a, b, c: k.select(holds(a, b), b, a),
                lambda a, b, c: np.where(rule(a, b, c), b, a), scalar),
        Special(f"assign by {op}", assigned, lambda a, b, c: np.where(rule(a, b, c), a, b),
                scalar),
    ]  # fmt: skip


def _choices(scalar: Scalar) -> list[Special]:
    i32 = Scalar.I32
    rules: dict[str, Rule] = {
        "eq": lambda a, b, c: a == b,
        "ne": lambda a, b, c: a != b,
        "lt": lambda a, b, c: a < b,
        "le": lambda a, b, c: a <= b,
        "gt": lambda a, b, c: a > b,
        "ge": lambda a, b, c: a >= b,
    }

    return [
        *(case for op, rule in rules.items() for case in _choices_by(op, rule, scalar)),
        Special("isnan of a sum", lambda k, a, b, c: k.cast(k.is_nan(a + b), i32),
                lambda a, b, c: np.isnan(a + b), i32),
        Special("isnan of lanes",
                lambda k, a, b, c: k.cast(k.vec([k.is_nan(lane) for lane in a.lanes]), i32),
                lambda a, b, c: np.isnan(a), i32),
        Special("a != a", lambda k, a, b, c: k.cast(a.ne(a), i32),
                lambda a, b, c: np.isnan(a), i32),
        Special("a == a", lambda k, a, b, c: k.cast(a.eq(a), i32),
                lambda a, b, c: ~np.isnan(a), i32),
        Special("no order", lambda k, a, b, c: k.cast(~(a <= 0.0) & ~(a > 0.0), i32),
                lambda a, b, c: np.isnan(a), i32),
        Special("infinite", lambda k, a, b, c: k.cast(k.call("abs", a).eq(_INF), i32),
                lambda a, b, c: np.isinf(a), i32),
        Special("equal to nan", lambda k, a, b, c: k.cast(a.eq(_NAN), i32),
                lambda a, b, c: np.zeros(a.shape), i32),
        Special("limit by choices",
                lambda k, a, b, c: k.select(a < -1.0, k.const(-1.0, a.type),
                                            k.select(a > 2.0, k.const(2.0, a.type), a)),
                _limited(-1, 2), scalar),
        Special("limit by negated choices",
                lambda k, a, b, c: k.select(~(a <= 0.0), k.select(~(a >= 2.0), a,
                                                                  k.const(2.0, a.type)),
                                            k.const(0.0, a.type)),
                lambda a, b, c: np.where(a <= 0, 0, np.where(a >= 2, 2, a)), scalar),
        Special("select a nan", lambda k, a, b, c: k.select(a > b, _NAN, b),
                lambda a, b, c: np.where(a > b, _NAN, b), scalar),
        Special("select past a nan", lambda k, a, b, c: k.select(k.is_nan(a), 7.0, a),
                lambda a, b, c: np.where(np.isnan(a), 7, a), scalar),
    ]  # fmt: skip


def _functions(scalar: Scalar) -> list[Special]:
    def in_range(name: str) -> Callable[..., Expr]:
        return lambda k, a, b, c: k.cast(k.call("abs", k.call(name, a)) <= 1.0, Scalar.I32)

    def to_the(y: float) -> Callable[..., Expr]:
        return lambda k, a, b, c: k.call("pow", a, y)

    powers: dict[float, Rule] = {
        2.0: lambda a, b, c: a * a,
        -1.0: lambda a, b, c: 1 / a,
        0.5: lambda a, b, c: np.where(a == -_INF, _INF, np.sqrt(a)),
    }
    return [
        *[_of_row(row, scalar) for row in rows_of(scalar)],
        *[
            Special(
                f"{name} in [-1, 1]", in_range(name), lambda a, b, c: np.isfinite(a), Scalar.I32
            )
            for name in ("sin", "cos")
        ],
        *[
            Special(f"pow {y:g}", to_the(y), rule, scalar, exact=False, signed=True)
            for y, rule in powers.items()
        ],
    ]


def _of_row(row: FunctionRow, scalar: Scalar) -> Special:
    arity, array, leaves_out = FUNCTIONS[row.name].arity, row.array, row.leaves_out
    assert array is not None, f"{row.name} of {scalar.value}: nothing said of special values"
    return Special(
        row.name,
        lambda k, *args: row.build(k, *args[:arity]),
        lambda *args: array(*args[:arity]),
        row.result(scalar),
        None if leaves_out is None else lambda operands: leaves_out(operands, scalar),
        row.exact,
        row.signed,
    )


def _conversions(scalar: Scalar, halves: bool) -> list[Special]:
    def limit(low: int, high: int) -> Rule:
        return lambda a, b, c: np.where(np.isnan(a), 0, np.trunc(np.clip(a, low, high)))

    def to(target: Scalar) -> Callable[..., Expr]:
        return lambda k, a, b, c: k.cast(a, target)

    found = [
        Special("to i32", to(Scalar.I32), limit(-(2**31), 2**31 - 1), Scalar.I32),
        Special("to u32", to(Scalar.U32), limit(0, 2**32 - 1), Scalar.U32),
        Special(
            "to bool",
            lambda k, a, b, c: k.cast(k.cast(a, Scalar.BOOL), Scalar.I32),
            lambda a, b, c: a != 0,
            Scalar.I32,
        ),
        Special(
            "literals",
            lambda k, a, b, c: a * 0.0 + k.select(b > 0.0, k.const(-_INF, b.type), _NAN),
            lambda a, b, c: a * 0 + np.where(b > 0, -_INF, _NAN),
            scalar,
        ),
    ]
    if scalar is Scalar.F16:
        found.append(Special("to f32", to(Scalar.F32), lambda a, b, c: a, Scalar.F32))
    elif halves:
        found += [
            Special("to f16", to(Scalar.F16), lambda a, b, c: a, Scalar.F16),
            Special(
                "to f16 and back",
                lambda k, a, b, c: k.cast(k.cast(a, Scalar.F16), scalar),
                lambda a, b, c: a.astype(np.float16).astype(np.float64),
                scalar,
            ),
        ]
    return found


def special_cases(scalar: Scalar, *, halves: bool) -> list[Special]:
    """All cases whose operands are f32 or f16; ``halves`` for a device that computes in f16."""
    return (
        _arithmetic(scalar)
        + _chains(scalar)
        + _extremes(scalar)
        + _choices(scalar)
        + _functions(scalar)
        + _conversions(scalar, halves)
    )


# One kernel of all cases


def special_operands(scalar: Scalar) -> list[Array]:
    """Three operands: all pairs of special numbers, and a third beside them."""
    values = np.array((*_COMMON, *_OWN[scalar])).astype(scalar.numpy)
    a, b = (x.ravel() for x in np.meshgrid(values, values, indexing="ij"))
    c = np.resize(values[:16], a.size + 5)[5:]
    short = -a.size % 12  # whole vectors of any width
    order = np.random.default_rng(26).permutation(a.size)  # so that a vector's lanes differ
    order = np.concatenate([order, order[:short]])
    return [x[order] for x in (a, b, c)]


def build_special(cases: Sequence[Special], scalar: Scalar, width: int) -> tuple[Kernel, Size3]:
    """A kernel that computes every case of every row, and its workgroups."""
    rows = special_operands(scalar)[0].size
    count = rows // width
    k = Builder(f"special_{scalar.value}_{width}", (_GROUP, 1, 1))
    table = TableBuffers(k, scalar, width, _results(cases))
    i = k.let(k.global_id(0), "i")
    with k.if_(i < count):
        args = [table.load(source, i) for source in range(3)]
        a, b, c = (k.let(arg, name) for arg, name in zip(args, "xyz", strict=True))
        for number, case in enumerate(cases):
            value = k.let(case.build(k, a, b, c), "value")
            table.store(case.result, i + number * count, value)
    return k.build(), (-(-count // _GROUP), 1, 1)


def _results(cases: Sequence[Special]) -> list[Scalar]:
    return sorted({case.result for case in cases}, key=lambda s: s.value)


def special_arrays(cases: Sequence[Special], scalar: Scalar) -> list[Array]:
    """The kernel's arrays: operands, then zeroed results."""
    operands = special_operands(scalar)
    size = operands[0].size * len(cases)
    return operands + [np.zeros(size, s.numpy) for s in _results(cases)]


def wrong_results(cases: Sequence[Special], arrays: Sequence[Array]) -> dict[str, str]:
    """The cases that gave something else, by name, with the first row that did."""
    own = [a.astype(np.float64) for a in arrays[:3]]
    # A device may lose a zero's sign.
    unsigned = [np.where(a == 0, 0.0, a) for a in own]
    rows = own[0].size
    results = _results(cases)
    found = {}
    for number, case in enumerate(cases):
        got = arrays[3 + results.index(case.result)][number * rows : (number + 1) * rows]
        with np.errstate(all="ignore"):
            wants = [
                np.asarray(case.expected(*v)).astype(case.result.numpy)
                for v in ((own,) if case.signed else (own, unsigned))
            ]
            good = np.any([_is_right(got, want, case.exact) for want in wants], axis=0)
            if case.leaves_out is not None:
                good |= case.leaves_out(own)
        if not good.all():
            at = int(np.argmin(good))
            given = ", ".join(f"{a[at]:g}" for a in own)
            bad = int((~good).sum())
            found[case.name] = f"{got[at]!r} for {given}, not {wants[0][at]!r} ({bad} of {rows})"
    return found


def _is_right(got: Array, want: Array, exact: bool) -> Array:
    if want.dtype.kind != "f":
        return np.asarray(got == want)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    x, y = got.astype(np.float64), want.astype(np.float64)
    info = np.finfo(want.dtype)
    # Whether there are subnormal numbers is open.
    same |= (np.abs(x) <= float(info.smallest_normal)) & (np.abs(y) <= float(info.smallest_normal))
    if exact:
        return np.asarray(same)
    # That finite results are accurate is another check's business.
    room = (1e-4 if want.dtype == np.float32 else 2.0**-8) * np.maximum(np.abs(y), 1e-2)
    return np.asarray(same | (np.isfinite(x) & np.isfinite(y) & (np.abs(x - y) <= room)))
