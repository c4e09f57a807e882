"""Each rule of the checker, broken once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import attrs
import pytest
from tflgpu.errors import KernelError
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.builder import Builder
from tflgpu.language.check import check
from tflgpu.language.kernel import Kernel
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Binary,
    Break,
    Builtin,
    Const,
    For,
    If,
    Let,
    Load,
    Name,
    Return,
    SharedLoad,
    SharedStore,
    Stmt,
    Store,
    Var,
)
from tflgpu.language.types import BOOL, F16, F32, I32, F32x4, Scalar, Type

SRC = KernelBuffer("src", Scalar.F32, 1, "read")
DST = KernelBuffer("dst", Scalar.F32, 1, "write")
TILE = SharedArray("tile", F32, 4)
ZERO, ONE = Const(I32, 0), Const(F32, 1.0)


def kernel(*body: Stmt, **changes: object) -> Kernel:
    made = Kernel("k", (4, 1, 1), (SRC, DST), (TILE,), body)
    return attrs.evolve(made, **changes)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (kernel(workgroup=(0, 1, 1)), "needs three sizes of at least 1"),
        (kernel(workgroup=(4, 1)), "needs three sizes of at least 1"),
        (kernel(workgroup=(64, 32, 1)), "more than 1024 invocations"),
        (kernel(buffers=(SRC,)), "no buffer is written"),
        (
            kernel(buffers=(DST, KernelBuffer("b", Scalar.F32, 3, "read"))),
            "buffer b has 3 lanes",
        ),
        (kernel(buffers=(DST, KernelBuffer("b", Scalar.F32, 1, "rw"))), "unknown access 'rw'"),
        (
            kernel(buffers=(DST, KernelBuffer("b", Scalar.BOOL, 1, "read"))),
            "buffer b of booleans",
        ),
        (kernel(buffers=(DST, DST)), "dst is defined twice"),
        (kernel(shared=(SharedArray("dst", F32, 1),)), "dst is defined twice"),
        (kernel(shared=(SharedArray("t", F32, 0),)), "shared array t is empty"),
        (kernel(shared=(SharedArray("t", Type(Scalar.I8), 1),)), "shared array t of i8: use i32"),
        (kernel(Let("src", ONE)), "src is defined twice"),
        (kernel(Let("a", ONE), Var("a", ONE)), "a is defined twice"),
        (kernel(Let("i", ONE), For(Name(I32, "i"), ZERO, ZERO, 1, ())), "i is defined twice"),
        (kernel(Let("a", Name(F32, "b"))), "b is used outside the block that defines it"),
        (kernel(Let("a", ONE), Assign(Name(F32, "a", True), ONE)), "a is assigned but is not a v"),
        (kernel(Assign(Name(F32, "a", True), ONE)), "a is used outside the block"),
        (kernel(Var("a", ONE), Assign(Name(F32, "a", True), ZERO)), "i32 assigned to a: f32"),
        (kernel(Store(SRC, ZERO, ONE)), "store to src, which is not a writable buffer"),
        (kernel(Store(DST, ZERO, ZERO)), "i32 stored in dst of f32"),
        (kernel(Store(DST, ZERO, Const(F32x4, 1.0))), "f32x4 stored in dst of f32"),
        (kernel(Store(DST, ZERO, Const(F16, 1.0))), "f16 stored in dst of f32"),
        (kernel(Store(attrs.evolve(DST, name="o"), ZERO, ONE)), "store to o, which is not"),
        (kernel(Let("a", Load(F32, DST, ZERO))), "load from dst, which is not a readable buffer"),
        (
            kernel(SharedStore(SharedArray("t", F32, 4), ZERO, ONE)),
            "array t, which is not one of it",
        ),
        (kernel(SharedStore(TILE, ZERO, ZERO)), "i32 stored in tile of f32"),
        (
            kernel(Let("a", SharedLoad(F32, SharedArray("t", F32, 4), ZERO))),
            "load from shared array t",
        ),
        (kernel(If(ZERO, ())), "an if on i32"),
        (kernel(For(Name(I32, "i"), ZERO, ZERO, 0, ())), "bounds are i32 and the step is at least"),
        (kernel(For(Name(I32, "i"), ONE, ZERO, 1, ())), "bounds are i32"),
        (kernel(Break()), "break outside a loop"),
    ],
)
def test_rule(bad: Kernel, message: str) -> None:
    with pytest.raises(KernelError, match=f"kernel k: .*{message}"):
        check(bad)


def test_a_name_ends_with_its_block() -> None:
    inner = If(Const(BOOL, True), (Let("a", ONE),))
    check(kernel(inner))
    check(kernel(inner, Let("a", ONE)))  # free again
    with pytest.raises(KernelError, match="a is used outside the block"):
        check(kernel(inner, Let("b", Name(F32, "a"))))


@pytest.mark.parametrize(
    "stop",
    [Name(I32, "n", True), SharedLoad(I32, SharedArray("n_shared", I32, 1), ZERO)],
    ids=["variable", "shared"],
)
def test_a_loops_bound_does_not_change_while_it_runs(stop: Name | SharedLoad) -> None:
    change = Assign(Name(I32, "n", True), ZERO)
    loop = For(Name(I32, "i"), ZERO, stop, 1, (change,))
    bad = kernel(Var("n", ZERO), loop, shared=(SharedArray("n_shared", I32, 1),))
    with pytest.raises(KernelError, match="the bound of loop i may change while it runs"):
        check(bad)


# Barriers


def build(write: Callable[[Builder], None]) -> Kernel:
    k = Builder("k", (4, 1, 1))
    k.buffer("dst", Scalar.F32, 1, "write")
    write(k)
    return k.build()


def under_uniform_condition(k: Builder) -> None:
    with k.if_(k.group_id(0) < 3):
        k.barrier()


def in_uniform_loop(k: Builder) -> None:
    n = k.var(k.i32(4))
    with k.loop(0, n):
        k.barrier()
        with k.if_(k.local_id(0) < 2), k.loop(0, 2):
            k.break_()


def after_uniform_return(k: Builder) -> None:
    with k.if_(k.group_id(0) < 3):
        k.return_()
    k.barrier()


def after_divergent_loop(k: Builder) -> None:
    with k.loop(0, 9), k.if_(k.local_id(0) < 2):
        k.break_()
    k.barrier()


def under_loaded_condition_of_all(k: Builder) -> None:
    """A number that no invocation writes, and that all read at one place."""
    src = k.buffer("src", Scalar.I32, 1, "read")
    with k.if_(k.load(src, k.group_id(0)) >= 0):
        k.return_()
    with k.loop(0, k.load(src, 0)):
        k.barrier()


@pytest.mark.parametrize(
    "write",
    [
        under_uniform_condition,
        under_loaded_condition_of_all,
        in_uniform_loop,
        after_uniform_return,
        after_divergent_loop,
    ],
)
def test_barriers_that_everybody_reaches(write: Callable[[Builder], None]) -> None:
    build(write)


def under_divergent_condition(k: Builder) -> None:
    with k.if_(k.local_id(0) < 3):
        k.barrier()


def under_loaded_condition(k: Builder) -> None:
    src = k.buffer("src", Scalar.I32, 1, "read")
    with k.if_(k.load(src, k.local_id(0)) < 3):
        k.barrier()


def under_condition_of_what_is_written(k: Builder) -> None:
    both = k.buffer("both", Scalar.I32, 1, "read_write")
    with k.if_(k.load(both, 0) < 3):
        k.barrier()


def in_divergent_loop(k: Builder) -> None:
    with k.loop(0, k.local_id(0)):
        k.barrier()


def under_variable_made_divergent_later(k: Builder) -> None:
    n = k.var(k.i32(0))
    with k.loop(0, 4):
        with k.if_(n < 3):
            k.barrier()
        k.set(n, k.local_id(0))


def under_variable_set_by_some(k: Builder) -> None:
    n = k.var(k.i32(0))
    with k.if_(k.local_id(0) < 2):
        k.set(n, 1)
    with k.if_(n < 1):
        k.barrier()


@pytest.mark.parametrize(
    "write",
    [
        under_divergent_condition, under_loaded_condition, in_divergent_loop,
        under_condition_of_what_is_written,
        under_variable_made_divergent_later, under_variable_set_by_some,
    ],
)  # fmt: skip
def test_barriers_under_a_divergent_condition(write: Callable[[Builder], None]) -> None:
    with pytest.raises(KernelError, match="a barrier under a condition that may differ"):
        build(write)


def after_divergent_return(k: Builder) -> None:
    with k.if_(k.global_id(0) < 3):
        k.return_()
    k.barrier()


def after_divergent_break(k: Builder) -> None:
    with k.loop(0, 4):
        with k.if_(k.local_id(0) < 2):
            k.break_()
        k.barrier()


def before_divergent_break(k: Builder) -> None:
    with k.loop(0, 4):
        k.barrier()
        with k.if_(k.local_id(0) < 2):
            k.break_()


def variable_differs_after_divergent_break(k: Builder) -> None:
    n = k.var(k.i32(0))
    with k.loop(0, 4):
        with k.if_(k.local_id(0) < 2):
            k.break_()
        k.add_to(n, 1)
    with k.if_(n < 3):
        k.barrier()


@pytest.mark.parametrize(
    "write", [after_divergent_return, after_divergent_break, before_divergent_break]
)
def test_barriers_that_some_never_reach(write: Callable[[Builder], None]) -> None:
    with pytest.raises(KernelError, match="a barrier that invocations which returned or broke"):
        build(write)


def test_who_returned_from_one_block_never_was_in_the_other() -> None:
    first = Binary(BOOL, "lt", Builtin("group_id", 0), ZERO)
    returns = If(Binary(BOOL, "lt", Builtin("local_id", 0), ZERO), (Return(),))
    check(kernel(If(first, (returns,), (Barrier(),)), Store(DST, ZERO, Load(F32, SRC, ZERO))))
    with pytest.raises(KernelError, match="a barrier that invocations which returned"):
        check(kernel(If(first, (returns,), (Barrier(),)), Barrier()))


def test_what_some_compute_after_others_broke_out_differs() -> None:
    with pytest.raises(KernelError, match="a barrier under a condition that may differ"):
        build(variable_differs_after_divergent_break)


def test_barrier_statement_in_a_tree_is_checked_too() -> None:
    divergent = Load(BOOL, SRC, Builtin("local_id", 0))
    with pytest.raises(KernelError, match="a barrier under a condition"):
        check(kernel(If(divergent, (Barrier(),))))


def test_checking_is_linear_in_shared_expressions() -> None:
    expr = Load(F32, SRC, ZERO)
    value = expr + expr
    for _ in range(2000):
        value = value * value
    check(kernel(Store(DST, ZERO, value)))


# What the builder itself refuses


def refused(message: str, write: Callable[[Builder], None]) -> None:
    with pytest.raises(KernelError, match=message):
        build(write)


def test_builder_refuses() -> None:
    refused("a condition is one boolean, not i32", lambda k: k.if_(k.i32(1)).__enter__())
    refused("else_ without an if_", lambda k: k.else_().__enter__())
    refused("step is positive, not 0", lambda k: k.loop(0, 4, 0).__enter__())
    refused(
        "an index is i32, not f32", lambda k: k.load(k.buffer("s", Scalar.F32, 1, "read"), k.f32(0))
    )
    refused("s is write-only", lambda k: k.load(k.buffer("s", Scalar.F32, 1, "write"), 0))
    refused("s is read-only", lambda k: k.store(k.buffer("s", Scalar.F32, 1, "read"), 0, k.f32(0)))
    refused(
        "i32 stored in s of f32",
        lambda k: k.store(k.buffer("s", Scalar.F32, 1, "write"), 0, k.i32(0)),
    )
    refused("i32 stored in t of f32", lambda k: k.store_shared(k.shared("t", F32, 1), 0, k.i32(0)))
    refused("f32 assigned to v: i32", lambda k: k.set(k.var(k.i32(0)), k.f32(0)))
    refused("t is not a variable", lambda k: k.set(Name(I32, "t"), 1))


def test_builder_refuses_an_open_block() -> None:
    k = Builder("k", (1, 1, 1))
    k.loop(0, 4).__enter__()
    with pytest.raises(KernelError, match="built inside an open block"):
        k.build()


def test_names_never_clash() -> None:
    k = Builder("k", (1, 1, 1))
    dst = k.buffer("x", Scalar.I32, 1, "write")
    names = [k.var(k.i32(i), name) for i, name in enumerate(["x", "x_1", "x", "x_1", "x_1_1"])]
    k.store(dst, 0, names[0])
    assert len({n.ident for n in names} | {"x"}) == 6
    k.build()


def nested(depth: int, *, loops: bool) -> Builder:
    k = Builder("nested", (4, 1, 1))
    out = k.buffer("out", Scalar.F32, 1, "write")
    i = k.let(k.global_id(0), "i")
    total = k.var(k.f32(0.0), "total")
    with ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(k.loop(0, 1) if loops else k.if_(i >= 0))
        k.set(total, total + 1.0)
    k.store(out, i, total)
    return k


@pytest.mark.parametrize("loops", [False, True])
def test_blocks_that_are_too_deep_in_each_other(loops: bool) -> None:
    nested(64, loops=loops).build()  # at once, although a loop's body may be looked at twice
    for depth in (65, 5000):
        with pytest.raises(KernelError, match=f"blocks {depth} deep in each other; at most 64"):
            nested(depth, loops=loops).build()
