"""A device that runs plans with tflgpu's kernel interpreter: slow, and complete."""

from __future__ import annotations

import numpy as np
from tflgpu.sdk.backend import (
    ArenaRef,
    Array,
    BaseBuffer,
    BaseDevice,
    BasePlanMemory,
    BasePlanRecording,
    Bytes,
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

from tflgpu_example_backend.plugin import DEVICE


class ExampleDevice(BaseDevice):
    """`tflgpu.sdk.backend.Device`."""

    kind = "example"

    def __init__(self, index: int) -> None:
        if index != DEVICE.index:
            raise DeviceError(f"there is no device {index}, only 0 = {DEVICE.name}")
        super().__init__()
        self.info = DEVICE
        # What kernels may use. Promise only what is there: the suite tests every promise.
        self.caps = DeviceCaps(
            f16_storage=True, max_workgroup=128, max_bindings=12, vendor=DEVICE.vendor
        )
        self.alignment = 64

    def source(self, kernel: Kernel) -> str:
        """What is compiled: here, the tree itself."""
        return f"kernel {kernel.name}\n{len(kernel.body)} statements"

    def _load(self, plan: Plan, *, guard_bands: bool) -> ExampleRecording:
        """Check the kernels (a GPU would compile them) and bind the plan to memory."""
        for dispatch in plan.dispatches:
            try:
                check(dispatch.kernel)
            except KernelError as error:
                source = self.source(dispatch.kernel)
                raise CompileError(f"{dispatch.label}: {error}\n{source}") from error
        memory = ExampleMemory(plan, guarded=guard_bands, ledger=self._account.ledger())
        return ExampleRecording(plan, memory)

    def _allocate_buffer(self, nbytes: int) -> ExampleBuffer:
        return ExampleBuffer(self._lock, self._token, nbytes, Place("a buffer", _zeros(nbytes)))


class Place:
    """Some bytes, and the band of bytes on both sides that nothing may write."""

    def __init__(self, name: str, whole: Bytes, band: int = 0) -> None:
        self.name, self.whole, self.band = name, whole, band
        self.nbytes = len(whole) - 2 * band
        self.bytes = whole[band : band + self.nbytes]

    def array(self, io: PlannedIO) -> Array:
        """The host's view of an input or output."""
        found: Array = self.bytes.view(io.dtype.numpy).reshape(io.shape)
        return found


class ExampleMemory(BasePlanMemory[Place]):
    """Places for all that a plan needs. A GPU has memory of its own, and copies."""

    def __init__(self, plan: Plan, *, guarded: bool, ledger: Ledger) -> None:
        super().__init__(limit=1 << 31, guarded=guarded, ledger=ledger)
        with releasing_on_error(self):  # what is counted, and one of the three may be over a limit
            ledger.take(Use.ARENA, plan.arena_bytes, "the arena")
            ledger.take(Use.WEIGHTS, plan.constant_bytes, "the weights")
            ledger.take(Use.STAGING, plan.edge_bytes, "inputs and outputs")
        self._arenas = [_zeros(nbytes) for nbytes in plan.arenas or (0,)]
        self.inputs = [self._place(f"input {io.name}", _zeros(io.nbytes)) for io in plan.inputs]
        self.outputs = [self._place(f"output {io.name}", _zeros(io.nbytes)) for io in plan.outputs]
        for i, array in enumerate(plan.constants):
            self.constants.append(Place(f"constant {i}", array.reshape(-1).view(np.uint8)))

    def _place(self, name: str, data: Bytes) -> Place:
        return Place(name, self.fenced(len(data), data), self.band)

    def _slice(self, name: str, ref: ArenaRef) -> Place:
        """Part of an arena; between guard bands, memory of its own."""
        part = self._arenas[ref.arena][ref.offset : ref.offset + ref.nbytes]
        return self._place(name, part) if self.guarded else Place(name, part)

    def part(self, region: Place, nbytes: int) -> Place:
        return Place(region.name, region.bytes[:nbytes])

    def _look(self, region: Place, start: int, nbytes: int) -> Bytes:
        return region.whole[region.band + start : region.band + start + nbytes]

    def _overwrite(self, region: Place, value: int) -> None:
        region.bytes[...] = value


class ExampleRecording(BasePlanRecording[OutputSet, Place]):
    """`tflgpu.sdk.backend.Recording`: everything that can be done once is done here."""

    def __init__(self, plan: Plan, memory: ExampleMemory) -> None:
        super().__init__(plan, memory)
        self._goes_on = False  # a run is over when the call returns
        self._memory = memory
        self._inputs = tuple(p.array(io) for p, io in zip(memory.inputs, plan.inputs, strict=True))
        arrays = [p.array(io) for p, io in zip(memory.outputs, plan.outputs, strict=True)]
        self._sets = OutputSets(OutputSet(arrays))
        self._rebind()

    def _rebind(self) -> None:
        """The memory of every dispatch's buffers, as flat elements of their type."""
        self._arrays = [
            [
                place.bytes.view(buffer.scalar.numpy)
                for buffer, place in zip(dispatch.kernel.buffers, places, strict=True)
            ]
            for dispatch, places in zip(self._planned, self._regions, strict=True)
        ]

    def _run(self) -> None:
        self._outputs.for_run()
        if self._memory.guarded:
            self._run_between_bands()
            return
        for index in range(self.dispatches):
            self._dispatch_alone(index)

    def _dispatch_alone(self, index: int) -> None:
        dispatch = self._planned[index]
        try:
            interpret(dispatch.kernel, dispatch.groups, self._arrays[index])
        except KernelError as error:
            raise DeviceError(f"{dispatch.label}: {error}") from error

    def _profile(self) -> Unsupported:
        """A run without timers."""
        self._run()
        return Unsupported("this backend has no timers")

    def _release(self) -> None:
        super()._release()
        self._arrays = []
        self._memory.release()


class ExampleBuffer(BaseBuffer):
    """`tflgpu.sdk.backend.Buffer`."""

    region: Place

    def _write(self, data: Bytes) -> None:
        self.region.bytes[: len(data)] = data

    def _read(self, nbytes: int) -> Bytes:
        return self.region.bytes[:nbytes]

    def _export(self) -> object:
        return self.region.bytes


def _zeros(nbytes: int) -> Bytes:
    try:
        return np.zeros(nbytes, np.uint8)
    except (MemoryError, ValueError) as error:
        raise DeviceError(f"allocating {nbytes} bytes: {error}") from error
