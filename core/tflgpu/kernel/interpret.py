"""The kernel language's definition: a NumPy interpreter of the tree.

Every invocation of a batch of workgroups runs in lockstep: a value is an array over
invocations, [n] or [n, lanes], and control flow is a mask. Besides computing, it refuses what
would be undefined on a device: reads and writes out of bounds, two invocations writing one
element, and shared memory read or overwritten without a barrier since another invocation
touched it. A kernel that passes here has no such defect for the inputs it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.errors import KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.kernel.evaluate import binary, call, convert
from tflgpu.kernel.tree import (
    Assign,
    Barrier,
    Binary,
    Break,
    Buffer,
    Builtin,
    Call,
    Cast,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Lane,
    Let,
    Load,
    Name,
    Return,
    Select,
    Shared,
    SharedLoad,
    SharedStore,
    Splat,
    Stmt,
    Store,
    Unary,
    Var,
    Vec,
)

Mask = npt.NDArray[np.bool_]
_BATCH = 1 << 16  # invocations run together; bounds the memory that a big grid takes
_NOBODY, _SEVERAL = -1, -2


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
    memory: dict[str, Array] = {}
    for buffer, array in zip(kernel.buffers, arrays, strict=True):
        if array.ndim != 1 or array.dtype != buffer.scalar.numpy or array.size % buffer.width:
            raise KernelError(
                f"kernel {kernel.name}: buffer {buffer.name} wants flat {buffer.scalar.value} in "
                f"multiples of {buffer.width}, got {array.dtype}{list(array.shape)}"
            )
        memory[buffer.name] = array
    written = (
        {b.name: np.zeros(a.size, np.bool_) for b, a in zip(kernel.buffers, arrays, strict=True)}
        if races
        else None
    )
    per_group = int(np.prod(kernel.workgroup))
    total = int(np.prod(groups))
    step = max(1, _BATCH // per_group)
    for first in range(0, total, step):
        ids = np.arange(first, min(first + step, total))
        with np.errstate(all="ignore"):
            _Batch(kernel, groups, ids, memory, written).run()


@attrs.define
class _SharedState:
    """A shared array's contents per workgroup, and who touched an element since a barrier."""

    data: Array
    writer: npt.NDArray[np.int64]
    reader: npt.NDArray[np.int64]


