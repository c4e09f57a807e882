"""The rules a kernel keeps beyond the types of its expressions.

Values fit what they are stored in and assigned to; names are defined before use and inside their
block; barriers, matrix statements and shuffles stand where every invocation of a workgroup gets to
them (outside conditions that may differ between invocations, and after no `Return`); a `Break` is
inside a loop, whose bounds do not change while it runs; sizes are in the range that every API
guarantees.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import attrs

from tflgpu.errors import KernelError
from tflgpu.language.budget import MAX_NESTING, nesting
from tflgpu.language.matrix import (
    MATRIX_STATEMENTS,
    MatrixLoad,
    MatrixRole,
    MatrixStmt,
    MatrixStore,
    declared,
    problem_of,
    used,
)
from tflgpu.language.tree import (
    Assign,
    Break,
    Builtin,
    For,
    If,
    Kernel,
    KernelBuffer,
    Let,
    Load,
    Name,
    Return,
    SharedArray,
    SharedLoad,
    Stmt,
    Var,
)
from tflgpu.language.types import BOOL, I32, SUBGROUP, Scalar
from tflgpu.language.walk import postorder, statements, walk
from tflgpu.values import define

MAX_WORKGROUP = 1024
#: What a kernel may do with a buffer.
ACCESS = ("read", "write", "read_write")


@define
class _Scope:
    """What is known at one point of the kernel."""

    kernel: Kernel
    names: dict[str, bool]  # name -> is a variable
    uniform: dict[str, bool]  # name -> same value for the whole workgroup
    memory: frozenset[str] = frozenset()  # names of buffers and shared arrays
    matrices: dict[str, MatrixRole] = attrs.field(factory=dict)
    in_loop: bool = False
    divergent: bool = False
    may_return: bool = False
    may_break: bool = False

    @property
    def partial(self) -> bool:
        """Whether some invocations may not get here while others do. (Those that returned do
        not count: what is left of the workgroup still agrees.)"""
        return self.divergent or self.may_break

    def fail(self, message: str) -> None:
        raise KernelError(f"kernel {self.kernel.name}: {message}")


#: Kernels in which nothing was found. They never change.
_sound: weakref.WeakSet[Kernel] = weakref.WeakSet()


def check(kernel: Kernel) -> None:
    """Check a kernel; one that was found to be right is not looked at again.

    Raises:
        KernelError: a rule is broken; the message says which and where.
    """
    if kernel not in _sound:
        _check(kernel)
        _sound.add(kernel)


def _check(kernel: Kernel) -> None:
    scope = _Scope(kernel, {}, {})
    problem = workgroup_problem(kernel.workgroup)
    if problem:
        scope.fail(problem)
    if nesting(kernel) > MAX_NESTING:
        scope.fail(
            f"blocks {nesting(kernel)} deep in each other; at most {MAX_NESTING} are allowed"
        )
    if not any(b.access != "read" for b in kernel.buffers):
        scope.fail("no buffer is written")
    for problem in (*map(memory_problem, kernel.buffers), *map(memory_problem, kernel.shared)):
        if problem:
            scope.fail(problem)
    memory = [*(b.name for b in kernel.buffers), *(a.name for a in kernel.shared)]
    for name in memory:
        if memory.count(name) > 1:
            scope.fail(f"{name} is defined twice")
    scope.memory = frozenset(memory)
    _block(kernel.body, scope)


def workgroup_problem(workgroup: Sequence[int]) -> str | None:
    """What is wrong with a workgroup's sizes."""
    if len(workgroup) != 3 or any(n < 1 for n in workgroup):
        return f"workgroup {workgroup} needs three sizes of at least 1"
    x, y, z = workgroup
    if x * y * z > MAX_WORKGROUP:
        return f"workgroup {workgroup} has more than {MAX_WORKGROUP} invocations"
    return None


