"""Kernels are the same as equal trees, and as no other."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language import expressions, matrix, subgroup, tree
from tflgpu.language.buffers import KernelBuffer, SharedArray
from tflgpu.language.builder import Builder
from tflgpu.language.c_family import CPrinter
from tflgpu.language.caps import Features
from tflgpu.language.defining import constant_values, is_rounded, rounded_names
from tflgpu.language.expressions import Expr
from tflgpu.language.interpreter import interpret
from tflgpu.language.invocations import Invocations
from tflgpu.language.kernel import Kernel
from tflgpu.language.needs import needs_of
from tflgpu.language.node_writer import method_name
from tflgpu.language.same import same, sketch
from tflgpu.language.signs import not_negative
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
)
from tflgpu.language.types import BOOL, F16, F32, I32, U32, F32x4, Scalar, Type
from tflgpu_opencl.dialect import OpenCLDialect
from tflgpu_opencl.printer import _OpenCLPrinter
from tflgpu_vulkan.spirv.module import module_of
from tflgpu_vulkan.spirv.statements import Statements
from tflgpu_vulkan.spirv.target import Target
from tflgpu_wgpu.dialect import WgslDialect, _WgslPrinter

from tests.language.kernel_programs import PROGRAMS

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


# What printers ask of kernels: signs of whole numbers, rounded values, what literals make.


def started(name: str) -> Builder:
    """A kernel that writes something, as all must."""
    k = Builder(name, (8, 1, 1))
    k.store(k.buffer("dst", Scalar.I32, 1, "write"), 0, k.i32(0))
    return k


def test_indices_are_not_negative_and_differences_may_be() -> None:
    k = started("signs")
    i = k.let(k.global_id(0), "i")
    k.let(i * 4 + 3, "index")
    k.let((i + 7) % 5, "rest")
    k.let(i - 1, "before")
    k.let(k.max(i - 1, 0), "limited")
    k.let(k.var(i, "moved") + 1, "after")
    kernel = k.build()
    found = not_negative(kernel)
    known = {s.ident for s in kernel.body if isinstance(s, Let) and id(s.value) in found}
    assert known == {"i", "index", "rest", "limited"}


def test_sums_of_data_may_overflow_and_those_of_indices_do_not() -> None:
    k = started("data")
    src = k.buffer("src", Scalar.I32, 1, "read")
    i = k.let(k.global_id(0), "i")
    data = k.let(k.max(k.load(src, 0), 0), "data")
    k.let(data + data, "sum")
    k.let(data * i, "product")
    k.let(k.max(data, i) + i, "larger")
    k.let(data // 3 % 4, "rest")
    within = k.let(k.min(data, 63), "within")
    k.let(within * 64 + i, "place")
    k.let((data & 15) + i, "masked")
    k.let(data % 5 + i, "cycled")
    kernel = k.build()
    found = not_negative(kernel)
    known = {s.ident for s in kernel.body if isinstance(s, Let) and id(s.value) in found}
    assert known == {"i", "data", "rest", "within", "place", "masked", "cycled"}


def test_a_name_of_another_block_says_nothing() -> None:
    k = started("blocks")
    with k.loop(0, 4, name="i"):
        pass
    with k.loop(k.i32(-2), 4, name="i") as again:
        k.let(again + 1, "sum")
    kernel = k.build()
    inner = kernel.body[2].body[0]  # type: ignore[attr-defined]
    assert id(inner.value) not in not_negative(kernel)


def test_sums_and_products_of_data_may_wrap_around() -> None:
    k = started("data")
    src = k.buffer("src", Scalar.I32, 1, "read")
    x = k.let(k.max(k.load(src, 0), 0), "x")
    y = k.let(k.max(k.load(src, 1), 0), "y")
    k.let(x + y, "sum")
    k.let(x * 2, "twice")
    k.let(k.max(x + y, 0) // 2, "half")
    near = k.let(k.min(x, 999), "near")
    place = k.let(near * 1000 + k.global_id(0) % 7, "place")
    k.let(place % 10 + (y & 15) * near, "again")
    k.let(near * 3_000_000, "far")
    with k.loop(0, near, name="i") as i:
        k.let(i * 2_000_000, "within")
        k.let(i * near * 1_000_000 + near, "beyond")
    kernel = k.build()
    found = not_negative(kernel)
    inner = kernel.body[-1].body  # type: ignore[attr-defined]
    lets = [s for s in (*kernel.body, *inner) if isinstance(s, Let)]
    known = {s.ident for s in lets if id(s.value) in found}
    assert known == {"x", "y", "half", "near", "place", "again", "within"}


def test_what_was_f32_and_is_f16_is_rounded() -> None:
    k = started("rounded")
    src = k.buffer("src", Scalar.F32, 4, "read")
    x = k.let(k.load(src, 0), "x")
    half = k.let(k.cast(x, Scalar.F16), "half")
    k.let(k.cast(half, Scalar.F32), "wide")
    names = rounded_names(k.build())
    assert names == {"half"}
    assert is_rounded(half, names)
    assert not is_rounded(x, names)


def test_literals_are_computed_by_the_rules_of_the_language() -> None:
    k = started("constants")
    k.let(k.f32(1.0) / 0.0, "infinite")
    k.let(k.select(k.const(True, k.i32(0).eq(0).type), k.f32(2.0, 4), k.f32(3.0, 4)), "two")
    k.let(k.cast(k.f32(3e9), Scalar.I32) + k.global_id(0), "sum")
    kernel = k.build()
    values = {stmt.ident: stmt.value for stmt in kernel.body if isinstance(stmt, Let)}
    found = constant_values(kernel)
    assert found[id(values["infinite"])].tolist() == [np.inf]
    assert found[id(values["two"])].tolist() == [[2.0] * 4]
    assert id(values["sum"]) not in found


# A class of nodes that the language does not know: what it says of itself is all that it takes.


@attrs.frozen(eq=False)
class Middle(Expr):
    """The one of three that is neither the largest nor the smallest."""

    type: Type
    a: Expr
    b: Expr
    c: Expr

    def evaluate(self, *operands: Array) -> Array:
        """By sorting."""
        return np.asarray(np.sort(np.stack(np.broadcast_arrays(*operands)), axis=0)[1])


@attrs.frozen(eq=False)
class Meet(Stmt):
    """Name how many invocations of the workgroup are here; they must all be."""

    ident: str
    collective = "meeting"

    @property
    def declares(self) -> tuple[str, ...]:
        """The number."""
        return (self.ident,)

    def problem(self, kernel: Kernel) -> str | None:
        """A workgroup of one."""
        return "nobody to meet" if kernel.workgroup == (1, 1, 1) else None

    def run(self, here: Invocations, *values: Array) -> None:
        """Count."""
        assert here.arrived("a meeting").all()
        here.frame.declare(self.ident, np.bincount(here.group)[here.group].astype(np.int32))


def middle(scalar: Scalar) -> Kernel:
    k = Builder("middle", (4, 1, 1))
    buffers = [k.buffer(name, scalar, 1, "read") for name in "abc"]
    dst = k.buffer("dst", scalar, 1, "write")
    a, b, c = (k.load(each, k.global_id(0)) for each in buffers)
    k.store(dst, k.global_id(0), Middle(a.type, a, b, c))
    return k.build()


def meeting(workgroup: tuple[int, int, int], write: Callable[[Builder], None]) -> Kernel:
    k = Builder("meeting", workgroup)
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    write(k)
    k.store(dst, k.global_id(0), 1 * tree.Name(Type(Scalar.I32), "here"))
    return k.build()


def test_an_expression_is_interpreted_by_what_it_says() -> None:
    arrays = [np.array(row, np.float32) for row in ((1, 5, 9, 2), (3, 4, 8, 2), (2, 6, 7, 1))]
    found = np.zeros(4, np.float32)
    interpret(middle(Scalar.F32), (1, 1, 1), [*arrays, found])
    np.testing.assert_array_equal(found, [2, 5, 8, 2])


def test_an_expression_of_f16_takes_arithmetic_unless_it_says_otherwise() -> None:
    assert needs_of(middle(Scalar.F16)).f16_arithmetic == "Middle"
    assert needs_of(middle(Scalar.F32)).f16_arithmetic == ""


def test_a_statement_is_interpreted_by_what_it_says() -> None:
    found = np.zeros(8, np.int32)
    interpret(meeting((4, 1, 1), lambda k: k.emit(Meet("here"))), (2, 1, 1), [found])
    assert found.tolist() == [4] * 8


def test_a_statement_is_checked_by_what_it_says() -> None:
    def some(k: Builder) -> None:
        with k.if_(k.local_id(0) < 2):
            k.emit(Meet("here"))

    def twice(k: Builder) -> None:
        k.emit(Meet("here"))
        k.emit(Meet("here"))

    with pytest.raises(KernelError, match="a meeting under a condition that may differ"):
        meeting((4, 1, 1), some)
    with pytest.raises(KernelError, match="here is defined twice"):
        meeting((4, 1, 1), twice)
    with pytest.raises(KernelError, match="nobody to meet"):
        meeting((1, 1, 1), lambda k: k.emit(Meet("here")))


@pytest.mark.parametrize("write", [
    OpenCLDialect().source, WgslDialect().source, lambda kernel: module_of(kernel, Target()),
], ids=["opencl-c", "wgsl", "spirv"])  # fmt: skip
def test_a_printer_that_lacks_it_says_so(write: Callable[[Kernel], object]) -> None:
    with pytest.raises(KernelError, match=r"kernel middle: .*Middle"):
        write(middle(Scalar.F32))
    with pytest.raises(KernelError, match=r"kernel meeting: .*Meet"):
        write(meeting((4, 1, 1), lambda k: k.emit(Meet("here"))))


def test_every_node_of_the_language_has_its_method() -> None:
    modules = (expressions, tree, matrix, subgroup)
    found = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    nodes = {kind for kind in found if issubclass(kind, (Expr, Stmt))} - {Expr, Stmt}
    assert len(nodes) > 25
    # Blocks, and what leaves them or sets a name, are the printer's own; so are matrices.
    own = {If, For, tree.Let, tree.Var, tree.Assign, tree.Break, tree.Return}
    for kind in nodes - own - set(matrix.MATRIX_STATEMENTS):
        for printer in (_OpenCLPrinter, _WgslPrinter):
            assert callable(getattr(printer, method_name(kind), None)), (printer, kind)
    for kind in nodes:
        assert callable(getattr(Statements, Statements.prefix + method_name(kind), None)), kind


# What a dialect of another backend lacks is said by name.


def _kernel() -> Kernel:
    k = Builder("twice", (64, 1, 1))
    x = k.buffer("x", Scalar.F32, 1, "read")
    y = k.buffer("y", Scalar.F32, 1, "write")
    i = k.global_id(0)
    k.store(y, i, k.load(x, i) * 2.0)
    return k.build()


class Half(CPrinter):
    """A dialect that nobody has finished."""

    def open_kernel(self) -> list[str]:
        return ["void twice(const float* x, float* y) {"]

    def prelude(self) -> list[str]:
        return []

    def builtin(self, expr: Any) -> Any:
        raise NotImplementedError  # as the base does

    def store(self, stmt: Any, index: Any, value: Any) -> str:
        return "y[0] = x[0];"


@pytest.mark.parametrize(("dialect", "lacks"), [(CPrinter, "open_kernel"), (Half, "builtin")])
def test_a_method_that_a_dialect_lacks(dialect: type[CPrinter], lacks: str) -> None:
    with pytest.raises(
        KernelError, match=f"kernel twice: {dialect.__name__} has no method {lacks}"
    ):
        dialect(_kernel(), Features()).source()
