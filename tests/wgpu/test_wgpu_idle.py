"""Nothing is released while the device still uses it: `wait_idle` returns when it is idle."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tflgpu
from tflgpu.plugins.registry import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "lifetimes"))
import child


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_idle_is_when_all_is_done(require_backend: Callable[[str], Any]) -> None:
    require_backend("wgpu")
    from tflgpu_wgpu.native import wait_idle

    device = registry().open_device("wgpu", 0, tflgpu.DelegateOptions())
    recording: Any = device.load(child.slow_plan(device, 16, 4))._inner  # type: ignore[union-attr]
    recording.run()
    took = _seconds(recording.run)
    handle = recording._device._internal
    assert _seconds(lambda: wait_idle(handle)) < took / 2  # there is nothing to wait for
    for _ in range(3):  # what was wrong depended on what was in a register
        recording._all.submit()
        wait_idle(handle)
        # What is left of a run is to map what was written.
        rest = _seconds(lambda: recording._download_all.wait(recording._outputs.for_run().address))
        assert rest < took / 2, (rest, took)
    recording.close()
    device.close()
