"""Statements: structured control flow, in which every branch and loop names where it ends."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.language.subgroup import SubgroupShuffleXor
from tflgpu.language.tree import (
    Assign,
    Barrier,
    Break,
    For,
    If,
    Kernel,
    Let,
    Return,
    Stmt,
    Var,
)
from tflgpu.language.types import BOOL, I32, Scalar
from tflgpu.language.walk import walk

from tflgpu_vulkan.spirv.asm import Id
from tflgpu_vulkan.spirv.expressions import Expressions
from tflgpu_vulkan.spirv.grammar import (
    SCOPE_SUBGROUP,
    SCOPE_WORKGROUP,
    WORKGROUP_ACQUIRE_RELEASE,
    WORKGROUP_AVAILABLE_VISIBLE,
    Control,
    MemoryModel,
    Op,
)
from tflgpu_vulkan.spirv.matrix import Matrices
from tflgpu_vulkan.spirv.target import Target


class Statements(Expressions, Matrices):
    """Writes blocks. What follows a `Break` or `Return` in its block never runs, and is left
    out, because a SPIR-V block ends with its terminator."""

    def __init__(self, kernel: Kernel, target: Target, guard: int) -> None:
        super().__init__(kernel, target, guard)
        self._loop_ends: list[Id] = []

    def block(self, statements: Sequence[Stmt]) -> None:
        """Write a block."""
        for stmt in statements:
            if not self.is_open:
                return
            self.method_for(stmt)(stmt, *self.evaluate(walk(stmt)))

    def _let(self, stmt: Let, value: Id) -> None:
        self.names[stmt.ident] = value

    def _var(self, stmt: Var, value: Id) -> None:
        found = self.variable(self.value_type(stmt.value.type), stmt.ident)
        self.names[stmt.ident] = found
        self.do(Op.Store, found, value)

    def _assign(self, stmt: Assign, before: Id, value: Id) -> None:
        self.do(Op.Store, self.names[stmt.target.ident], value)

    def _break(self, stmt: Break) -> None:
        self.do(Op.Branch, self._loop_ends[-1])

    def _return(self, stmt: Return) -> None:
        self.do(Op.Return)

    def _barrier(self, stmt: Barrier) -> None:
        scope = self.u32(SCOPE_WORKGROUP)
        has_vulkans = self.memory_model is MemoryModel.Vulkan
        order = WORKGROUP_AVAILABLE_VISIBLE if has_vulkans else WORKGROUP_ACQUIRE_RELEASE
        self.do(Op.ControlBarrier, scope, scope, self.u32(order))

    def _subgroup_shuffle_xor(self, stmt: SubgroupShuffleXor, value: Id) -> None:
        self.names[stmt.ident] = self._shuffled(stmt, value)

    def _shuffled(self, stmt: SubgroupShuffleXor, value: Id) -> Id:
        """OpGroupNonUniformShuffleXor. SPIR-V keeps an invocation group together where all of it
        gets to a construct together; that is what the kernel language asks of a shuffle's place."""
        kind = word = stmt.type
        if kind.scalar is Scalar.F16:
            # A device that shuffles 16-bit values says so by a feature of its own.
            word = kind.with_scalar(Scalar.F32)
            value = self.convert(kind, word, value)
        scope, mask = self.u32(SCOPE_SUBGROUP), self.u32(stmt.mask)
        found = self.emit(Op.GroupNonUniformShuffleXor, word, scope, value, mask)
        if kind == word or not self.target.f16_arithmetic:
            return found  # an f16 that can only be moved about is held as an f32
        return self.convert(word, kind, found)

    def _if(self, stmt: If, cond: Id) -> None:
        then, end = self.new_id(), self.new_id()
        orelse = self.new_id() if stmt.orelse else end
        self.do(Op.SelectionMerge, end, Control.NoHint)
        self.do(Op.BranchConditional, cond, then, orelse)
        ends = [self._branch(then, stmt.then, end)]
        if stmt.orelse:
            ends.append(self._branch(orelse, stmt.orelse, end))
        self.label(end)
        if len(ends) == 2 and not any(ends):
            self.do(Op.Unreachable)

    def _branch(self, label: Id, statements: Sequence[Stmt], end: Id) -> bool:
        """Write one branch; whether it gets to the end."""
        self.label(label)
        self.block(statements)
        falls_through = self.is_open
        if falls_through:
            self.do(Op.Branch, end)
        return falls_through

    def _for(self, stmt: For, start: Id, stop: Id) -> None:
        header, test, inside, again, end = (self.new_id() for _ in range(5))
        index = self.variable(self.value_type(I32), stmt.index.ident)
        self.do(Op.Store, index, start)
        self.do(Op.Branch, header)
        self.label(header)
        hints = {None: Control.NoHint, True: Control.Unroll, False: Control.DontUnroll}
        self.do(Op.LoopMerge, end, again, hints[stmt.unroll])
        self.do(Op.Branch, test)
        self.label(test)
        current = self.emit(Op.Load, I32, index)
        self.do(Op.BranchConditional, self.emit(Op.SLessThan, BOOL, current, stop), inside, end)
        self.label(inside)
        self.names[stmt.index.ident] = current
        self._loop_ends.append(end)
        self.block(stmt.body)
        self._loop_ends.pop()
        if self.is_open:
            self.do(Op.Branch, again)
        self.label(again)
        following = self.emit(Op.IAdd, I32, current, self.const(I32, stmt.step))
        self.do(Op.Store, index, following)
        self.do(Op.Branch, header)
        self.label(end)
