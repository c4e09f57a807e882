"""Interpreters that are made, run and closed by the hundred take no more memory than a few do.

Each model has 256 KiB of constants. With TFLGPU_TEST_EVERYTHING=1 there are 1,000 cycles on every
API, where as little as 4 KiB a cycle would be seen; otherwise a few on one, which see a model that
stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
CYCLES = 1000 if EVERYTHING else 50
BACKENDS = ("opencl", "vulkan", "wgpu") if EVERYTHING else ("opencl",)
#: Bytes, after a fifth of the cycles: measured are 0 to 0.2 MiB, from an allocator's pages.
LIMIT = 4 << 20

PROGRAM = """
import gc, json, logging, os, sys
import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

backend, host, cycles = sys.argv[1], sys.argv[2], int(sys.argv[3])
if host == "tflgpu":
    from tflgpu import Interpreter
else:
    from ai_edge_litert.interpreter import Interpreter
table = np.arange(1 << 16, dtype=np.float32)
shapes = [TensorSpec("x", table.shape), TensorSpec("c", table.shape, data=table)]
model = write_model(ModelSpec([*shapes, TensorSpec("y", table.shape)],
                              [OperatorSpec("ADD", {}, (0, 1), (2,))], (0,), (2,)))
delegate = tflgpu.GpuDelegate(backend=backend)

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

taken = []
for cycle in range(cycles + 1):
    if cycle % (cycles // 10) == 0:
        taken.append(resident())
    interpreter = Interpreter(model_content=model, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, table)
    interpreter.invoke()
    assert (interpreter.get_tensor(2) == 2 * table).all()
    if host == "tflgpu":
        assert interpreter.report.fully_delegated
        interpreter.close()
    del interpreter
if host == "LiteRT":
    assert delegate.reports[-1].fully_delegated
print(json.dumps(taken))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("host", ["tflgpu", "LiteRT"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_is_flat(backend: str, host: str, require_backend: Callable[[str], Any]) -> None:
    require_backend(backend)
    pytest.importorskip("ai_edge_litert")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend, host, str(CYCLES)],
        capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    taken = json.loads(done.stdout.splitlines()[-1])
    assert len(taken) == 11
    print([round(t / 2**20, 1) for t in taken])  # `pytest -rP` shows it
    assert taken[-1] - taken[2] < LIMIT, taken
