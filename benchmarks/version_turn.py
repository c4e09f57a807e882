"""What `benchmarks.versions` runs in a process of each version. It imports that version's tflgpu
and nothing else of this folder, so that an older version, which lacks what is new here, runs it
too.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter
from tflgpu.options import DelegateOptions

_WARM_UP = 30
_STARTS = 3


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Options, without those that this version does not know."""
    wanted = {
        "backend": given.backend,
        "precision": given.precision,
        "enable_serialization": False,
    }
    known = {field.name for field in attrs.fields(DelegateOptions)}
    return {name: value for name, value in wanted.items() if name in known}


def _invokes(model: str, given: argparse.Namespace) -> list[float]:
    """Microseconds of every `invoke` after the warm-up, each on inputs that were set anew."""
    rng = np.random.default_rng(0)
    with (
        GpuDelegate(**_options(given)) as delegate,
        Interpreter(model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        inputs = [
            (d["index"], rng.random(d["shape"]).astype(d["dtype"]))
            for d in interpreter.get_input_details()
        ]
        times = []
        for _ in range(_WARM_UP + given.rounds):
            for index, array in inputs:
                interpreter.set_tensor(index, array)
            start = time.perf_counter()
            interpreter.invoke()
            times.append((time.perf_counter() - start) * 1e6)
        return times[_WARM_UP:]


def _start(model: str, given: argparse.Namespace) -> float:
    """Milliseconds from the file to ready."""
    with GpuDelegate(**_options(given)) as delegate:
        start = time.perf_counter()
        with Interpreter(model, experimental_delegates=[delegate]) as interpreter:
            interpreter.allocate_tensors()
            return (time.perf_counter() - start) * 1e3


def _starts(model: str, given: argparse.Namespace) -> list[float]:
    """Milliseconds from the file to ready, the last of several times."""
    took = 0.0
    for _ in range(_STARTS):
        took = _start(model, given)
        # Nothing of a start is freed on the next one's clock. Some versions leave a closed device
        # to Python's collector.
        gc.collect()
    return [took]


def main() -> None:
    """Print a line of JSON for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("precision")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--starts", action="store_true")
    parser.add_argument("--processor", type=int)
    given = parser.parse_args()
    if given.processor is not None and sys.platform == "linux":
        os.sched_setaffinity(0, {given.processor})
    for model in given.models:
        row: dict[str, Any] = {"model": Path(model).stem}
        try:
            row["times"] = (_starts if given.starts else _invokes)(model, given)
        except Exception as error:  # noqa: BLE001  (who cannot run one model can run the next)
            row["failure"] = f"{type(error).__name__}: {error}"
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
