"""A class of nodes that the language does not know: what it says of itself is all that it takes."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import pytest
from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language import expressions, matrix, subgroup, tree
from tflgpu.language.builder import Builder
from tflgpu.language.expressions import Expr
from tflgpu.language.interpreter import interpret
from tflgpu.language.invocations import Invocations
from tflgpu.language.kernel import Kernel
from tflgpu.language.needs import needs_of
from tflgpu.language.node_writer import method_name
from tflgpu.language.tree import For, If, Stmt
from tflgpu.language.types import Scalar, Type
from tflgpu_opencl.dialect import OpenCLDialect, _OpenCLPrinter
from tflgpu_vulkan.spirv.module import module_of
from tflgpu_vulkan.spirv.statements import Statements
from tflgpu_vulkan.spirv.target import Target
from tflgpu_wgpu.dialect import WgslDialect, _WgslPrinter


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
