"""Statements: structured control flow, in which every branch and loop names where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.language.matrix import MATRIX_STATEMENTS
from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Break,
    For,
    If,
    Let,
    Return,
    SharedStore,
    Stmt,
    Store,
    Var,
)
from tflgpu.language.types import BOOL, I32
from tflgpu.language.walk import walk

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.body import Body
from tflgpu_vulkan.spirv.expressions import Expressions
from tflgpu_vulkan.spirv.grammar import (
    SCOPE_WORKGROUP,
    WORKGROUP_ACQUIRE_RELEASE,
    WORKGROUP_AVAILABLE_VISIBLE,
    LoopControl,
    Op,
    SelectionControl,
)
from tflgpu_vulkan.spirv.matrix import Matrices
from tflgpu_vulkan.spirv.memory import Memory
from tflgpu_vulkan.spirv.subgroup import shuffle


class Statements:
    """Writes blocks. What follows a `Break` or `Return` in its block never runs, and is left
    out, because a SPIR-V block ends with its terminator."""

    def __init__(self, body: Body, memory: Memory, expressions: Expressions) -> None:
        self._body = body
        self._memory = memory
        self._expressions = expressions
        self._matrices = Matrices(body)
        self._loop_ends: list[Id] = []

    def block(self, statements: Sequence[Stmt]) -> None:
        """Write a block."""
        for stmt in statements:
            if not self._body.is_open:
                return
            self._statement(stmt)

    def _statement(self, stmt: Stmt) -> None:
        body, names = self._body, self._expressions.names
        values = self._expressions.evaluate(walk(stmt))
        if isinstance(stmt, Let):
            names[stmt.ident] = values[0]
        elif isinstance(stmt, Var):
            names[stmt.ident] = body.variable(stmt.value.type, stmt.ident)
            body.do(Op.Store, names[stmt.ident], values[0])
        elif isinstance(stmt, Assign):
            body.do(Op.Store, names[stmt.target.ident], values[1])
        elif isinstance(stmt, Store):
            self._memory.store(stmt, *values)
        elif isinstance(stmt, SharedStore):
            self._memory.store_shared(stmt, *values)
        elif isinstance(stmt, If):
            self._if(stmt, values[0])
        elif isinstance(stmt, For):
            self._for(stmt, *values)
        elif isinstance(stmt, Break):
            body.do(Op.Branch, self._loop_ends[-1])
        elif isinstance(stmt, Return):
            body.do(Op.Return)
        elif isinstance(stmt, Barrier):
            scope = body.declarations.u32(SCOPE_WORKGROUP)
            vulkan = bool(body.declarations.shared_access)
            order = WORKGROUP_AVAILABLE_VISIBLE if vulkan else WORKGROUP_ACQUIRE_RELEASE
            semantics = body.declarations.u32(order)
            body.do(Op.ControlBarrier, scope, scope, semantics)
        elif isinstance(stmt, MATRIX_STATEMENTS):
            self._matrices.write(stmt, *values)
        elif isinstance(stmt, SubgroupShuffleXor):
            names[stmt.ident] = shuffle(body, stmt, values[0])
        else:
            raise body.declarations.fail(f"unknown statement {type(stmt).__name__}")

    def _if(self, stmt: If, cond: Id) -> None:
        body = self._body
        then, end = body.new_id(), body.new_id()
        orelse = body.new_id() if stmt.orelse else end
        body.do(Op.SelectionMerge, end, SelectionControl.NoHint)
        body.do(Op.BranchConditional, cond, then, orelse)
        ends = [self._branch(then, stmt.then, end)]
        if stmt.orelse:
            ends.append(self._branch(orelse, stmt.orelse, end))
        body.label(end)
        if len(ends) == 2 and not any(ends):
            body.do(Op.Unreachable)

    def _branch(self, label: Id, statements: Sequence[Stmt], end: Id) -> bool:
        """Write one branch; whether it gets to the end."""
        self._body.label(label)
        self.block(statements)
        falls_through = self._body.is_open
        if falls_through:
            self._body.do(Op.Branch, end)
        return falls_through

    def _for(self, stmt: For, start: Id, stop: Id) -> None:
        body = self._body
        header, test, inside, again, end = (body.new_id() for _ in range(5))
        index = body.variable(I32, stmt.index.ident)
        body.do(Op.Store, index, start)
        body.do(Op.Branch, header)
        body.label(header)
        hint = LoopControl.Unroll if stmt.unroll else LoopControl.NoHint
        body.do(Op.LoopMerge, end, again, hint)
        body.do(Op.Branch, test)
        body.label(test)
        current = body.emit(Op.Load, I32, index)
        body.do(Op.BranchConditional, body.emit(Op.SLessThan, BOOL, current, stop), inside, end)
        body.label(inside)
        self._expressions.names[stmt.index.ident] = current
        self._loop_ends.append(end)
        self.block(stmt.body)
        self._loop_ends.pop()
        if body.is_open:
            body.do(Op.Branch, again)
        body.label(again)
        following = body.emit(Op.IAdd, I32, current, body.const(I32, stmt.step))
        body.do(Op.Store, index, following)
        body.do(Op.Branch, header)
        body.label(end)
