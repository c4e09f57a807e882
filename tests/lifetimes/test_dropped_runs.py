"""Recordings whose run was interrupted and that nobody closes: their memory is released when the
device is done with it and something else is loaded, not only when the device is closed."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.backend_kit.recording import BaseRecording, _in_flight
from tflgpu.conformance.contract.signals import handled, interrupted
from tflgpu.conformance.plans import chain
from tflgpu.plugins.registry import registry

_PATIENCE = 10.0
#: Interrupted runs that are dropped, and among how many steps of a run they are looked for.
_WANTED, _STEPS = 4, 200


@pytest.fixture(params=["cpu_ref", "opencl", "vulkan", "wgpu"])
def device(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Any:
    require_backend(request.param)
    index = 1 if request.param == "cpu_ref" else 0
    opened = registry().open_device(request.param, index, tflgpu.DelegateOptions())
    yield opened
    opened.close()


def load(device: Any) -> Any:
    recording = device.load(chain(65, device.alignment))
    recording.inputs[0][...] = np.arange(65)
    return recording


# Python drops what a signal's handler raises in a finalizer, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_and_dropped(device: Any) -> None:
    dropped: list[weakref.ref[Any]] = []
    with handled():
        # From the first step on, as the number of steps depends on how often a wait looks up.
        for step in range(_STEPS):
            recording = load(device)
            interrupted(recording.run, step)
            inner = recording
            while not isinstance(inner, BaseRecording):
                inner = inner._inner
            if inner in _in_flight:
                dropped.append(weakref.ref(inner))
            del recording, inner
            if len(dropped) == _WANTED:
                break
    assert dropped  # some of the signals came in a run
    end = time.monotonic() + _PATIENCE
    while any(ref() is not None for ref in dropped) and time.monotonic() < end:
        with closing(load(device)) as other:
            other.run()
        gc.collect()
    assert [ref() for ref in dropped] == [None] * len(dropped)
