"""The kernel language's definition: a NumPy interpreter of the tree.

The invocations of a batch of workgroups run in lockstep, each statement for exactly those that
get to it. Besides computing, it refuses what would be undefined on a device: reads and writes
out of bounds, two invocations writing one element, memory read or overwritten with no barrier
since another invocation touched it, and a barrier that a part of a workgroup reaches. A kernel
that passes here has no such defect for the inputs it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.evaluate import constant
from tflgpu.language.frame import Frame, Index, spread
from tflgpu.language.interpret_matrix import run_matrix
from tflgpu.language.invocations import GROUP, WHO, Invocations
from tflgpu.language.matrix import MATRIX_STATEMENTS
from tflgpu.language.memory import BufferMemory, SharedMemory
from tflgpu.language.tree import (
    Assign,
    Break,
    Builtin,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Let,
    Load,
    Name,
    Return,
    SharedLoad,
    Stmt,
    Var,
)
from tflgpu.language.walk import Walk, walk

_BATCH = 1 << 14  # invocations run together: few enough that values stay in the cache
_FIRST = np.zeros(1, np.int64)  # the only place along an axis of one

#: What became of each invocation of a frame, or None while all go on.
Fate = npt.NDArray[np.int8] | None
_BROKE, _RETURNED = 1, 2


def interpret(
    kernel: Kernel,
    groups: tuple[int, int, int],
    arrays: Sequence[Array],
    *,
    races: bool = True,
) -> None:
    """Run ``groups`` workgroups of a kernel on ``arrays``, one per buffer, written in place.

    Arrays are one-dimensional, of the buffer's scalar type; a buffer of ``width`` lanes reads
    them ``width`` at a time. ``races=False`` leaves out the race checks.

    Raises:
        KernelError: the arrays do not fit the buffers, or the kernel does something undefined.
    """
    if len(arrays) != len(kernel.buffers):
        raise KernelError(
            f"kernel {kernel.name}: {len(arrays)} arrays for {len(kernel.buffers)} buffers"
        )
    try:
        memory = {
            buffer.name: BufferMemory(buffer, array, races)
            for buffer, array in zip(kernel.buffers, arrays, strict=True)
        }
        with np.errstate(all="ignore"):
            _Interpreter(kernel, groups, memory, races).run()
    except KernelError as error:
        raise KernelError(f"kernel {kernel.name}: {error}") from None


#: One step of a statement's expressions: the operation, its node, and which results it takes.
_Step = tuple[Callable[..., Array], Expr, tuple[int, ...]]


class _Interpreter:
    def __init__(
        self,
        kernel: Kernel,
        groups: tuple[int, int, int],
        memory: dict[str, BufferMemory],
        races: bool,
    ) -> None:
        self.kernel = kernel
        self.groups = groups
        self.memory = memory
        self.races = races
        self.shared: dict[str, SharedMemory] = {}
        self.batch_groups = 0
        self._steps: dict[int, tuple[list[_Step], Sequence[int]]] = {}
        self._constants: dict[int, Array] = {}

    def run(self) -> None:
        per_group = int(np.prod(self.kernel.workgroup))
        total = int(np.prod(self.groups))
        step = max(1, _BATCH // per_group)
        for first in range(0, total, step):
            ids = np.arange(first, min(first + step, total))
            self.batch_groups = len(ids)
            self.shared = {
                array.name: SharedMemory(array, len(ids), self.races)
                for array in self.kernel.shared
            }
            self._block(self.kernel.body, self._batch(ids, per_group))

    def _batch(self, ids: Index, per_group: int) -> Frame:
        """The frame of all invocations of some workgroups."""
        frame = Frame(len(ids) * per_group)
        local = np.tile(np.arange(per_group), len(ids))
        group = np.repeat(ids, per_group)
        frame.declare(WHO, group * per_group + local)
        frame.declare(GROUP, group - ids[0])
        inner = before = 1
        for axis, (size, count) in enumerate(zip(self.kernel.workgroup, self.groups, strict=True)):
            # Most kernels have one axis; along the others there is one place.
            in_group = local // inner % size if size > 1 else _FIRST
            of_groups = group // before % count if count > 1 else _FIRST
            inner, before = inner * size, before * count
            values = {
                "local_id": in_group,
                "group_id": of_groups,
                "global_id": of_groups * size + in_group,
            }
            for kind, value in values.items():
                uniform = value.size == 1 or value.min() == value.max()
                kept = value[:1] if uniform else value
                frame.declare(f"#{kind}{axis}", kept.astype(np.int32))
        return frame

    # Statements

    def _block(self, body: tuple[Stmt, ...], frame: Frame) -> Fate:
        """Run a block for all invocations of a frame."""
        fate: Fate = None
        inner = frame  # the invocations that are still running
        place: Index | None = None  # where they are in `frame`
        parts: list[Frame] = []
        for stmt in body:
            left = self._statement(stmt, inner)
            if left is None:
                continue
            if place is None:
                fate, place = left, np.arange(frame.count)
            else:
                assert fate is not None
                fate[place] = left
            goes_on = np.nonzero(left == 0)[0]
            if not len(goes_on):
                break
            place = place[goes_on]
            inner = inner.part(goes_on)
            parts.append(inner)
        for part in reversed(parts):
            part.leave()
        return fate

    def _statement(self, stmt: Stmt, frame: Frame) -> Fate:
        if isinstance(stmt, Break):
            return np.full(frame.count, _BROKE, np.int8)
        if isinstance(stmt, Return):
            return np.full(frame.count, _RETURNED, np.int8)
        values = self._values(stmt, frame)
        if isinstance(stmt, If):
            return self._if(stmt, frame, values[0])
        if isinstance(stmt, For):
            return self._for(stmt, frame, *values)
        if isinstance(stmt, (Let, Var)):
            frame.declare(stmt.ident, values[0])
        elif isinstance(stmt, Assign):
            frame.assign(stmt.target.ident, values[1])
        elif isinstance(stmt, MATRIX_STATEMENTS):
            who, group = frame.full(WHO), frame.full(GROUP)
            run_matrix(stmt, frame, values, self.shared, who, group)
        else:
            here = Invocations(
                self.kernel.workgroup, frame, self.memory, self.shared, self.batch_groups
            )
            stmt.run(here, *values)
        return None

    def _if(self, stmt: If, frame: Frame, cond: Array) -> Fate:
        if cond.all():
            return self._block(stmt.then, frame)
        if not cond.any():
            return self._block(stmt.orelse, frame)
        fate: Fate = None
        for body, where in ((stmt.then, cond), (stmt.orelse, ~cond)):
            if body:
                fate = _merge(fate, frame, *self._part(body, frame, np.nonzero(where)[0]))
        return fate

    def _part(self, body: tuple[Stmt, ...], frame: Frame, where: Index) -> tuple[Index, Fate]:
        """Run a block for some of a frame's invocations."""
        inner = frame.part(where)
        fate = self._block(body, inner)
        inner.leave()
        return where, fate

    def _for(self, stmt: For, frame: Frame, start: Array, stop: Array) -> Fate:
        if len(start) > 1 and start.min() == start.max():
            start = start[:1]
        if len(stop) > 1 and stop.min() == stop.max():
            stop = stop[:1]
        fate: Fate = None  # of the frame's invocations; those that broke out go on after it
        place = np.arange(frame.count)
        index, inner = start, frame
        parts: list[Frame] = []
        while True:
            again = index < stop
            left: Fate = None
            if not again.all():
                left = np.where(spread(again, inner.count), 0, _BROKE).astype(np.int8)
            else:
                inner.declare(stmt.index.ident, index)
                left = self._block(stmt.body, inner)
                index = index + np.int32(stmt.step)
            if left is None:
                continue
            fate = _merge(fate, frame, place, left)
            goes_on = np.nonzero(left == 0)[0]
            if not len(goes_on):
                break
            place, inner = place[goes_on], inner.part(goes_on)
            parts.append(inner)
            index, stop = (v if len(v) == 1 else v[goes_on] for v in (index, stop))
        for part in reversed(parts):
            part.leave()
        if fate is None or not (fate == _RETURNED).any():
            return None
        return np.where(fate == _RETURNED, fate, 0).astype(np.int8)

    # Expressions

    def _values(self, stmt: Stmt, frame: Frame) -> list[Array]:
        """A statement's operands: [n], [n, lanes], or 1 for n where all have the same."""
        found = self._steps.get(id(stmt))
        if found is None:
            found = self._steps[id(stmt)] = self._compile(walk(stmt))
        steps, roots = found
        values: list[Array] = []
        for operation, expr, args in steps:
            values.append(operation(self, frame, expr, *[values[i] for i in args]))
        return [values[i] for i in roots]

    def _compile(self, way: Walk) -> tuple[list[_Step], Sequence[int]]:
        steps: list[_Step] = []
        for expr, parts in zip(way.order, way.parts, strict=True):
            steps.append((self._READING.get(type(expr), _evaluate), expr, parts))
        return steps, way.roots

    def _const(self, frame: Frame, expr: Const) -> Array:
        found = self._constants.get(id(expr))
        if found is None:
            found = self._constants[id(expr)] = constant(expr.type, expr.value)
        return found

    def _name(self, frame: Frame, expr: Name) -> Array:
        return frame.get(expr.ident)

    def _builtin(self, frame: Frame, expr: Builtin) -> Array:
        return frame.get(f"#{expr.kind}{expr.axis}")

    def _load(self, frame: Frame, expr: Load, index: Array) -> Array:
        memory = self.memory[expr.buffer.name]
        # A buffer of one lane an element has the same elements either way.
        found = memory.load(index, expr.scalar, frame.get(WHO))
        return found.astype(expr.type.scalar.numpy, copy=False)

    def _shared_load(self, frame: Frame, expr: SharedLoad, index: Array) -> Array:
        array = self.shared[expr.array.name]
        return array.load(spread(index, frame.count), frame.full(GROUP), frame.full(WHO))

    #: What is not for the expressions themselves to say: it takes more than their operands. These
    #: are functions: methods bound to an interpreter would hold it as it holds them, and the
    #: buffers of a kernel that has run would stay until Python's collector comes.
    _READING: ClassVar[dict[type[Expr], Callable[..., Array]]] = {
        Const: _const,  # which is the same every time
        Name: _name,
        Builtin: _builtin,
        Load: _load,
        SharedLoad: _shared_load,
    }


def _evaluate(_: _Interpreter, frame: Frame, expr: Expr, *operands: Array) -> Array:
    return expr.evaluate(*operands)


def _merge(fate: Fate, frame: Frame, where: Index, part: Fate) -> Fate:
    """The fate of a frame, given that of some of its invocations too."""
    if part is None:
        return fate
    if fate is None:
        fate = np.zeros(frame.count, np.int8)
    fate[where] = part
    return fate
