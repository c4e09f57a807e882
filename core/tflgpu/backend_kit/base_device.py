"""The base of devices: the lock, closing, refused uses, and what was loaded on the device."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from tflgpu.backend_kit.account import Account, Ledger
from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.check_plan import check_plan
from tflgpu.backend_kit.forks import CLOSED_EARLY, Holder
from tflgpu.backend_kit.plan_memory import too_large
from tflgpu.backend_kit.recording import BaseRecording
from tflgpu.backend_kit.room import check_room, room
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.compiler.plan import Plan
from tflgpu.contract.buffers import Buffer
from tflgpu.contract.device import DeviceInfo
from tflgpu.contract.memory_use import MemoryUse, Use
from tflgpu.errors import DeviceError, StateError
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import Unsupported

if TYPE_CHECKING:
    from tflgpu.language.kernel import Kernel


class BaseDevice(Holder, ABC):
    """A `tflgpu.contract.device.Device`. Safe to use from several threads.

    A subclass sets ``caps`` and ``alignment`` when it is opened, and has `_load`, `source` and
    `_release`, which are called under the lock and on an open device only. Opening itself may load
    plans already (to probe the driver).

    Attributes:
        kind: The API, as messages call it ("OpenCL").
        info: Which device it is.
        caps: Its limits and features.
        alignment: Bytes to which arena offsets must be aligned.
        needs: Bytes of address space that its driver may need for being opened, and for loading a
            plan besides the plan's own: compilers, threads. Where less is left it is not asked.
    """

    kind = ""
    needs = (0, 0)
    info: DeviceInfo
    caps: DeviceCaps
    alignment: int

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._recordings: weakref.WeakSet[Any] = weakref.WeakSet()
        self._buffers: weakref.WeakSet[BaseBuffer] = weakref.WeakSet()
        self._token = object()
        self._account = Account()
        self._weights: SharedWeights[Any] = SharedWeights()
        self._closed = self._released = False
        self.belongs_to_process()
        if self.needs[0]:
            check_room(f"opening the {self.kind} device", self.needs[0])

    # For subclasses to write

    @abstractmethod
    def _load(self, plan: Plan, *, guard_bands: bool) -> Any:
        """Compile, allocate, upload, bind and record a plan that fits together and fits the device.
        What cannot be loaded leaves nothing behind (`releasing_on_error`)."""

    def _release(self) -> None:
        """Release the device; all that was loaded on it is closed."""

    @abstractmethod
    def source(self, kernel: Kernel) -> str:
        """The text that is compiled for a kernel (for people)."""

    def _footprint(self, plan: Plan) -> MemoryUse:
        """What `_load` would allocate for a plan, without guard bands."""
        return MemoryUse(plan.arena_bytes, plan.constant_bytes, plan.edge_bytes)

    def _allocate_buffer(self, nbytes: int) -> BaseBuffer | Unsupported:
        return Unsupported(f"the {self.kind} backend allocates no buffers of their own")

    def _allocate_shared(self, nbytes: int) -> BaseBuffer | Unsupported:
        return Unsupported(
            f"the {self.kind} backend shares no memory with other APIs; the Vulkan backend does"
        )

    def _import_buffer(self, source: object) -> BaseBuffer | Unsupported:
        return Unsupported(f"the {self.kind} backend uses no memory that others made")

    # What users of a device have

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Any:
        """A recording of a plan.

        Raises:
            StateError: the device is closed.
            CompileError: the driver refused a kernel; carries source and log.
            MemoryLimitError: there is no room for it in what `limit_memory` said.
            DeviceError: the plan does not fit together or is over a limit of `caps`, memory ran
                out, or the device is gone.
        """
        with self._lock:
            self._check_open()
            check_plan(plan, self)
            self._let_go_of_idle()
            if self._account.limit is not None and not guard_bands:
                self._account.check(self._added(plan), "this part of the model")
            if self.needs[1]:
                # What host and device share is the process's own; looked at where there is a limit.
                shares = not self.caps.is_gpu and math.isfinite(room())
                own = self._footprint(plan).total if shares else 0
                check_room(f"loading on {self.info.name}", self.needs[1] + own)
            recording = self._load(plan, guard_bands=guard_bands)
            recording.device_token = self._token
            self._recordings.add(recording)
            return recording

    def allocate(self, nbytes: int) -> Buffer | Unsupported:
        """A new buffer, all zeros; or the reason why the device has none.

        Raises:
            StateError: the device is closed.
            MemoryLimitError: there is no room for it in what `limit_memory` said.
            DeviceError: it is over a limit of `caps`, or memory ran out.
        """
        with self._lock:
            self._check_open()
            if nbytes < 0:
                raise DeviceError(f"a buffer of {nbytes} bytes")
            if nbytes > self.caps.max_buffer_bytes:
                raise too_large("the buffer", nbytes, self.caps.max_buffer_bytes)
            self._let_go_of_idle()
            if self.needs[1] and not self.caps.is_gpu:
                check_room(f"a buffer on {self.info.name}", nbytes)
            ledger = self._account.ledger()
            ledger.take(Use.BUFFERS, nbytes, "the buffer")
            return self._kept(self._allocate_buffer(nbytes), ledger)

    def allocate_shared(self, nbytes: int) -> BaseBuffer | Unsupported:
        """As `tflgpu.contract.buffers.SharesMemory`.

        Raises:
            StateError: the device is closed.
            MemoryLimitError: there is no room for it in what `limit_memory` said.
            DeviceError: memory ran out.
        """
        with self._lock:
            self._check_open()
            ledger = self._account.ledger()
            ledger.take(Use.BUFFERS, nbytes, "the shared buffer")
            return self._kept(self._allocate_shared(nbytes), ledger)

    def import_buffer(self, source: object) -> Buffer | Unsupported:
        """A buffer over memory that exists, used in place; or the reason why that cannot be.

        Raises:
            StateError: the device is closed.
            DeviceError: the device failed.
        """
        with self._lock:
            self._check_open()
            return self._kept(self._import_buffer(source))

    @property
    def memory(self) -> MemoryUse:
        """See `tflgpu.contract.memory_use.CountsMemory`."""
        self._weights.sweep()
        return self._account.use

    def footprint(self, plan: Plan) -> MemoryUse:
        """See `tflgpu.contract.memory_use.CountsMemory`.

        Raises:
            StateError: the device is closed.
        """
        with self._lock:
            self._check_open()
            return self._footprint(plan)

    def limit_memory(self, nbytes: int | None) -> None:
        """See `tflgpu.contract.memory_use.CountsMemory`."""
        self._account.limit = nbytes

    def close(self) -> None:
        """Close what was loaded on it, and release the device; twice is harmless."""
        if self.inherited:
            return
        with self._lock:
            if self._released:
                return
            self._closed = True
            for recording in list(self._recordings):
                recording.close()
            for buffer in list(self._buffers):
                buffer.close()
            self._weights.sweep()
            self._release()
            self._released = True

    # Inside

    def _check_open(self) -> None:
        self.check_inherited(f"this {self.kind} device")
        if self._closed:
            raise StateError(f"this {self.kind} device is closed, {self.info.name}: {CLOSED_EARLY}")

    def _let_go_of_idle(self) -> None:
        """Release memory of recordings that ended, before more is taken."""
        for recording in list(self._recordings):
            if isinstance(recording, BaseRecording):
                recording.let_go_if_idle()

    def _added(self, plan: Plan) -> MemoryUse:
        """What loading a plan would take beside what is there: its weights may be."""
        lacking = self._weights.lacking(plan.constants)
        constants = plan.constants.only(lacking)
        alone = self._footprint(attrs.evolve(plan, constants=constants, dispatches=()))
        return attrs.evolve(self._footprint(plan), weights=alone.weights)

    def _kept(
        self, made: BaseBuffer | Unsupported, ledger: Ledger | None = None
    ) -> BaseBuffer | Unsupported:
        if isinstance(made, BaseBuffer):
            made.ledger = ledger
            self._buffers.add(made)
        return made


class Released(Protocol):
    """What is held until it is released."""

    def release(self) -> None:
        """Let go of it."""


@contextmanager
def releasing_on_error(held: Released) -> Iterator[None]:
    """Release ``held`` where what is done inside does not come to its end."""
    try:
        yield
    except BaseException:
        held.release()
        raise
