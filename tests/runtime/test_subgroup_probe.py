"""The probe believes what a device does, not what its driver says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.backend_kit.subgroup_probe import probe_shuffle
from tflgpu.compiler.plan import Plan
from tflgpu.errors import CompileError, DeviceError
from tflgpu.ir.dtypes import Array
from tflgpu.language.types import LARGEST_GROUP
from tflgpu_cpu_ref.device import CAPS, CpuRefDevice

from tests.running import raising


class Subgroups:
    """The interpreter's device with subgroups of its own: ``moved(mask, i)`` says whose value an
    invocation of a workgroup gets, -1 where none that was asked for."""

    def __init__(self, moved: Callable[[int, Array, bool], Array]) -> None:
        self._device = CpuRefDevice()
        self.caps, self.info, self.alignment = CAPS, self._device.info, self._device.alignment
        self.loaded = 0
        self._moved = moved

    def load(self, plan: Plan, *, guard_bands: bool = False) -> Any:
        self.loaded += 1
        recording = self._device.load(plan, guard_bands=guard_bands)
        run, moved = recording.run, self._moved

        def run_and_move() -> None:
            run()
            given = recording.inputs[0]
            i = np.arange(given.size)
            for step, results in zip(plan.dispatches, recording.outputs, strict=True):
                one_axis = step.kernel.workgroup[1] == 1
                for row, values in enumerate(results.reshape(-1, given.size)):
                    source = moved(1 << row, i, one_axis)
                    values[:] = np.where(source < 0, 7777, given[source])

        recording.run = run_and_move  # type: ignore[method-assign]
        return recording

    def source(self, kernel: Any) -> str:
        return ""

    def close(self) -> None:
        self._device.close()


def width(n: int) -> Callable[[int, Array, bool], Array]:
    """Subgroups of ``n``; a mask beyond them gives nothing."""
    return lambda mask, i, one_axis: (i ^ mask) if mask < n else np.full_like(i, -1)


@pytest.mark.parametrize("widest", [2, 4, 8, 16, 32, 64, 128])
def test_a_device_that_is_right_gets_what_its_driver_allows(widest: int) -> None:
    assert probe_shuffle(CpuRefDevice(), widest) == min(widest, LARGEST_GROUP)


@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_narrower_subgroups_than_the_driver_says(n: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tflgpu")
    assert probe_shuffle(Subgroups(width(n)), 32) == n
    assert (f"among {n} neighbours are right" in caplog.text) == (n < 32)


def test_a_number_that_is_no_power_of_two_is_rounded_down() -> None:
    assert probe_shuffle(CpuRefDevice(), 24) == 16


@pytest.mark.parametrize("moved", [
    lambda mask, i, one_axis: i,  # nobody's but its own
    lambda mask, i, one_axis: i ^ (mask * 2 % 63),  # every other invocation is a neighbour
    lambda mask, i, one_axis: np.where(i < 64, i ^ mask, -1),  # only the first workgroup
    lambda mask, i, one_axis: (i ^ mask) if one_axis else i ^ (mask * 8 % 63),  # down the columns
])  # fmt: skip
def test_another_order_is_none(moved: Callable[[int, Array, bool], Array]) -> None:
    assert probe_shuffle(Subgroups(moved), 32) == 0


def test_one_wrong_result_counts() -> None:
    def moved(mask: int, i: Array, one_axis: bool) -> Array:
        return np.where((mask == 8) & (i == 130), 0, i ^ mask)

    assert probe_shuffle(Subgroups(moved), 32) == 8


@pytest.mark.parametrize("error", [CompileError("no such function"), DeviceError("lost")])
def test_a_device_that_fails_has_none(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "tflgpu")

    assert probe_shuffle(Subgroups(raising(error)), 32) == 0
    assert str(error) in caplog.text


@pytest.mark.parametrize("widest", [0, 1])
def test_nothing_runs_where_nothing_shuffles(widest: int) -> None:
    device = Subgroups(width(32))
    assert probe_shuffle(device, widest) == 0
    assert not device.loaded
    device.caps = attrs.evolve(CAPS, max_workgroup=32)
    assert probe_shuffle(device, 32) == 0
    assert not device.loaded
