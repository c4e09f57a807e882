"""What a device says of the memory that it takes, where it counts any (`CountsMemory`)."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from tflgpu.compiler.plan import ArenaRef, Plan
from tflgpu.conformance.contract.tools import own, refused, small, works
from tflgpu.conformance.plans import chain
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device
from tflgpu.contract.memory_use import CountsMemory, MemoryUse
from tflgpu.contract.offers import offers
from tflgpu.errors import MemoryLimitError
from tflgpu.lowering.reason import Unsupported

_COUNT = 4099


class _Counts(Device, CountsMemory, Protocol):
    """A device that does."""


def memory_checks() -> list[Check]:
    """On a device that has nothing else."""
    return [own("memory_counted", _counted)]


def _plans(device: Device) -> list[Plan]:
    """One with an arena, and one with constants."""
    return [chain(_COUNT, device.alignment, steps=3), small(device, _COUNT)]


def _counted(device: Device) -> Outcome:
    """A plan takes what was said before, no less than it has in it, and gives it back; a limit
    holds."""
    if not offers(device, CountsMemory):
        return NotApplicable("the device does not count what it takes")
    for plan in _plans(device):
        before, said = device.memory, device.footprint(plan)
        # Without what lies between them, which a device may leave out. They do not overlap here.
        regions = {ref for d in plan.dispatches for ref in d.refs if isinstance(ref, ArenaRef)}
        arena = sum(ref.nbytes for ref in regions)
        assert said.arena >= arena, f"an arena of {arena} bytes: {said}"
        constants = sum(array.nbytes for array in plan.constants)
        assert said.weights >= constants, f"constants of {constants} bytes: {said}"
        recording = device.load(plan)
        taken = device.memory
        assert taken == before + said, f"a plan of {said} on a device with {before} makes {taken}"
        recording.close()
        _given_back(device, before, "a recording")
    before, buffer = device.memory, device.allocate(_COUNT)
    if not isinstance(buffer, Unsupported):
        more = device.memory.buffers - before.buffers
        assert more >= _COUNT, f"a buffer of {_COUNT} bytes counts {more}"
        buffer.close()
        _given_back(device, before, "a buffer")
        _let_go(device)
    _limited(device)
    return None


def _let_go(device: _Counts) -> None:
    """A buffer that is closed while a recording is bound to it is freed when that lets go of it."""
    plan = small(device, _COUNT)
    recording = device.load(plan)
    before, buffer = device.memory, device.allocate(plan.inputs[0].nbytes)
    assert not isinstance(buffer, Unsupported), "a second buffer is not to be had"
    bound = recording.bind(inputs={0: buffer})
    buffer.close()
    if bound is None:
        recording.bind(inputs={0: None})
    _given_back(device, before, "a buffer that a recording was bound to")
    recording.close()


def _given_back(device: CountsMemory, before: MemoryUse, what: str) -> None:
    left = device.memory
    assert left == before, f"after {what} was closed there is {left}, and was {before} before it"


def _limited(device: _Counts) -> None:
    """A plan is loaded where there is just room for it, and refused where a byte is missing."""
    try:
        for plan in _plans(device):
            needed = device.memory.total + device.footprint(plan).total
            device.limit_memory(needed - 1)
            refused(partial(device.load, plan), "loading over the limit", MemoryLimitError)
            device.limit_memory(needed)
            device.load(plan).close()
    finally:
        device.limit_memory(None)
    works(device, "a plan on a device that had a limit")
