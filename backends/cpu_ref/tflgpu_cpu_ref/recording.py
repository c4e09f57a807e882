"""A plan bound to NumPy arrays, run by the kernel interpreter."""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
import numpy as np
from tflgpu.errors import DeviceError, KernelError, StateError
from tflgpu.ir.dtypes import Array
from tflgpu.kernel.builder import Size3
from tflgpu.kernel.interpret import interpret
from tflgpu.kernel.tree import Buffer, Kernel
from tflgpu.runtime.protocols import (
    ArenaRef,
    ConstRef,
    DispatchTime,
    InputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
    Ref,
)

from tflgpu_cpu_ref.memory import Block


@attrs.frozen
class _Bound:
    """A dispatch with its arrays."""

    kernel: Kernel
    groups: Size3
    arrays: tuple[Array, ...]
    label: str


class CpuRefRecording:
    """A `Recording` of the kernel interpreter.

    Stricter than a GPU: the interpreter refuses every access out of a binding's bounds and every
    race, memory that was not written in this run reads as NaN or -1, and a dispatch may not write
    what another of its bindings sees.
    """

    def __init__(self, plan: Plan, *, guard_bands: bool = False) -> None:
        """Allocate and bind a plan that fits together.

        Raises:
            DeviceError: memory ran out, or a dispatch writes what another binding of it sees.
        """
        self._arena = Block("the arena", plan.arena_bytes, guarded=guard_bands)
        self._in = [_block("input", io, guard_bands) for io in plan.inputs]
        self._out = [_block("output", io, guard_bands) for io in plan.outputs]
        self._constants = [_frozen(a) for a in plan.constants]
        self._inputs = [_array(b, io) for b, io in zip(self._in, plan.inputs, strict=True)]
        self._outputs = [_array(b, io) for b, io in zip(self._out, plan.outputs, strict=True)]
        self._bound = [self._bind(d) for d in plan.dispatches]
        self._dead = ""

    @property
    def inputs(self) -> Sequence[Array]:
        """Writable arrays, one per plan input."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """Arrays, one per plan output."""
        return self._outputs

    @property
    def dispatches(self) -> int:
        """Kernels launched by a run."""
        return len(self._bound)

    def run(self) -> None:
        """Interpret every dispatch in order.

        Raises:
            StateError: the recording is closed.
            DeviceError: a kernel did something undefined, now or in an earlier run.
        """
        self._start()
        for bound in self._bound:
            self._interpret(bound)
        self._check_bands()

    def profile(self) -> Sequence[DispatchTime]:
        """Run once; the interpreter's own time for each dispatch, which says nothing of a GPU."""
        self._start()
        times = []
        for bound in self._bound:
            start = time.perf_counter()
            self._interpret(bound)
            seconds = time.perf_counter() - start
            times.append(DispatchTime(bound.label, bound.kernel.name, seconds))
        self._check_bands()
        return times

    def close(self) -> None:
        """Refuse further runs; the arrays live as long as someone holds them."""
        self._dead = "closed"

    # Inside

    def _start(self) -> None:
        if self._dead == "closed":
            raise StateError("this recording is closed")
        if self._dead:
            raise DeviceError(f"an earlier run of this recording failed: {self._dead}")
        self._arena.poison()
        for block in self._out:
            block.poison()

    def _interpret(self, bound: _Bound) -> None:
        try:
            interpret(bound.kernel, bound.groups, bound.arrays)
        except KernelError as error:
            self._dead = f"{bound.label}: {error}"
            raise DeviceError(self._dead) from error

    def _check_bands(self) -> None:
        try:
            for block in (self._arena, *self._in, *self._out):
                block.check()
        except DeviceError as error:
            self._dead = str(error)
            raise

    def _bind(self, dispatch: PlannedDispatch) -> _Bound:
        buffers = dispatch.kernel.buffers
        arrays = tuple(self._resolve(b, r) for b, r in zip(buffers, dispatch.refs, strict=True))
        for i, buffer in enumerate(buffers):
            others = (j for j in range(len(buffers)) if j != i)
            if buffer.access != "read" and any(
                np.may_share_memory(arrays[i], arrays[j]) for j in others
            ):
                raise DeviceError(
                    f"{dispatch.label}: {buffer.name} of kernel {dispatch.kernel.name} is written "
                    "and overlaps another of its bindings"
                )
        return _Bound(dispatch.kernel, dispatch.groups, arrays, dispatch.label)

    def _resolve(self, buffer: Buffer, ref: Ref) -> Array:
        dtype = buffer.scalar.numpy
        if isinstance(ref, ArenaRef):
            return self._arena.view(dtype, ref.offset, ref.nbytes)
        if isinstance(ref, ConstRef):
            return self._constants[ref.index]
        blocks = self._in if isinstance(ref, InputRef) else self._out
        return blocks[ref.index].view(dtype)


def _block(kind: str, io: PlannedIO, guarded: bool) -> Block:
    return Block(f"{kind} {io.name}", io.nbytes, guarded=guarded)


def _array(block: Block, io: PlannedIO) -> Array:
    array: Array = block.view(io.dtype.numpy).reshape(io.shape)
    return array


def _frozen(array: Array) -> Array:
    view: Array = array.view()
    view.setflags(write=False)
    return view
