"""What the checks of the contract share: devices to ask, plans to run, errors to expect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import TypeVar

import attrs
import numpy as np

from tflgpu.compiler.plan import Plan
from tflgpu.conformance.plans import biased
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import Device, Recording
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array

#: Elements of a tensor: one, fewer than a vector, than a subgroup, and some workgroups.
SIZES = (1, 3, 31, 257, 4099)

Question = Callable[[Device], Outcome]
_E = TypeVar("_E", bound=TflgpuError)


def shared(name: str, question: Question) -> Check:
    """A check that leaves the device as it was."""
    return Check(f"0/{name}", partial(_on_target, question))


def own(name: str, question: Question) -> Check:
    """A check that closes its device, or may break it, and gets one of its own."""
    return Check(f"0/{name}", partial(_on_another, question))


def _on_target(question: Question, target: DeviceUnderTest) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    return question(target.device)


def _on_another(question: Question, target: DeviceUnderTest) -> Outcome:
    if not isinstance(target.device, Device):
        return NotApplicable("the device runs nodes, not plans")
    with closing(target.reopen()) as other:
        assert isinstance(other.device, Device)
        return question(other.device)


def whole(count: int, seed: int = 0) -> Array:
    """Whole numbers as f32, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


def small(device: Device, count: int = 9) -> Plan:
    """A plan for what is not about its numbers: a sum with a constant."""
    return attrs.evolve(biased(count), alignment=device.alignment)


def loaded(device: Device, plan: Plan, *, guard_bands: bool = False) -> closing[Recording]:
    """A recording, closed in the end."""
    return closing(device.load(plan, guard_bands=guard_bands))


def fill(recording: Recording, *inputs: Array) -> None:
    """Write a recording's inputs, whose shapes may be others of as many elements."""
    for target, array in zip(recording.inputs, inputs, strict=True):
        target[...] = array.reshape(target.shape)


def run_plan(device: Device, plan: Plan, *inputs: Array, guard_bands: bool = False) -> list[Array]:
    """The outputs of a plan."""
    with loaded(device, plan, guard_bands=guard_bands) as recording:
        fill(recording, *inputs)
        recording.run()
        return [np.array(a) for a in recording.outputs]


def gives(recording: Recording, want: Array, what: str, *inputs: Array) -> None:
    """That a run of a recording, on other inputs if there are any, gives its first output.

    Raises:
        AssertionError: as `same`.
    """
    if inputs:
        fill(recording, *inputs)
    recording.run()
    same(np.array(recording.outputs[0]), want, what)


def works(device: Device, what: str) -> None:
    """That a device loads and runs a plan."""
    (y,) = run_plan(device, small(device), whole(9))
    same(y, whole(9) + np.arange(9, dtype=np.float32), what)


def same(got: Array, want: Array, what: str) -> None:
    """Equal shapes, types and bytes.

    Raises:
        AssertionError: says where they differ first.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(
            f"{what}: {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
        )
    if got.tobytes() != want.tobytes():
        at = int(np.argmax(got.reshape(-1) != want.reshape(-1)))
        raise AssertionError(
            f"{what}: element {at} is {got.reshape(-1)[at]!r}, not {want.reshape(-1)[at]!r}"
        )


def refused(action: Callable[[], object], what: str, kind: type[_E]) -> _E:
    """The error that an action ends in.

    Raises:
        AssertionError: it ended in another one, or in none.
    """
    try:
        action()
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{what} raised {error!r}, which is no {kind.__name__}") from error
    raise AssertionError(f"{what} raised nothing; {kind.__name__} was due")


def says(error: Exception, what: str, *parts: str) -> None:
    """That a message has every one of some parts; "a|b" stands for either.

    Raises:
        AssertionError: one is missing; quotes the message.
    """
    text = str(error)
    for part in parts:
        assert any(p in text for p in part.split("|")), (
            f"the error about {what} does not say {' or '.join(map(repr, part.split('|')))}: "
            f"{text[:300]}"
        )
