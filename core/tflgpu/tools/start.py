"""How long a program waits for its first result, in a process of its own.

`starts` runs this module twice with one empty cache folder: the first process compiles everything,
the second finds what tflgpu kept. What a GPU's driver keeps in folders of its own stays there.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
import numpy as np

from tflgpu.options import DelegateOptions
from tflgpu.tools.contestants import OnTflgpu, own_delegate
from tflgpu.tools.runs import random_inputs

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Seconds for one process: a driver may compile for minutes.
_LONGEST = 900.0


@attrs.frozen
class StartTimes:
    """A start, in milliseconds.

    Attributes:
        device: Opening the device and importing what that takes; None where it is opened with the
            model.
        init: From the model's file to an interpreter whose tensors are allocated.
        first: The first run, with inputs and outputs.
        host_memory: Most bytes of memory that the process had; None where the system does not tell.
    """

    device: float | None
    init: float
    first: float
    host_memory: int | None


def starts(
    model: Path, options: DelegateOptions, batch: int
) -> tuple[StartTimes, StartTimes] | str:
    """A start with nothing kept, and the next one; or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        environ = {**os.environ, "TFLGPU_CACHE_DIR": folder}
        command = [sys.executable, "-m", "tflgpu.tools.start", str(model), str(batch)]
        found = []
        for _ in range(2):
            try:
                done = subprocess.run(  # noqa: S603  (our own program)
                    command,
                    env=environ,
                    input=pickle.dumps(options),
                    capture_output=True,
                    timeout=_LONGEST,
                    check=True,
                )
            except subprocess.TimeoutExpired:
                return f"a start took more than {_LONGEST:g} s"
            except subprocess.CalledProcessError as error:
                lines = error.stderr.decode(errors="replace").strip().splitlines()
                return f"a start failed: {lines[-1] if lines else f'exit code {error.returncode}'}"
            found.append(StartTimes(**json.loads(done.stdout.splitlines()[-1])))
        return found[0], found[1]


def _start(model: Path, options: DelegateOptions, batch: int) -> StartTimes:
    begun = time.perf_counter()
    delegate = own_delegate(options)
    opened_device = time.perf_counter()
    opened = OnTflgpu(model, options, batch, delegate=delegate)
    allocated = time.perf_counter()
    inputs = random_inputs(opened.interpreter, np.random.default_rng(0))
    drawn = time.perf_counter()
    opened.put(inputs)
    opened.invoke()
    opened.take()
    done = time.perf_counter()
    opened.close()
    return StartTimes(
        1e3 * (opened_device - begun) if delegate is not None else None,
        1e3 * (allocated - opened_device),
        1e3 * (done - drawn),
        _most_memory(),
    )


def _most_memory() -> int | None:
    if resource is None:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


if __name__ == "__main__":
    given = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  (of the process that began this)
    found = _start(Path(sys.argv[1]), given, int(sys.argv[2]))
    print(json.dumps(attrs.asdict(found)))  # noqa: T201
