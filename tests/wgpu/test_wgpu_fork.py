"""A forked child releases nothing that wgpu made for its parent, not even garbage: wgpu would wait
for threads of its driver's that only the parent has."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import gc, os, sys, time
import wgpu
from tflgpu import GpuDelegate

class Circle:
    pass

gc.disable()
with GpuDelegate(backend="wgpu") as delegate:  # which a child cannot use
    assert delegate.device is not None
    left = Circle()
    left.itself = left
    device = wgpu.gpu.request_adapter_sync().request_device_sync()
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_DST
    left.buffer = device.create_buffer(size=1 << 20, usage=usage)
    device.queue.write_buffer(left.buffer, 0, bytes(1 << 20))
    del left, device
    child = os.fork()
    if not child:
        gc.collect()
        os._exit(0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            sys.exit(status)
        time.sleep(0.01)
    os.kill(child, 9)
    sys.exit("the child hangs")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_collects_none_of_it(require_backend: Callable[[str], Any]) -> None:
    require_backend("wgpu")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_collector_works_again_on_both_sides() -> None:
    assert gc.isenabled()
    child = os.fork()
    if not child:
        os._exit(7 if gc.isenabled() else 8)
    assert gc.isenabled()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
