"""A process that may take little memory (``ulimit -v``): our error, not the end of the process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tflgpu
from tflgpu.backend_kit import room
from tflgpu.errors import DeviceError

#: TFLGPU_TEST_EVERYTHING=1 asks the other drivers as well, in front of which the question is the
#: same.
CASES = [("opencl", 120, "load"), ("opencl", 400, "open")]
if os.environ.get("TFLGPU_TEST_EVERYTHING"):
    CASES += [("vulkan", 120, "load"), ("wgpu", 120, "load")]
SCRIPT = Path(__file__).with_name("little_memory.py")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
@pytest.mark.parametrize(("backend", "mib", "when"), CASES)
def test_a_driver_is_not_asked(backend: str, mib: int, when: str, tmp_path: Path) -> None:
    # Nothing compiled is at hand, so that a driver would compile.
    cold = {"TFLGPU_CACHE_DIR": str(tmp_path), "POCL_CACHE_DIR": str(tmp_path),
            "TFLGPU_DEFAULT_DELEGATE": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(SCRIPT), backend, str(mib), when],
        capture_output=True, text=True, timeout=180, check=False, env={**os.environ, **cold},
    )  # fmt: skip
    assert done.returncode == 0, done
    error, cpu = done.stdout.splitlines()
    assert error.startswith("DeviceError")
    assert "not enough memory" in error
    assert "ulimit -v" in error
    assert cpu == "the CPU: 2"


def test_room(monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.room() == math.inf or room.room() > 0
    room.check_room("x", 0)
    monkeypatch.setattr(room, "room", lambda: 1000.0)
    room.check_room("x", 1000)
    with pytest.raises(DeviceError, match="x: not enough memory"):
        room.check_room("x", 1001)


@pytest.mark.needs("opencl")
def test_a_buffer_in_memory_of_the_process_is_asked_for_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tflgpu.GpuDelegate(backend="opencl") as delegate:
        device: Any = delegate.device
        if device.caps.is_gpu:
            pytest.skip("a GPU has memory of its own")
        monkeypatch.setattr(room, "room", lambda: 1000.0)
        device.allocate(1000).close()
        with pytest.raises(DeviceError, match=r"a buffer on .*: not enough memory"):
            device.allocate(1001)
        assert delegate.memory.total == 0
