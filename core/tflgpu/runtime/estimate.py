"""Estimates how much of a device's memory a compiled graph would use, without loading it."""

from __future__ import annotations

import attrs

from tflgpu.compiler.constants import Constants, firsts
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.plan import Plan
from tflgpu.contract.device import Device
from tflgpu.contract.memory_use import CountsMemory, MemoryUse
from tflgpu.contract.offers import offers


@attrs.frozen
class PartEstimate:
    """A part of the model on the device.

    Attributes:
        label: As reports name it.
        dispatches: Kernels that a run launches.
        memory: What it takes, less weights that an earlier part has already.
    """

    label: str
    dispatches: int
    memory: MemoryUse


@attrs.frozen
class Estimate:
    """Memory that a model takes on a device when its tensors are allocated: to the byte, as far as
    it was asked for from the device's API (see `MemoryUse`). What comes later is not in it: buffers
    of `Interpreter.allocate_buffer`, and further memory for outputs that the caller keeps.

    Attributes:
        backend, device: Where; "" where nothing goes to a device.
        precision: What it was compiled for.
        parts: What runs there.
        on_cpu: Operators that the CPU runs, after graph passes.
    """

    backend: str
    device: str
    precision: str
    parts: tuple[PartEstimate, ...]
    on_cpu: int

    @property
    def memory(self) -> MemoryUse:
        """All parts together."""
        return sum((part.memory for part in self.parts), MemoryUse())

    @property
    def dispatches(self) -> int:
        """Kernels that a run launches."""
        return sum(part.dispatches for part in self.parts)


def estimate_of(compiled: Compiled, device: Device, precision: str) -> Estimate:
    """How much memory loading a compiled graph would use on an empty device that runs kernels.

    Raises:
        StateError: the device is closed.
    """
    parts = [part for part in compiled.parts if part.plan is not None]
    plans = [part.plan for part in parts if part.plan is not None]
    whole = [item for plan in plans for item in plan.constants.items]
    first, start, found = firsts(whole), 0, []
    for part, plan in zip(parts, plans, strict=True):
        stop = start + len(plan.constants)
        own = Constants(tuple(whole[i] for i in range(start, stop) if first[i] == i))
        start = stop
        memory = _footprint(device, plan)
        if len(own) < len(plan.constants):
            alone = attrs.evolve(plan, constants=own, dispatches=(), arenas=())
            memory = attrs.evolve(memory, weights=_footprint(device, alone).weights)
        found.append(PartEstimate(part.label, len(plan.dispatches), memory))
    on_cpu = sum(len(part.nodes) for part in compiled.parts if part.plan is None)
    return Estimate(device.info.backend, device.info.name, precision, tuple(found), on_cpu)


def _footprint(device: Device, plan: Plan) -> MemoryUse:
    if offers(device, CountsMemory):
        return device.footprint(plan)
    return MemoryUse(plan.arena_bytes, plan.constant_bytes, plan.edge_bytes)