class _Batch:
    """Some workgroups of one kernel, run in lockstep."""

    def __init__(
        self,
        kernel: Kernel,
        groups: tuple[int, int, int],
        ids: npt.NDArray[np.int64],
        memory: dict[str, Array],
        written: dict[str, Mask] | None,
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.written = written
        wx, wy, wz = kernel.workgroup
        size = wx * wy * wz
        self.count = len(ids) * size
        local = np.tile(np.arange(size), len(ids))
        group = np.repeat(ids, size)
        self.slot = np.repeat(np.arange(len(ids)), size)  # workgroup within the batch
        self.lane = local
        self.ids: dict[str, list[Array]] = {
            "local_id": [local % wx, local // wx % wy, local // (wx * wy)],
            "group_id": [
                group % groups[0], group // groups[0] % groups[1], group // (groups[0] * groups[1])
            ],
        }  # fmt: skip
        self.ids["global_id"] = [
            g * w + i
            for g, w, i in zip(
                self.ids["group_id"], kernel.workgroup, self.ids["local_id"], strict=True
            )
        ]
        self.env: dict[str, Array] = {}
        self.alive: Mask = np.ones(self.count, np.bool_)
        self.broken: list[Mask] = []
        self.shared: dict[str, _SharedState] = {}
        for array in kernel.shared:
            lanes = (array.type.width,) if array.type.width > 1 else ()
            shape = (len(ids), array.count)
            # Undefined contents must not look like zeros: a kernel may not rely on them.
            fill: Any = np.nan if array.type.is_float else -(2**30)
            self.shared[array.name] = _SharedState(
                np.full(shape + lanes, fill, array.type.scalar.numpy),
                np.full(shape, _NOBODY, np.int64),
                np.full(shape, _NOBODY, np.int64),
            )

    def fail(self, message: str) -> None:
        raise KernelError(f"kernel {self.kernel.name}: {message}")

    def run(self) -> None:
        self.block(self.kernel.body, np.ones(self.count, np.bool_))

    # Statements

    def block(self, body: tuple[Stmt, ...], mask: Mask) -> None:
        for stmt in body:
            active = mask & self.alive
            if self.broken:
                active &= ~self.broken[-1]
            if not active.any():
                return
            self.statement(stmt, active)

    def statement(self, stmt: Stmt, mask: Mask) -> None:
        if isinstance(stmt, (Let, Var)):
            self.env[stmt.ident] = self.full(self.value(stmt.value, mask), stmt.value)
        elif isinstance(stmt, Assign):
            new = self.full(self.value(stmt.value, mask), stmt.value)
            old = self.env[stmt.target.ident]
            self.env[stmt.target.ident] = np.where(_wide(mask, new), new, old)
        elif isinstance(stmt, Store):
            self.store(stmt, mask)
        elif isinstance(stmt, SharedStore):
            self.shared_store(stmt, mask)
        elif isinstance(stmt, If):
            cond = self.full(self.value(stmt.cond, mask), stmt.cond)
            self.block(stmt.then, mask & cond)
            self.block(stmt.orelse, mask & ~cond)
        elif isinstance(stmt, For):
            self.loop(stmt, mask)
        elif isinstance(stmt, Break):
            self.broken[-1] |= mask
        elif isinstance(stmt, Return):
            self.alive &= ~mask
        elif isinstance(stmt, Barrier):
            self.barrier(mask)
        else:
            self.fail(f"unknown statement {type(stmt).__name__}")

    def loop(self, stmt: For, mask: Mask) -> None:
        index = self.full(self.value(stmt.start, mask), stmt.start)
        self.broken.append(np.zeros(self.count, np.bool_))
        while True:
            stop = self.value(stmt.stop, mask)
            active = mask & self.alive & ~self.broken[-1] & (index < stop)
            if not active.any():
                break
            self.env[stmt.index.ident] = index
            self.block(stmt.body, active)
            index = index + np.int32(stmt.step)
        self.broken.pop()

    def barrier(self, mask: Mask) -> None:
        arrived = np.zeros(self.slot[-1] + 1, np.int64)
        np.add.at(arrived, self.slot[mask], 1)
        size = self.count // len(arrived)
        if ((arrived != 0) & (arrived != size)).any():
            self.fail("a barrier was reached by a part of a workgroup")
        for state in self.shared.values():
            state.writer[arrived != 0] = _NOBODY
            state.reader[arrived != 0] = _NOBODY

    def store(self, stmt: Store, mask: Mask) -> None:
        index = self.index(stmt.index, mask, stmt.buffer, stmt.scalar)[mask]
        value = self.full(self.value(stmt.value, mask), stmt.value)[mask]
        flat = self.memory[stmt.buffer.name]
        width = 1 if stmt.scalar else stmt.buffer.width
        lanes = index if width == 1 else (index[:, None] * width + np.arange(width)).ravel()
        if self.written is not None:
            seen = self.written[stmt.buffer.name]
            # A read-write buffer may be rewritten by its owner; only one store at a time is
            # checked there.
            if stmt.buffer.access == "write" and seen[lanes].any():
                self.fail(f"an element of {stmt.buffer.name} is written twice")
            if len(np.unique(lanes)) != len(lanes):
                self.fail(f"two invocations write one element of {stmt.buffer.name}")
            seen[lanes] = True
        flat[lanes] = value.reshape(-1).astype(flat.dtype)

    def shared_store(self, stmt: SharedStore, mask: Mask) -> None:
        slot, index = self.shared_index(stmt.array, stmt.index, mask)
        state = self.shared[stmt.array.name]
        if self.written is not None:
            lane = self.lane[mask]
            for touched in (state.writer[slot, index], state.reader[slot, index]):
                if ((touched != _NOBODY) & (touched != lane)).any():
                    self.fail(f"{stmt.array.name} is overwritten without a barrier")
            key = slot * stmt.array.count + index
            if len(np.unique(key)) != len(key):
                self.fail(f"two invocations write one element of {stmt.array.name}")
            state.writer[slot, index] = lane
        state.data[slot, index] = self.full(self.value(stmt.value, mask), stmt.value)[mask]

    # Expressions

    def value(self, expr: Expr, mask: Mask) -> Array:
        """An expression's value: [n] or [n, lanes], or without the n where it is constant."""
        if isinstance(expr, Const):
            scalar = expr.type.scalar.numpy.type(expr.value)
            return np.full((1, expr.type.width) if expr.type.width > 1 else (1,), scalar)
        if isinstance(expr, Name):
            return self.env[expr.ident]
        if isinstance(expr, Builtin):
            return self.ids[expr.kind][expr.axis].astype(np.int32)
        if isinstance(expr, Unary):
            x = self.value(expr.x, mask)
            return ~x if expr.op == "not" else -x
        if isinstance(expr, Binary):
            return binary(expr.op, self.value(expr.a, mask), self.value(expr.b, mask))
        if isinstance(expr, Call):
            return call(expr.fn, [self.value(a, mask) for a in expr.args])
        if isinstance(expr, Select):
            cond, a, b = (self.value(e, mask) for e in (expr.cond, expr.a, expr.b))
            return np.where(_wide(cond, a) if cond.ndim < a.ndim else cond, a, b)
        if isinstance(expr, Cast):
            return convert(self.value(expr.x, mask), expr.type.scalar)
        if isinstance(expr, Vec):
            return np.stack([self.full(self.value(p, mask), p) for p in expr.parts], axis=-1)
        if isinstance(expr, Splat):
            return np.repeat(self.value(expr.x, mask)[:, None], expr.type.width, axis=1)
        if isinstance(expr, Lane):
            return self.value(expr.x, mask)[:, expr.index]
        if isinstance(expr, Load):
            return self.load(expr, mask)
        if isinstance(expr, SharedLoad):
            return self.shared_load(expr, mask)
        raise KernelError(f"kernel {self.kernel.name}: unknown expression {type(expr).__name__}")

    def full(self, value: Array, expr: Expr) -> Array:
        """Spread a constant over all invocations."""
        shape = (self.count, expr.type.width) if expr.type.width > 1 else (self.count,)
        return value if value.shape == shape else np.broadcast_to(value, shape)

    def index(self, expr: Expr, mask: Mask, buffer: Buffer, scalar: bool) -> Array:
        index = self.full(self.value(expr, mask), expr).astype(np.int64)
        size = self.memory[buffer.name].size // (1 if scalar else buffer.width)
        bad = mask & ((index < 0) | (index >= size))
        if bad.any():
            self.fail(f"{buffer.name}[{index[bad][0]}] of {size} elements")
        return index

    def load(self, expr: Load, mask: Mask) -> Array:
        index = np.where(mask, self.index(expr.index, mask, expr.buffer, expr.scalar), 0)
        flat = self.memory[expr.buffer.name]
        width = 1 if expr.scalar else expr.buffer.width
        if flat.size == 0:
            return np.zeros((self.count,) + ((width,) if width > 1 else ()), flat.dtype)
        found = flat[index] if width == 1 else flat.reshape(-1, width)[index]
        return found.astype(expr.type.scalar.numpy)

    def shared_index(self, array: Shared, expr: Expr, mask: Mask) -> tuple[Array, Array]:
        index = self.full(self.value(expr, mask), expr).astype(np.int64)[mask]
        if ((index < 0) | (index >= array.count)).any():
            self.fail(f"{array.name}[{index.min()}..{index.max()}] of {array.count} elements")
        return self.slot[mask], index

    def shared_load(self, expr: SharedLoad, mask: Mask) -> Array:
        slot, index = self.shared_index(expr.array, expr.index, mask)
        state = self.shared[expr.array.name]
        if self.written is not None:
            lane = self.lane[mask]
            writer = state.writer[slot, index]
            if ((writer != _NOBODY) & (writer != lane)).any():
                self.fail(f"{expr.array.name} is read without a barrier after its write")
            reader = state.reader[slot, index]
            state.reader[slot, index] = np.where(
                (reader == _NOBODY) | (reader == lane), lane, _SEVERAL
            )
            self._mark_several(state, slot, index, lane)
        lanes = state.data.shape[2:]
        out = np.zeros((self.count, *lanes), state.data.dtype)
        out[mask] = state.data[slot, index]
        return out

    def _mark_several(self, state: _SharedState, slot: Array, index: Array, lane: Array) -> None:
        """Where several invocations read one element at once, the scatter kept just one."""
        differs = state.reader[slot, index] != lane
        state.reader[slot[differs], index[differs]] = _SEVERAL


def _wide(mask: Array, like: Array) -> Array:
    return mask[:, None] if like.ndim == 2 and mask.ndim == 1 else mask