def memory_problem(memory: KernelBuffer | SharedArray) -> str | None:
    """What is wrong with a buffer or a shared array by itself."""
    if isinstance(memory, SharedArray):
        if memory.count < 1:
            return f"shared array {memory.name} is empty"
        if memory.type.scalar.is_storage_only:
            return f"shared array {memory.name} of {memory.type}: use i32"
        return None
    if memory.width not in (1, 2, 4):
        return f"buffer {memory.name} has {memory.width} lanes; 1, 2 or 4 are allowed"
    if memory.access not in ACCESS:
        known = ", ".join(map(repr, ACCESS))
        return f"buffer {memory.name}: unknown access {memory.access!r}; there are {known}"
    if memory.scalar is Scalar.BOOL:
        return f"buffer {memory.name} of booleans: no API has them, use i8 or i32"
    return None


def _block(body: tuple[Stmt, ...], scope: _Scope) -> None:
    outer = set(scope.names)
    for stmt in body:
        _statement(stmt, scope)
    for name in set(scope.names) - outer:
        del scope.names[name]
        scope.matrices.pop(name, None)


def _statement(stmt: Stmt, scope: _Scope) -> None:
    uniform = _uses(stmt, scope)
    if isinstance(stmt, (Let, Var)):
        _is_new(stmt.ident, scope)
        scope.names[stmt.ident] = isinstance(stmt, Var)
        scope.uniform[stmt.ident] = uniform and not scope.partial
    elif isinstance(stmt, Assign):
        if not scope.names.get(stmt.target.ident, False):
            scope.fail(f"{stmt.target.ident} is assigned but is not a variable here")
        if stmt.value.type != stmt.target.type:
            scope.fail(f"{stmt.value.type} assigned to {stmt.target.ident}: {stmt.target.type}")
        if scope.partial or not uniform:  # once it differs, it counts as different for good
            scope.uniform[stmt.target.ident] = False
    elif isinstance(stmt, If):
        _if(stmt, scope, uniform)
    elif isinstance(stmt, For):
        _for(stmt, scope, uniform)
    elif isinstance(stmt, Break):
        if not scope.in_loop:
            scope.fail("break outside a loop")
        scope.may_break = scope.may_break or scope.divergent
    elif isinstance(stmt, Return):
        scope.may_return = scope.may_return or scope.divergent
    elif isinstance(stmt, MATRIX_STATEMENTS):
        _matrix(stmt, scope)
    else:
        _plain(stmt, scope)


def _plain(stmt: Stmt, scope: _Scope) -> None:
    """A statement that says itself what is asked of it."""
    problem = stmt.problem(scope.kernel)
    if problem:
        scope.fail(problem)
    if stmt.collective:
        _together(stmt.collective, scope)
    for ident in stmt.declares:
        _is_new(ident, scope)
        scope.names[ident] = False
        scope.uniform[ident] = False


def _together(what: str, scope: _Scope) -> None:
    if scope.divergent:
        scope.fail(f"a {what} under a condition that may differ within a workgroup")
    if scope.may_return or scope.may_break:
        scope.fail(f"a {what} that invocations which returned or broke out never reach")


def _matrix(stmt: MatrixStmt, scope: _Scope) -> None:
    if scope.kernel.workgroup[0] % SUBGROUP:
        scope.fail(
            f"matrices in a workgroup {scope.kernel.workgroup}: its first size must be a "
            f"multiple of {SUBGROUP}"
        )
    _together("matrix statement", scope)
    for matrix in used(stmt):
        if scope.matrices.get(matrix.ident) is not matrix.role:
            scope.fail(f"matrix {matrix.ident} is used outside the block that defines it")
    problem = problem_of(stmt)
    if problem:
        scope.fail(problem)
    if isinstance(stmt, (MatrixLoad, MatrixStore)):
        if stmt.array not in scope.kernel.shared:
            scope.fail(f"a matrix in shared array {stmt.array.name}, which is not one of it")
        if stmt.index.type != I32:
            scope.fail(f"a matrix's index is i32, not {stmt.index.type}")
    made = declared(stmt)
    if made is not None:
        _is_new(made.ident, scope)
        scope.names[made.ident] = False
        scope.matrices[made.ident] = made.role


