"""Variables as authors write them: what changes one, and what was read of it before."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.language.buffers import KernelBuffer
from tflgpu.language.builder import Builder
from tflgpu.language.expressions import Expr
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Binary, Let
from tflgpu.language.types import F32, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.layout import Layout, LayoutKind
from tflgpu.lowering.view import WriteView


def line() -> int:
    return sys._getframe(1).f_lineno


def at(*lines: int) -> str:
    """A pattern: these lines of this file, in this order."""
    return ".*".join(re.escape(f"{__file__}:{number}") + r"\b" for number in lines)


class Case:
    """A kernel of one invocation, with a variable x of 3.0 and four results."""

    def __init__(self) -> None:
        self.k = Builder("case", (1, 1, 1))
        self.dst: KernelBuffer = self.k.buffer("dst", Scalar.F32, 1, "write")
        self.src: KernelBuffer = self.k.buffer("src", Scalar.F32, 1, "read")
        #: No line of its own.
        self.out = partial(self.k.store, self.dst)
        self.x: Variable = self.k.var(self.k.f32(3.0), "x")

    def gives(self) -> list[float]:
        out = np.zeros(4, np.float32)
        interpret(self.k.build(), (1, 1, 1), [out, np.arange(1, 5, dtype=np.float32)])
        return [float(value) for value in out]


@pytest.fixture
def case() -> Case:
    return Case()


FLOAT = [operator.iadd, operator.isub, operator.imul, operator.itruediv]
WHOLE = [
    operator.iadd, operator.isub, operator.imul, operator.ifloordiv, operator.imod, operator.iand,
    operator.ior, operator.ixor, operator.ilshift, operator.irshift,
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "first", "scalar"),
    [*((c, 45.0, Scalar.F32) for c in FLOAT), *((c, 47, Scalar.I32) for c in WHOLE)],
)
def test_an_operator_in_place_changes_the_variable(
    change: Callable[[Any, Any], Any], first: float, scalar: Scalar
) -> None:
    k = Builder("in_place", (1, 1, 1))
    dst = k.buffer("dst", scalar, 1, "write")
    x = k.var(k.const(first, F32.with_scalar(scalar)), "x")
    for _ in range(2):
        assert change(x, 3) is x
    k.store(dst, 0, x)
    out = np.zeros(1, scalar.numpy)
    interpret(k.build(), (1, 1, 1), [out])
    assert out[0] == scalar.numpy.type(change(change(first, 3), 3))


def test_a_sum_in_loops_of_both_kinds(case: Case) -> None:
    k, x = case.k, case.x
    for i in range(4):
        x += k.load(case.src, i)
    with k.loop(0, 4) as j:
        x += k.load(case.src, j)
    case.out(0, x)
    assert case.gives()[0] == 23


def test_what_was_read_before_a_set_is_refused_behind_it(case: Case) -> None:
    other, _ = case.x * 2.0, line()
    case.out(1, other)
    old, made = case.x + 0.0, line()
    twice = old * 2.0
    case.k.set(case.x, case.x * 10.0); changed = line()  # noqa: E702  # fmt: skip
    with pytest.raises(KernelError, match=rf"{at(made)}.* reads x, .*{at(changed, line() + 1)}"):
        case.out(0, twice)


def test_the_old_value_by_its_own_name(case: Case) -> None:
    old = case.k.let(case.x + 0.0, "old")
    plain = case.k.let(case.x, "plain")
    case.x *= 10.0
    case.out(0, old)
    case.out(1, case.x)
    case.out(2, plain)
    assert case.gives()[:3] == [3, 30, 3]


@pytest.mark.parametrize(
    "read",
    [
        lambda k, x: -x,
        lambda k, x: abs(x),
        lambda k, x: x.lane(0),
        lambda k, x: x.lanes[0],
        lambda k, x: k.select(k.local_id(0) == 0, x, 1.0),
        lambda k, x: k.call("exp", x),
        lambda k, x: k.cast(x, Scalar.F32),
        lambda k, x: k.vec([x]),
        lambda k, x: 1.0 - x,
        lambda k, x: k.bitcast(k.bitcast(x, Scalar.I32), Scalar.F32),
        lambda k, x: k.splat(x, 4).lane(1),
        lambda k, x: k.load(k.buffer("s", Scalar.F32, 1, "read"), k.cast(x, Scalar.I32)),
    ],
)
def test_every_way_to_read(case: Case, read: Callable[[Builder, Variable], Expr]) -> None:
    old = read(case.k, case.x)
    case.out(0, old)
    case.x += 1.0
    with pytest.raises(KernelError, match="reads x, which was set at"):
        case.out(0, old)


def test_behind_an_if_that_sets_it(case: Case) -> None:
    k, x = case.k, case.x
    old, made = x + 0.0, line()
    with k.if_(k.load(case.src, 0) > 0.0):
        case.out(0, old)
        x += 1.0; changed = line()  # noqa: E702  # fmt: skip
        case.out(1, x + 0.0)
    with k.else_():
        case.out(0, old)  # here it is what it was
        x -= 1.0
    with pytest.raises(KernelError, match=at(made, changed + 4, line() + 1)):
        case.out(2, old)
    case.out(2, x)
    assert case.gives()[:3] == [3, 4, 4]


def test_in_an_else_that_only_the_if_sets(case: Case) -> None:
    k, x = case.k, case.x
    old = x + 0.0
    with k.if_(k.load(case.src, 0) > 9.0):
        with k.if_(k.load(case.src, 1) > 0.0):
            x += 1.0
        with pytest.raises(KernelError, match="reads x, which was set"):
            case.out(0, old)
    with k.else_():
        case.out(0, old)
    with pytest.raises(KernelError, match="reads x, which was set"):
        case.out(1, old)
    assert case.gives()[:2] == [3, 0]


def test_a_condition_and_bounds_are_of_before_the_block(case: Case) -> None:
    k = case.k
    n = k.var(k.i32(1), "n")
    first, above = n + 0, n > 0
    with k.if_(above):
        n += 1
    with k.loop(n, 4):
        case.x += 1.0
        n += 5
    case.out(0, case.x)
    with pytest.raises(KernelError, match="reads n"):
        k.if_(above).__enter__()
    with pytest.raises(KernelError, match="reads n"):
        k.loop(first, 4).__enter__()
    with pytest.raises(KernelError, match="reads n"):
        k.loop(0, first).__enter__()
    assert case.gives()[0] == 5


def test_in_a_loop_that_sets_it_further_down(case: Case) -> None:
    k, x = case.k, case.x
    old, made = x + 0.0, line()
    with k.loop(0, 2):
        case.out(0, old); used = line()  # noqa: E702  # fmt: skip
        with (
            k.loop(0, 2),
            pytest.raises(KernelError, match=rf"{at(made, line() + 2, used)}.*each time"),
        ):
            x += 1.0


def test_in_a_loop_what_was_read_in_the_same_turn(case: Case) -> None:
    k, x = case.k, case.x
    with k.loop(0, 3) as i:
        half = x * 0.5
        with k.if_(i < 3):
            case.out(i, half)
        x += 1.0
    case.out(3, x)
    assert case.gives() == [1.5, 2, 2.5, 6]


def test_behind_a_loop_that_sets_it(case: Case) -> None:
    old = case.x + 0.0
    with case.k.loop(0, 2):
        case.x += 1.0
    with pytest.raises(KernelError, match="reads x, which was set at"):
        case.out(0, old)


def test_what_a_loop_does_not_set_is_as_before(case: Case) -> None:
    old = case.x + 0.0
    y = case.k.var(case.k.f32(0.0), "y")
    with case.k.loop(0, 3):
        y += old
    case.out(0, y + old)
    assert case.gives()[0] == 12


@pytest.mark.parametrize("is_loop", [True, False])
def test_a_python_name_that_was_bound_to_a_sum_in_a_block(case: Case, is_loop: bool) -> None:
    """``x = x + 1.0`` changes no variable."""
    k, total = case.k, case.x + 0.0
    block = k.loop(0, 4) if is_loop else k.if_(k.load(case.src, 0) > 0.0)
    with block:
        total, made = case.x + 1.0, line()
    told = rf"{at(made)} reads x, inside .*{at(line() + 2)}.* write x \+= "
    with pytest.raises(KernelError, match=told):
        case.out(0, total)


def test_a_view_stores_at_its_authors_line(case: Case) -> None:
    k = case.k
    view = WriteView(k, case.dst, Layout((3,), LayoutKind.LINEAR, Scalar.F32), Scalar.F32)
    value = k.splat(case.x, 4)
    case.x += 1.0
    with pytest.raises(KernelError, match=at(line() - 2, line() - 1, line() + 1)):
        view.store(k.i32(0), 0, value)


def test_a_node_made_of_the_variable_itself(case: Case) -> None:
    case.out(0, case.x + 1.0)
    for value in (case.x, Binary(F32, "add", case.x, case.x)):
        with pytest.raises(KernelError, match=rf"a Variable is no node.*x\.read.*{at(line() + 1)}"):
            case.k.emit(Let("y", value))


def test_a_variable_is_set_in_its_own_kernel(case: Case) -> None:
    for change in (Case().k.set, Case().k.add_to):
        with pytest.raises(KernelError, match="x is not a variable of it"):
            change(case.x, 1.0)


def memory(kind: str) -> tuple[Builder, Callable[[int], Expr], Callable[[int, Expr], None]]:
    """A kernel, and how it loads from memory that it writes, and stores to it."""
    k = Builder("case", (1, 1, 1))
    if kind == "shared":
        room = k.shared("room", F32, 4)
        return k, partial(k.load_shared, room), partial(k.store_shared, room)
    both = k.buffer("room", Scalar.F32, 1, "read_write")
    return k, partial(k.load_lane, both), partial(k.store_lane, both)


@pytest.mark.parametrize("kind", ["shared", "buffer"])
def test_what_was_loaded_before_a_store_is_refused_behind_it(kind: str) -> None:
    k, load, store = memory(kind)
    old = load(0) * 2.0
    store(1, old)
    made = line() - 2
    stored = at(made, made + 1, line() + 2)
    with pytest.raises(KernelError, match=r"reads room, .*would give the new value") as told:
        store(2, old)
    assert re.search(stored, str(told.value))
    kept = k.let(load(0), "kept")
    store(0, kept + 1.0)
    store(3, kept)


@pytest.mark.parametrize("kind", ["shared", "buffer"])
def test_loads_in_blocks(kind: str) -> None:
    k, load, store = memory(kind)
    before = load(0)
    with k.if_(k.global_id(0) < 1):
        inside = load(1)
        store(2, before)
        with pytest.raises(KernelError, match="reads room"):
            store(3, inside)
    with pytest.raises(KernelError, match="reads room"):
        store(3, before)
    outside = load(0)
    with k.loop(0, 2):
        k.let(outside, "used")
        with pytest.raises(KernelError, match="each time"):
            store(1, k.f32(1.0))
    with k.if_(k.global_id(0) < 1):
        inside = load(1)
    store(3, inside)  # nothing was stored since


def test_a_barrier_brings_what_others_have_stored() -> None:
    k, load, store = memory("shared")
    store(k.local_id(0), k.f32(1.0))
    others = load(0)
    k.barrier()
    with pytest.raises(KernelError, match="reads room, which was set"):
        k.let(others, "others")
