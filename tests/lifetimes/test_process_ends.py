"""A script may end without closing anything, whatever is going on: it ends as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lifetimes import leave

LEAVE = Path(__file__).with_name("leave.py")


#: Drivers that compute on a CPU have not been seen to mind; TFLGPU_TEST_EVERYTHING=1 asks all.
WAYS = leave.WAYS if os.environ.get("TFLGPU_TEST_EVERYTHING") else leave.WAYS[:1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_a_process_that_closes_nothing(backend: str, way: str) -> None:
    done = subprocess.run(
        [sys.executable, str(LEAVE), backend, way],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
