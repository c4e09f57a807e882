"""Two versions of tflgpu by turns: `invoke` and starts of this one against another's.

    python -m benchmarks.versions --other OTHER_VENV/bin/python --models a.tflite b.tflite
    --backends vulkan opencl python -m benchmarks.versions --other ... --models ... --backends ...
    --starts

`--other` is the Python of an environment in which the other version is installed. In every turn
each version gets a new process, the two in alternating order, in which every model is opened once
and run. A backend's driver may have several speeds, which change from one process to the next, and
a machine's processors differ as long as others use them too. So both processes of a turn are kept
on one processor, the one that is quickest just before, and a line tells more than a median, in
microseconds of `invoke`:

least     of all turns
quartile  of the turns' least times, the first quartile
median    of the turns' medians

With --starts it is milliseconds from the file to ready instead, on all processors: in each process
the model is opened three times, of which the first two warm imports and the driver's caches.
Nothing is kept of a model, every kernel that can run on the GPU does (`TFLGPU_PARTITIONING=all`),
and what cannot runs on the reference backend: so did the versions that did not have these options.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.run import find_model

_TURN = Path(__file__).with_name("version_turn.py")
#: Microseconds of `invoke`, or milliseconds of starts: of each turn's times, by model and backend.
_Times = dict[tuple[str, str], list[list[float]]]


def quickest_processor() -> int | None:
    """The processor on which Python is quickest now; None where a process cannot be kept on one."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    all_of_them = os.sched_getaffinity(0)
    took: dict[int, list[float]] = defaultdict(list)
    try:
        for _ in range(4):
            for processor in all_of_them:
                os.sched_setaffinity(0, {processor})
                start = time.perf_counter()
                sum(i * i for i in range(60_000))
                took[processor].append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, all_of_them)
    return min(took, key=lambda processor: float(np.median(took[processor])))


def _turn(python: str, given: argparse.Namespace, backend: str, processor: int | None) -> _Times:
    """One process of one version: what it found."""
    options = {"TFLGPU_PARTITIONING": "all", "TFLGPU_CPU_BACKEND": "cpu_ref"}
    what = ["--starts"] if given.starts else ["--rounds", str(given.rounds)]
    if processor is not None and not given.starts:
        what += ["--processor", str(processor)]
    models = [str(find_model(model)) for model in given.models]
    done = subprocess.run(
        [python, str(_TURN), backend, given.precision, *what, *models],
        env={**os.environ, **options},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found: _Times = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if "failure" in row:
            print(f"# {python}: {row['model']} on {backend}: {row['failure']}", flush=True)
        else:
            found[row["model"], backend] = [row["times"]]
    if done.returncode:
        print(f"# {python}: ended with {done.returncode} on {backend}", flush=True)
    return found


def _quartile(times: Sequence[float]) -> float:
    """The first quartile, as one of the times."""
    return sorted(times)[len(times) // 4]


def _figures(turns: Sequence[Sequence[float]]) -> dict[str, float]:
    leasts = [min(turn) for turn in turns]
    medians = [float(np.median(turn)) for turn in turns]
    return {
        "least": min(leasts),
        "quartile": _quartile(leasts),
        "median": float(np.median(medians)),
    }


def main() -> None:
    """Print a line for each model and backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", required=True, metavar="PYTHON")
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--precision", default="f32_f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=120, help="of invoke, in each turn")
    parser.add_argument("--starts", action="store_true", help="time starts instead of invoke")
    given = parser.parse_args()
    pythons = given.other, sys.executable
    for backend in given.backends:
        if not given.starts:
            for python in pythons:
                _turn(python, given, backend, None)  # so that the driver has kept every program
        times: tuple[_Times, _Times] = (defaultdict(list), defaultdict(list))
        for turn in range(given.turns):
            processor = quickest_processor()
            for i in (0, 1) if turn % 2 else (1, 0):
                for key, found in _turn(pythons[i], given, backend, processor).items():
                    times[i][key].extend(found)
        for key in times[0]:
            if key not in times[1]:
                continue
            other, this = _figures(times[0][key]), _figures(times[1][key])
            columns = (
                f"{name} {other[name]:6.0f} {this[name]:6.0f} {this[name] / other[name] - 1:+6.1%}"
                for name in other
            )
            print(f"{key[0][:36]:36} {backend:7} {given.turns} turns | {' | '.join(columns)}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