def _if(stmt: If, scope: _Scope, uniform: bool) -> None:
    if stmt.cond.type != BOOL:
        scope.fail(f"an if on {stmt.cond.type}")
    before, returned = scope.divergent, scope.may_return
    scope.divergent = before or not uniform
    _block(stmt.then, scope)
    # Who returned from the one block never was in the other.
    returned, scope.may_return = scope.may_return, returned
    _block(stmt.orelse, scope)
    scope.divergent, scope.may_return = before, returned or scope.may_return


def _for(stmt: For, scope: _Scope, bounds_uniform: bool) -> None:
    if stmt.start.type != I32 or stmt.stop.type != I32 or stmt.step < 1:
        scope.fail(f"loop {stmt.index.ident}: bounds are i32 and the step is at least 1")
    _is_new(stmt.index.ident, scope)
    _bound_stays(stmt, scope)
    before = (scope.in_loop, scope.divergent, scope.may_break)
    scope.names[stmt.index.ident] = False
    scope.uniform[stmt.index.ident] = bounds_uniform
    scope.in_loop, scope.may_break = True, False
    scope.divergent = scope.divergent or not bounds_uniform
    # A variable made non-uniform late in the body is so at the body's start next time round,
    # and a break seen late precedes next round's barriers.
    names = dict(scope.names)
    known = _known(scope, names)
    _block(stmt.body, scope)
    scope.names = names
    # Only where something changed: always, and loops inside each other take 2^depth passes.
    if _known(scope, names) != known:
        _block(stmt.body, scope)
    del scope.names[stmt.index.ident]
    scope.in_loop, scope.divergent, scope.may_break = before


def _known(scope: _Scope, names: Iterable[str]) -> tuple[object, ...]:
    """What a block may change of a scope, as far as the statements in it look at it."""
    return scope.may_return, scope.may_break, [scope.uniform.get(name) for name in names]


def _is_new(ident: str, scope: _Scope) -> None:
    if ident in scope.names or ident in scope.memory:
        scope.fail(f"{ident} is defined twice")


def _bound_stays(stmt: For, scope: _Scope) -> None:
    assigned = {s.target.ident for s in statements(stmt.body) if isinstance(s, Assign)}
    for part in postorder([stmt.stop]):
        stays = isinstance(part, (Name, Builtin)) or (
            isinstance(part, Load) and part.buffer.access == "read"
        )
        if (part.reads and not stays) or (isinstance(part, Name) and part.ident in assigned):
            scope.fail(f"the bound of loop {stmt.index.ident} may change while it runs: let it")


def _uses(stmt: Stmt, scope: _Scope) -> bool:
    """Check what a statement reads. Whether all invocations of a workgroup surely get the same
    values of it."""
    uniform = True
    for expr in walk(stmt).order:
        if not expr.reads:
            continue
        if isinstance(expr, Name):
            if expr.ident not in scope.names:
                scope.fail(f"{expr.ident} is used outside the block that defines it")
            if expr.ident in scope.matrices:
                scope.fail(f"{expr.ident} is a matrix, not a value")
            uniform = uniform and scope.uniform.get(expr.ident, False)
        elif isinstance(expr, Builtin):
            uniform = uniform and expr.kind == "group_id"
        elif isinstance(expr, Load):
            uniform = uniform and expr.buffer.access == "read"
            if expr.buffer not in scope.kernel.buffers or expr.buffer.access == "write":
                scope.fail(f"load from {expr.buffer.name}, which is not a readable buffer of it")
        elif isinstance(expr, SharedLoad):
            uniform = False
            if expr.array not in scope.kernel.shared:
                scope.fail(f"load from shared array {expr.array.name}, which is not one of it")
        else:
            uniform = False
    return uniform
