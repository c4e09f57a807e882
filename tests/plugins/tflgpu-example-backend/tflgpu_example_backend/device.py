"""A device that runs plans with tflgpu's kernel interpreter: slow, and complete."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import numpy as np
from tflgpu.errors import CompileError, DeviceError, KernelError, StateError
from tflgpu.ir.dtypes import Array
from tflgpu.kernel import Kernel, interpret
from tflgpu.kernel.caps import DeviceCaps
from tflgpu.kernel.check import check
from tflgpu.runtime.check_plan import check_plan
from tflgpu.runtime.pending import FINISHED, Pending
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

from tflgpu_example_backend.plugin import DEVICE


class ExampleDevice:
    """`tflgpu.runtime.protocols.Device`."""

    info = DEVICE
    #: What the kernels may use. Promise only what is there: the suite tests every promise.
    caps = DeviceCaps(f16_storage=True, max_workgroup=128, max_bindings=12, vendor=DEVICE.vendor)
    alignment = 64

    def __init__(self, index: int) -> None:
        if index != DEVICE.index:
            raise DeviceError(f"there is no device {index}, only 0 = {DEVICE.name}")
        self._recordings: WeakSet[ExampleRecording] = WeakSet()
        self._closed = False

    def load(self, plan: Plan, *, guard_bands: bool = False) -> ExampleRecording:
        """Check the kernels (a GPU would compile them) and bind the plan to memory."""
        if self._closed:
            raise StateError("the example device is closed")
        check_plan(plan, self)
        for dispatch in plan.dispatches:
            try:
                check(dispatch.kernel)
            except KernelError as error:
                source = self.source(dispatch.kernel)
                raise CompileError(f"{dispatch.label}: {error}\n{source}") from error
        recording = ExampleRecording(plan, guard_bands)
        self._recordings.add(recording)
        return recording

    def source(self, kernel: Kernel) -> str:
        """What is compiled: here, the tree itself."""
        return f"kernel {kernel.name}\n{len(kernel.body)} statements"

    def close(self) -> None:
        """Close what was loaded, and refuse further plans; twice is harmless."""
        self._closed = True
        for recording in list(self._recordings):
            recording.close()


class ExampleRecording:
    """`tflgpu.runtime.protocols.Recording`: everything that can be done once is done here."""

    def __init__(self, plan: Plan, guard_bands: bool) -> None:
        self._guard_bands = guard_bands
        self._arena = np.zeros(plan.arena_bytes, np.uint8)
        self._constants = plan.constants
        self._inputs = [_array(io) for io in plan.inputs]
        self._outputs = [_array(io) for io in plan.outputs]
        self._bound = [(d, [self._resolve(d, i) for i in range(len(d.refs))])
                       for d in plan.dispatches]  # fmt: skip
        self._closed = False

    @property
    def inputs(self) -> Sequence[Array]:
        """Arrays to write before a run."""
        return self._inputs

    @property
    def outputs(self) -> Sequence[Array]:
        """Arrays to read after a run."""
        return self._outputs

    def run(self) -> None:
        """Run every dispatch in order."""
        if self._closed:
            raise StateError("this recording is closed")
        if self._guard_bands:
            # The interpreter finds what is written outside a buffer. What no kernel wrote is to
            # be NaN, or -1.
            for array in (self._arena, *self._outputs):
                array.reshape(-1).view(np.uint8).fill(0xFF)
        for dispatch, arrays in self._bound:
            try:
                interpret(dispatch.kernel, dispatch.groups, arrays)
            except KernelError as error:
                raise DeviceError(f"{dispatch.label}: {error}") from error

    def submit(self) -> Pending:
        """Begin a run. NumPy computes in the call, so there is nothing to wait for afterwards."""
        self.run()
        return FINISHED

    def profile(self) -> Sequence[DispatchTime]:
        """There are no timers: a run, and no times."""
        self.run()
        return ()

    def close(self) -> None:
        """Refuse further runs; twice is harmless."""
        self._closed = True

    def _resolve(self, dispatch: PlannedDispatch, index: int) -> Array:
        """The memory of one of a dispatch's buffers, as flat elements of its type."""
        ref: Ref = dispatch.refs[index]
        dtype = dispatch.kernel.buffers[index].scalar.numpy
        if isinstance(ref, ArenaRef):
            return self._arena[ref.offset : ref.offset + ref.nbytes].view(dtype)
        if isinstance(ref, ConstRef):
            return self._constants[ref.index]
        arrays = self._inputs if isinstance(ref, InputRef) else self._outputs
        return arrays[ref.index].reshape(-1)


def _array(io: PlannedIO) -> Array:
    return np.zeros(io.shape, io.dtype.numpy)
