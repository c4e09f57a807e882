"""Run by a test: prepares a model in a process that may take little more memory.
`python little_memory.py BACKEND MIB WHEN`, where WHEN is "open" or "load"."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import numpy as np
import recovery_models as models
import tflgpu

backend, mib, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.environ["TFLGPU_BACKEND"] = backend


def limit() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (mib << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


# An open device, on which nothing else was loaded; and all that the CPU needs.
delegate = tflgpu.GpuDelegate(backend=backend, allow_fallback=False)
interpreter = tflgpu.Interpreter(model_content=models.keeps_state(), experimental_delegates=[])
interpreter.allocate_tensors()
limit()
try:
    if when == "open":
        tflgpu.GpuDelegate(backend=backend)
    other = tflgpu.Interpreter(model_content=models.large(3), experimental_delegates=[delegate])
    other.allocate_tensors()
    print("no error")
except tflgpu.DeviceError as error:
    print("DeviceError", error)
with tflgpu.Interpreter(model_content=models.keeps_state()) as spared:  # the default delegate
    spared.allocate_tensors()
    found = []
    for x in models.INPUTS:
        spared.set_tensor(0, x)
        spared.invoke()
        found.append(spared.get_tensor(1))
    np.testing.assert_allclose(found, models.state_results(*models.INPUTS), atol=1e-5)
    print("the CPU:", len(spared.report.refusals))
