"""What a refused command leaves, and what a closed device lets go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.plans import biased, chain, chain_expected
from tflgpu.errors import DeviceError


def test_a_refused_command_ends_the_recording(device: Any) -> None:
    from tflgpu_wgpu.native import Commands, Launch

    recording = device.load(biased(33))
    other = device.load(chain(33, device.alignment))
    # Bindings for another kernel's buffers: what wgpu refuses when the encoding is finished.
    wrong = Launch(recording._launches[0].pipeline, other._launches[0].bind_group, (1, 1, 1))
    working = recording._all
    recording._all = Commands(device._device, [], [wrong], [])
    with pytest.raises(DeviceError, match=r"(?is)running.*bind group"):
        recording.run()
    recording._all = working
    with pytest.raises(DeviceError, match=r"(?is)earlier run.*bind group"):
        recording.run()
    with pytest.raises(DeviceError, match="earlier run"):
        recording.profile()
    recording.close()
    other.run()
    assert (other.outputs[0] == chain_expected(np.zeros(33))).all()


def test_closed_devices_keep_no_threads(open_device: Callable[..., Any]) -> None:
    before = set(threading.enumerate())
    closed = []
    for _ in range(3):
        device = open_device()
        recording = device.load(biased(9))
        device.close()
        closed += [device, recording]
    # Whoever still holds the closed objects does not hold what they held.
    assert not set(threading.enumerate()) - before
