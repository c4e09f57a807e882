"""A plan bound to NumPy arrays, run by the kernel interpreter."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_recording import BasePlanRecording
from tflgpu.compiler.plan import Plan, PlannedDispatch, PlannedIO
from tflgpu.contract.device import DispatchTime
from tflgpu.errors import DeviceError, KernelError
from tflgpu.ir.dtypes import Array
from tflgpu.language.interpreter import interpret

from tflgpu_cpu_ref.memory import Block, Memory


class CpuRefRecording(BasePlanRecording[OutputSet, Block]):
    """A `Recording` of the kernel interpreter.

    Stricter than a GPU: the interpreter refuses every access out of a binding's bounds and every
    race, memory that was not written in this run reads as NaN or -1, and a dispatch may not write
    what another of its bindings sees.
    """

    _in_place = True

    def __init__(self, plan: Plan, memory: Memory) -> None:
        """Bind a plan that fits together.

        Raises:
            DeviceError: a dispatch writes what another binding of it sees.
        """
        super().__init__(plan, memory)
        self._goes_on = False
        self._memory = memory
        self._inputs = _arrays(memory.inputs, plan.inputs)
        # Nothing is lent: the interpreter takes far longer than a copy.
        self._sets = OutputSets(OutputSet(_arrays(memory.outputs, plan.outputs)))
        self._rebind()
        self._spans = [(0.0, 0.0)] * len(self._bound)

    # Inside

    def _run(self) -> None:
        if self._memory.guarded:
            self._run_between_bands()
            return
        self._memory.poison()
        for index in range(len(self._bound)):
            self._dispatch_alone(index)

    def _profile(self) -> Sequence[DispatchTime]:
        """The interpreter's own time for each dispatch, which says nothing of a GPU."""
        self._run()
        return self._times(self._spans)

    def _dispatch_alone(self, index: int) -> None:
        planned, arrays = self._bound[index]
        start = time.perf_counter()
        try:
            interpret(planned.kernel, planned.groups, arrays)
        except KernelError as error:
            raise DeviceError(f"{planned.label}: {error}") from error
        self._spans[index] = start, time.perf_counter() - start

    def _rebind(self) -> None:
        self._bound = [
            (planned, _bound(planned, blocks))
            for planned, blocks in zip(self._planned, self._regions, strict=True)
        ]

    def _is_idle(self) -> bool:
        return True  # it computes in its caller's thread

    def _release(self) -> None:
        super()._release()
        self._bound = []
        self._memory.release()


def _bound(dispatch: PlannedDispatch, blocks: Sequence[Block]) -> tuple[Array, ...]:
    buffers = dispatch.kernel.buffers
    arrays = tuple(block.view(b.scalar.numpy) for b, block in zip(buffers, blocks, strict=True))
    for i, buffer in enumerate(buffers):
        others = (j for j in range(len(buffers)) if j != i)
        if buffer.access != "read" and any(
            np.may_share_memory(arrays[i], arrays[j]) for j in others
        ):
            raise DeviceError(
                f"{dispatch.label}: {buffer.name} of kernel {dispatch.kernel.name} is written "
                "and overlaps another of its bindings"
            )
    return arrays


def _arrays(blocks: Sequence[Block], ios: Sequence[PlannedIO]) -> tuple[Array, ...]:
    return tuple(
        block.view(io.dtype.numpy).reshape(io.shape) for block, io in zip(blocks, ios, strict=True)
    )
