"""Runs that a signal's handler ends (Ctrl-C): what comes out, and what works afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.conformance.contract.signals import Interruption, can_plant, handled, interrupted, steps
from tflgpu.conformance.contract.tools import fill, same, shared, whole, works
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device, Recording
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

#: At how many steps of a run a signal comes, each in a recording of its own.
PLACES = 12
_COUNT = 65


def interrupt_checks() -> list[Check]:
    """Of devices that run plans; `contract.nodes` asks the same of the others."""
    return [shared("interrupted_runs", _interrupted_runs)]


def _interrupted_runs(device: Device) -> Outcome:
    def load() -> Recording:
        return device.load(chain(_COUNT, device.alignment))

    x, other = whole(_COUNT, 1), whole(_COUNT, 2)
    outcome = interrupt_runs(load, [x], [chain_expected(x)], [other], [chain_expected(other)])
    works(device, "a plan loaded after others were interrupted")
    return outcome


def interrupt_runs(
    load: Callable[[], Recording],
    before: Sequence[Array],
    expected_before: Sequence[Array],
    after: Sequence[Array],
    expected_after: Sequence[Array],
) -> Outcome:
    """Interrupt runs of recordings that ``load`` makes, at places from their beginning to their
    end.

    What a handler raises comes out as it is. A recording that was interrupted is right when it is
    run again, or says that it cannot by a `DeviceError`: then a session loads another. Either way
    it is closed, and others work.

    Args:
        load: Makes a recording.
        before: Inputs of the runs that are interrupted.
        expected_before: Their outputs.
        after: Inputs of runs after those.
        expected_after: Their outputs.
    """
    if not can_plant():
        return NotApplicable("signals are handled in the main thread of CPython")
    recording = load()
    fill(recording, *before)
    total = steps(recording.run)
    recording.close()
    came = lost = 0
    with handled():
        for at in [-1, *sorted({total * i // PLACES for i in range(PLACES)})]:
            where = f"a run that was interrupted at step {at + 1} of {total}"
            recording = load()
            fill(recording, *before)
            planted = interrupted(recording.run, at)
            if planted.error is None:
                # Over before the signal came; or Python dropped it, as it does in finalizers.
                lost += planted.reached
                _same(recording, expected_before, f"{where} to no effect")
            elif isinstance(planted.error, Interruption):
                came += 1
            else:
                raise AssertionError(
                    f"{where} raised {planted.error!r}, not what the signal's handler raised"
                ) from planted.error
            fill(recording, *after)
            failure = _failure(recording)
            if failure is None:
                _same(recording, expected_after, f"a run after {where}")
            elif planted.error is None:
                raise AssertionError(f"after {where} to no effect none works: {failure!r}")
            elif not isinstance(failure, DeviceError):
                raise AssertionError(
                    f"a run after {where} raised {failure!r}, which is no DeviceError"
                ) from failure
            recording.close()
            recording.close()
            with_another = load()
            fill(with_another, *after)
            with_another.run()
            _same(with_another, expected_after, f"another recording after {where}")
            with_another.close()
    assert lost <= max(came, 1), f"{lost} of {came + lost} signals in a run did not come out of it"
    return None


def _failure(recording: Recording) -> Exception | None:
    try:
        recording.run()
    except Exception as error:  # noqa: BLE001  (of any class)
        return error
    return None


def _same(recording: Recording, wanted: Sequence[Array], what: str) -> None:
    for array, want in zip(recording.outputs, wanted, strict=True):
        same(np.array(array), want, f"the output of {what}")
