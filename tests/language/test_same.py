"""Kernels are the same as equal trees, and as no other."""

from __future__ import annotations

import gc
import itertools
import weakref

import attrs
import pytest
from kernel_programs import PROGRAMS
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.same import same, sketch
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Binary,
    Break,
    Builtin,
    Call,
    Cast,
    Const,
    For,
    If,
    Lane,
    Let,
    Load,
    Name,
    Return,
    Select,
    SharedLoad,
    SharedStore,
    Splat,
    Stmt,
    Store,
    Unary,
    Var,
    Vec,
)  # fmt: skip
from tflgpu.language.types import BOOL, F16, F32, I32, U32, F32x4, Scalar

SRC = KernelBuffer("src", Scalar.F32, 4, "read")
DST = KernelBuffer("dst", Scalar.F32, 4, "write")
TILE = SharedArray("tile", F32, 4)
ZERO, ONE, X = Const(I32, 0), Const(F32, 1.0), Name(F32, "x")


def of(*body: Stmt, **changes: object) -> Kernel:
    kernel = Kernel("k", (4, 1, 1), (SRC, DST), (TILE,), body)
    return attrs.evolve(kernel, **changes)


def differing() -> list[Kernel]:
    """Kernels of which no two are the same."""
    loop = For(Name(I32, "i"), ZERO, Const(I32, 4), 1, (Break(),))
    return [
        of(),
        of(name="l"),
        of(workgroup=(1, 4, 1)),
        of(buffers=(DST, SRC)),
        of(buffers=(SRC, attrs.evolve(DST, access="read_write"))),
        of(buffers=(SRC, attrs.evolve(DST, scalar=Scalar.F16))),
        of(buffers=(SRC, attrs.evolve(DST, width=2))),
        of(shared=()),
        of(shared=(attrs.evolve(TILE, count=5),)),
        of(shared=(attrs.evolve(TILE, type=F32x4),)),
        of(Barrier()),
        of(Barrier(), Barrier()),
        of(Return()),
        of(If(Const(BOOL, True), (Barrier(),))),
        of(If(Const(BOOL, True), (), (Barrier(),))),
        of(If(Const(BOOL, True), ()), Barrier()),
        of(If(Const(BOOL, False), (Barrier(),))),
        of(loop),
        of(attrs.evolve(loop, unroll=True)),
        of(attrs.evolve(loop, step=2)),
        of(attrs.evolve(loop, start=Const(I32, 1))),
        of(attrs.evolve(loop, stop=Const(I32, 5))),
        of(attrs.evolve(loop, index=Name(I32, "j"))),
        of(attrs.evolve(loop, body=())),
        of(Assign(X, ONE)),
        of(Store(DST, ZERO, Const(F32x4, 1.0))),
        of(Store(DST, ZERO, ONE, scalar=True)),
        of(SharedStore(TILE, ZERO, ONE)),
        of(Var("x", ONE)),
        *(
            of(Let("x", value))
            for value in (
                ONE, Const(F32, -0.0), Const(F32, 0.0), Const(F32, float("nan")), Const(F16, 1.0),
                Const(I32, 1), Const(U32, 1), Const(BOOL, True), Const(F32x4, 1.0), X,
                Name(F32, "y"), Builtin("global_id", 0), Builtin("global_id", 1),
                Builtin("local_id", 0), Unary(F32, "neg", X), Binary(F32, "add", X, ONE),
                Binary(F32, "add", ONE, X), Binary(F32, "sub", X, ONE), Call(F32, "exp", (X,)),
                Call(F32, "log", (X,)), Select(F32, Const(BOOL, True), X, ONE), Cast(F16, X),
                Vec(F32x4, (X, X, X, ONE)), Splat(F32x4, X), Lane(F32, Name(F32x4, "x"), 1),
                Lane(F32, Name(F32x4, "x"), 2), Load(F32x4, SRC, ZERO), Load(F32, SRC, ZERO, True),
                SharedLoad(F32, TILE, ZERO),
            )
        ),
    ]  # fmt: skip


def test_every_difference_counts() -> None:
    assert not [pair for pair in itertools.combinations(differing(), 2) if same(*pair)]


def test_the_same_made_twice() -> None:
    for one, other in zip(differing(), differing(), strict=True):
        assert same(one, other)
        assert sketch(one) == sketch(other)


def test_a_number_is_the_same_as_a_whole_float() -> None:
    assert same(of(Let("x", Const(F32, 1))), of(Let("x", ONE)))
    assert sketch(of(Let("x", Const(F32, 1)))) == sketch(of(Let("x", ONE)))


def test_sharing_counts_where_printers_see_it() -> None:
    """Within a statement: what is shared there is computed once."""
    one = Binary(F32, "add", X, ONE)
    other = Binary(F32, "add", X, ONE)
    shared, apart = Binary(F32, "mul", one, one), Binary(F32, "mul", one, other)
    assert not same(of(Let("y", shared)), of(Let("y", apart)))
    assert same(of(Let("y", one), Let("z", one)), of(Let("y", one), Let("z", other)))


def _scale(factor: float) -> Kernel:
    k = Builder("scale", (64, 1, 1))
    buffer = k.buffer("x", Scalar.F32, 4, "read_write")
    i = k.let(k.global_id(0), "i")
    k.store(buffer, i, k.load(buffer, i) * factor)
    return k.build()


def test_equal_kernels_are_one_object() -> None:
    first = _scale(2.0)
    assert _scale(2.0) is first
    assert _scale(3.0) is not first


def test_a_kernel_that_nobody_has_is_forgotten() -> None:
    kernel = _scale(5.0)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_built_twice_is_the_same(make: object) -> None:
    assert callable(make)
    kernel = make().kernel
    assert make().kernel is kernel


def test_programs_differ() -> None:
    kernels = [make().kernel for make in PROGRAMS]
    assert not [pair for pair in itertools.combinations(kernels, 2) if same(*pair)]
