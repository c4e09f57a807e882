"""A `Device` whose driver is the kernel language's NumPy interpreter.

With a driver of your own, `source` prints a kernel for it (`tflgpu.sdk.printers`), `_load`
compiles that, `KernelMemory` allocates, and `_dispatch_alone` launches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from tflgpu.sdk.backend import (
    ArenaRef,
    Array,
    BaseDevice,
    BasePlanMemory,
    BasePlanRecording,
    CompileError,
    DeviceCaps,
    DeviceError,
    Kernel,
    KernelError,
    Ledger,
    OutputSet,
    OutputSets,
    Plan,
    PlannedIO,
    Unsupported,
    Use,
    check,
    interpret,
    releasing_on_error,
)

from tflgpu_minimal_kernels.plugin import INFO


class KernelDevice(BaseDevice):
    """Runs every kernel there is, and so every op that has one."""

    kind = "minimal"

    def __init__(self, index: int) -> None:
        if index != INFO.index:
            raise DeviceError(f"there is no device {index}, only {INFO.index} = {INFO.name}")
        super().__init__()
        self.info = INFO
        self.caps = DeviceCaps(f16_storage=True)
        self.alignment = 16

    def source(self, kernel: Kernel) -> str:
        """The text that a driver would compile."""
        return f"kernel {kernel.name}\n{len(kernel.body)} statements"

    def _load(self, plan: Plan, *, guard_bands: bool) -> KernelRecording:
        """Everything that can be done once is done here."""
        for dispatch in plan.dispatches:
            try:
                check(dispatch.kernel)
            except KernelError as error:
                raise CompileError(f"{error}\n{self.source(dispatch.kernel)}") from error
        memory = KernelMemory(
            plan,
            limit=self.caps.max_buffer_bytes,
            guarded=guard_bands,
            ledger=self._account.ledger(),
        )
        return KernelRecording(plan, memory)


@attrs.frozen(eq=False)
class Block:
    """``nbytes`` of memory, with ``band`` bytes before and after them in ``whole``."""

    name: str
    nbytes: int
    whole: Array
    band: int = 0

    def array(self, dtype: Any) -> Array:
        """Its own bytes, as flat elements."""
        return self.whole[self.band : self.band + self.nbytes].view(dtype)


class KernelMemory(BasePlanMemory[Block]):
    """A block for each buffer of a plan, and for each region of its arenas."""

    def __init__(self, plan: Plan, *, limit: int, guarded: bool, ledger: Ledger) -> None:
        super().__init__(limit=limit, guarded=guarded, ledger=ledger)
        with releasing_on_error(self):  # of the three one may be over a limit
            ledger.take(Use.ARENA, plan.arena_bytes, "the arena")
            ledger.take(Use.WEIGHTS, plan.constant_bytes, "the weights")
            ledger.take(Use.STAGING, plan.edge_bytes, "inputs and outputs")
        self._arenas = [self._block("an arena", np.zeros(n, np.uint8)) for n in plan.arenas or (0,)]
        self.constants = [self._block("a constant", array) for array in plan.constants]
        self.inputs, self.outputs = (
            [self._block(io.name, np.zeros(io.shape, io.dtype.numpy)) for io in side]
            for side in (plan.inputs, plan.outputs)
        )

    def _block(self, name: str, data: Array) -> Block:
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        return Block(name, flat.nbytes, self.fenced(flat.nbytes, flat), self.band)

    def _slice(self, name: str, ref: ArenaRef) -> Block:
        part = self._arenas[ref.arena].array(np.uint8)[ref.offset : ref.offset + ref.nbytes]
        return self._block(name, part) if self.guarded else Block(name, ref.nbytes, part)

    def _look(self, region: Block, start: int, nbytes: int) -> Array:
        return region.whole[region.band + start : region.band + start + nbytes]

    def _overwrite(self, region: Block, value: int) -> None:
        region.array(np.uint8)[...] = value


class KernelRecording(BasePlanRecording[OutputSet, Block]):
    """A plan bound to memory."""

    def __init__(self, plan: Plan, memory: KernelMemory) -> None:
        super().__init__(plan, memory)
        self._goes_on = False  # NumPy computes in the call
        self._inputs = _arrays(memory.inputs, plan.inputs)
        self._sets = OutputSets(OutputSet(_arrays(memory.outputs, plan.outputs)))
        self._rebind()

    def _rebind(self) -> None:
        self._bound = [
            [block.array(b.scalar.numpy) for b, block in zip(d.kernel.buffers, blocks, strict=True)]
            for d, blocks in zip(self._planned, self._regions, strict=True)
        ]

    def _run(self) -> None:
        self._outputs.for_run()
        if self._plan_memory.guarded:
            self._run_between_bands()
        else:
            for index in range(self.dispatches):
                self._dispatch_alone(index)

    def _dispatch_alone(self, index: int) -> None:
        dispatch = self._planned[index]
        try:
            interpret(dispatch.kernel, dispatch.groups, self._bound[index])
        except KernelError as error:
            raise DeviceError(f"{dispatch.label}: {error}") from error

    def _profile(self) -> Unsupported:
        """A run without timers."""
        self._run()
        return Unsupported("this backend has no timers")

    def _release(self) -> None:
        super()._release()
        self._plan_memory.release()
        self._bound = []


def _arrays(blocks: Sequence[Block], ios: Sequence[PlannedIO]) -> tuple[Array, ...]:
    pairs = zip(blocks, ios, strict=True)
    return tuple(block.array(io.dtype.numpy).reshape(io.shape) for block, io in pairs)
