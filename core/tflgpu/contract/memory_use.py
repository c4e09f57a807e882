"""How many bytes a device has allocated, for what, and the limit on them."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from tflgpu.compiler.plan import Plan
from tflgpu.values import frozen


class Use(Enum):
    """The purpose of an allocation."""

    ARENA = "arena"
    WEIGHTS = "weights"
    STAGING = "staging"
    BUFFERS = "buffers"


@frozen
class MemoryUse:
    """Bytes, as they were asked for from the device's API. What a driver adds (its own alignment,
    code, command buffers) is not in it, nor memory that only arrays of the caller's keep.

    Attributes:
        arena: Tensors between kernels.
        weights: Constants, which models on one device share where they are equal.
        staging: Inputs and outputs: what kernels read and write, and the host memory that the
            driver maps or pins for them.
        buffers: What was allocated to be bound (`Interpreter.allocate_buffer`).
    """

    arena: int = 0
    weights: int = 0
    staging: int = 0
    buffers: int = 0

    @property
    def total(self) -> int:
        """All together."""
        return self.arena + self.weights + self.staging + self.buffers

    def __add__(self, other: MemoryUse) -> MemoryUse:
        """Both."""
        return MemoryUse(
            self.arena + other.arena,
            self.weights + other.weights,
            self.staging + other.staging,
            self.buffers + other.buffers,
        )

    def told(self) -> str:
        """For messages: what it is made of."""
        parts = ((kind.value, getattr(self, kind.value)) for kind in Use)
        return " + ".join(f"{nbytes} {what}" for what, nbytes in parts if nbytes) or "nothing"


class CountsMemory(Protocol):
    """Optional for a `tflgpu.contract.device.Device`: an account of its memory."""

    @property
    def memory(self) -> MemoryUse:
        """Bytes that are allocated now, for everything on the device."""

    def footprint(self, plan: Plan) -> MemoryUse:
        """Bytes that loading a plan would allocate on an empty device, without guard bands. Nothing
        is compiled or allocated.

        Raises:
            StateError: the device is closed.
        """

    def limit_memory(self, nbytes: int | None) -> None:
        """From now on refuse, by a `MemoryLimitError`, allocations that would bring the sum over
        ``nbytes``; None sets no limit."""
