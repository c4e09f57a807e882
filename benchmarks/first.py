"""From nothing to the first result, in processes of their own: how long until a program has an
answer.

    python -m benchmarks.first --models mobilenet_v2_1.0_224_f32 --backends vulkan opencl

Every round is a new process that uses the driver's caches of the rounds before. Medians, in
milliseconds:

import  `from tflgpu import GpuDelegate, Interpreter`
device  `GpuDelegate(...)`: the backend's own imports, the driver's library, a device
start   from `Interpreter(...)` to the first result: the model, the plan, the driver's programs, and
        one run
of it   processor time of the thread that does it, and what it imports on the way
peak    the most host memory that the process had, in MB

`new` is one process that finds nothing of the driver's or of tflgpu's, as far as this command has
it in its hand; then medians with nothing kept of the model (`cold`) and from what an earlier
process has kept (`kept`). The last line says how large the kept files are beside the model's.
"""

from __future__ import annotations

import argparse
import builtins
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_TIMES = ("import", "device", "start", "python", "imports")
_NUMBERS = (*_TIMES, "peak")


def main() -> None:
    """Print two lines for each model and backend; ``--once`` is one process of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--precision", default="f32_f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", choices=["cold", "kept"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once is not None:
        print(
            json.dumps(
                _once(given.models[0], given.backends[0], given.precision, given.once == "kept")
            )
        )
        return
    print(f"{'model':34} {'backend':8} {'':5}" + "".join(f"{n:>9}" for n in _NUMBERS))
    for model in given.models:
        for backend in given.backends:
            _rounds(_found(model), backend, given.precision, given.rounds)


def _found(model: str) -> str:
    from benchmarks.run import find_model  # not at the top: it imports what a round must not have

    return str(find_model(model))


def _rounds(model: str, backend: str, precision: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        starts = {}
        environment = {**os.environ, "TFLGPU_CACHE_DIR": folder}
        for kind in ("cold", "kept"):
            command = [sys.executable, "-m", "benchmarks.first", "--models", model]
            command += ["--backends", backend, "--precision", precision, "--once", kind]
            new, *found = (
                json.loads(subprocess.check_output(command, env=environment))
                for _ in range(rounds + 1)
            )  # the first one warms the driver's caches, and keeps what the others start from
            if kind == "cold":
                _tell(model, backend, "new", [new])
            starts[kind] = _tell(model, backend, kind, found)
        files = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    beside = files / Path(model).stat().st_size
    print(
        f"{'':43} start: {starts['kept'] / starts['cold']:.0%} of the cold one; "
        f"kept: {files / 1e6:.1f} MB, {beside:.1%} of the model's file",
        flush=True,
    )


def _tell(model: str, backend: str, kind: str, found: list[dict[str, float]]) -> float:
    """Print the medians of some starts; the median of "start"."""
    medians = {name: statistics.median(each[name] for each in found) for name in _NUMBERS}
    line = f"{Path(model).stem[:34]:34} {backend:8} {kind:5}"
    print(line + "".join(f"{medians[name]:9.0f}" for name in _NUMBERS), flush=True)
    return medians["start"]


def _once(model: str, backend: str, precision: str, kept: bool) -> dict[str, float]:
    """Milliseconds of one start, and the process's memory; ``kept``: the model may be kept, as it
    is where nothing is said."""
    import numpy as np  # a program has its inputs in NumPy already

    begun = time.perf_counter()
    from tflgpu import GpuDelegate, Interpreter

    imported = time.perf_counter()
    options: dict[str, Any] = {"precision": precision}
    if not kept:
        options["enable_serialization"] = False
    with GpuDelegate(backend=backend, **options) as delegate:
        opened = time.perf_counter()
        aside = _Imports()
        worked = time.thread_time()
        with Interpreter(model, experimental_delegates=[delegate]) as interpreter:
            interpreter.allocate_tensors()
            for detail in interpreter.get_input_details():
                ones = np.ones(detail["shape"], detail["dtype"])
                interpreter.set_tensor(detail["index"], ones)
            interpreter.invoke()
            for detail in interpreter.get_output_details():
                interpreter.get_tensor(detail["index"])
            done, python = time.perf_counter(), time.thread_time() - worked
    seconds = (imported - begun, opened - imported, done - opened, python, aside.seconds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    return dict(zip(_NUMBERS, (*(s * 1e3 for s in seconds), peak), strict=True))


class _Imports:
    """The seconds that `import` takes from now on, but for modules that are there already."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._inside = False
        self._import = builtins.__import__
        builtins.__import__ = self._timed

    def _timed(self, *arguments: Any, **named: Any) -> Any:
        if self._inside:
            return self._import(*arguments, **named)
        self._inside, begun = True, time.perf_counter()
        try:
            return self._import(*arguments, **named)
        finally:
            self._inside = False
            self.seconds += time.perf_counter() - begun


if __name__ == "__main__":
    main()
