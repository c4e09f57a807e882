"""Runs that a signal's handler ends (Ctrl-C): what comes out, and what works afterwards.

The signal is there before a run begins, comes in its middle, or after its last call of the driver.
`contract.submissions` has signals that come while a driver is at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tflgpu.conformance.contract.signals import (
    BEFORE,
    Interruption,
    can_plant,
    handled,
    interrupted,
)
from tflgpu.conformance.contract.tools import fill, same, shared, whole, works
from tflgpu.conformance.plans import chain, chain_expected
from tflgpu.conformance.target import Check, NotApplicable, Outcome
from tflgpu.contract.device import Device, Recording
from tflgpu.errors import DeviceError
from tflgpu.ir.dtypes import Array

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
    """Interrupt runs of recordings that ``load`` makes: before, within and at the end.

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
    last = min(interrupted(recording.run).steps for _ in range(2))  # the first may import
    recording.close()
    came = 0
    with handled():
        places = (("before it began", BEFORE), ("within", last // 2), ("at its end", last))
        for where, step in places:
            what = f"a run that was interrupted {where}"
            recording = load()
            fill(recording, *before)
            result = interrupted(recording.run, step)
            while result.steps < step:  # a run that waited less than those that were counted
                step = result.steps // 2  # noqa: PLW2901
                result = interrupted(recording.run, step)
            error = result.error
            if error is None:  # over before the signal came
                _same(recording, expected_before, f"{what} to no effect")
            elif not isinstance(error, Interruption):
                raise AssertionError(
                    f"{what} raised {error!r}, not what the signal's handler raised"
                ) from error
            came += error is not None
            fill(recording, *after)
            failure = _failure(recording)
            if failure is None:
                _same(recording, expected_after, f"a run after {what}")
            elif error is None:
                raise AssertionError(f"after {what} to no effect none works: {failure!r}")
            elif not isinstance(failure, DeviceError):
                raise AssertionError(
                    f"a run after {what} raised {failure!r}, which is no DeviceError"
                ) from failure
            recording.close()
            recording.close()
            with_another = load()
            fill(with_another, *after)
            with_another.run()
            _same(with_another, expected_after, f"another recording after {what}")
            with_another.close()
    assert came >= 2, f"{3 - came} of 3 signals in a run did not come out of it"
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
