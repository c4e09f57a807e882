"""The base of recordings whose run is a list of commands in order: one list for each set of
outputs, and others for bound buffers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

from tflgpu.backend_kit.plan_memory import BasePlanMemory, R
from tflgpu.backend_kit.plan_recording import BasePlanRecording
from tflgpu.backend_kit.staging import C, Outline, StagedOutputs, Staging, output_sets
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, Ref
from tflgpu.ir.dtypes import Array


class StagedRecording(BasePlanRecording[StagedOutputs[C], R], Generic[C, R]):
    """A `BasePlanRecording`. A subclass has `_bind_kernels`, and `_elsewhere` where what is bound
    needs commands of its own; besides what `BasePlanRecording` asks for, less `_begin` and
    `_rebind`. Its `_release` calls this one's."""

    def __init__(
        self,
        plan: Plan,
        memory: BasePlanMemory[R],
        outline: Outline[C],
        arrays: Callable[[], Sequence[Array]],
        finish: Callable[[], None],
    ) -> None:
        """Compose the commands of a run.

        Args:
            plan: What is run.
            memory: The plan's; gets the regions of the outline as inputs and outputs.
            outline: How inputs and outputs are moved, in memory of the recording's own.
            arrays: As `output_sets` takes it; must not hold the recording.
            finish: Likewise.

        Raises:
            DeviceError: memory ran out.
        """
        memory.inputs, memory.outputs = (
            [staging.region for staging in side] for side in (outline.inputs, outline.outputs)
        )
        super().__init__(plan, memory)
        self._outline = outline
        self._staging = list(outline.inputs), list(outline.outputs)  # in memory of its own
        self._inputs = tuple(staging.array for staging in outline.inputs)
        self._bind_kernels()
        self._before = outline.before()
        self._sets = output_sets(outline, arrays, finish, lends=not memory.guarded)

    # For subclasses to write

    @abstractmethod
    def _bind_kernels(self) -> None:
        """Let the kernels of the dispatches, which are in the commands, be those of ``_planned``
        and use ``_regions``.

        Raises:
            DeviceError: the driver refused.
        """

    def _elsewhere(self, own: Staging[C], region: R) -> Staging[C]:
        """The place of an input or output that is bound to a buffer of that region."""
        return Staging(own.array, region)

    # What recordings ask for

    @property
    def copies(self) -> tuple[int, int]:
        """As `BasePlanRecording.copies`; what host and device share is not copied."""
        return self._outline.copies

    def _begin(self) -> None:
        self._outputs.for_run().commands.submit()

    def _rebind(self) -> None:
        self._bind_kernels()
        outline, (inputs, outputs) = self._outline, self._staging
        outline.fetched[:] = self._fetched
        outline.inputs[:] = [self._place(InputRef(i), s) for i, s in enumerate(inputs)]
        outline.outputs[:] = [self._place(OutputRef(i), s) for i, s in enumerate(outputs)]
        self._before = outline.before()
        self._outputs.change(outline.lendable, outline.remake)

    def _place(self, ref: Ref, own: Staging[C]) -> Staging[C]:
        region = self._plan_memory.bound.get(ref)
        return own if region is None else self._elsewhere(own, region)

    def _release(self) -> None:
        super()._release()
        self._before = self._outline.new()
        self._sets = None  # its commands hold kernels and buffers
        self._outline.clear()
