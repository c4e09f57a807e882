"""One backend by itself: how fast a model is when nothing else uses the machine.

    python -m benchmarks.solo --backend vulkan --precision f16 --models a.tflite b.tflite

`tflgpu.benchmark` of each model, as a line. `benchmarks.run` times several ways by turns instead,
which costs each of them the caches.

    python -m benchmarks.solo --backend vulkan --models a.tflite --processes 5 --series 2

says whether a figure repeats: so many processes measure one after another, and their median is the
figure of a series. Two series follow one another; the exit code is 1 where their figures are more
than 3 % apart. What each process found is printed too, and how far the processes of a series are
apart: a single process is off by so much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tflgpu
from tflgpu import Precision

from benchmarks.run import find_model

_REPEATS_WITHIN = 0.03


def process_medians(
    model: Path, backend: str, precision: str, processes: int, duration: float, warm_up: float
) -> list[float]:
    """Median milliseconds of a run in so many processes, one after another."""
    command = [sys.executable, "-m", "tflgpu", "benchmark", str(model)]
    command += ["--no-starts", "--no-energy", "--json"]
    command += ["--backend", backend, "--precision", precision]
    command += ["--duration", str(duration), "--warm-up", str(warm_up)]
    medians = []
    for _ in range(processes):
        found = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        medians.append(found[0]["measurements"][0]["latency"]["p50"])
    return medians


def _spread(values: Sequence[float]) -> float:
    """How far the largest and the smallest are apart, in parts of the median."""
    return (max(values) - min(values)) / float(np.median(values))


def _repeats(model: Path, given: argparse.Namespace) -> bool:
    settings = (given.processes, given.duration, given.warm_up)
    print(f"{model.stem:36} {given.backend} {given.precision}", flush=True)
    figures = []
    for number in range(1, given.series + 1):
        medians = process_medians(model, given.backend, given.precision, *settings)
        figures.append(float(np.median(medians)))
        listed = ", ".join(f"{ms:.4f}" for ms in medians)
        print(f"  series {number}: median {figures[-1]:.4f} ms of {listed} ms, which are "
              f"{_spread(medians):.1%} apart", flush=True)  # fmt: skip
    if given.series > 1:
        print(f"  medians of the series: {_spread(figures):.1%} apart", flush=True)
    return _spread(figures) <= _REPEATS_WITHIN


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--duration", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=1, help="of a series")
    parser.add_argument("--series", type=int, default=2, help="to compare, of several processes")
    given = parser.parse_args()
    if given.processes > 1:
        close = [_repeats(find_model(model), given) for model in given.models]
        sys.exit(0 if all(close) else 1)
    for model in map(find_model, given.models):
        found = tflgpu.benchmark(
            model, backend=given.backend, precision=Precision(given.precision), starts=False,
            energy=False, duration=given.duration, warm_up=given.warm_up,
        )  # fmt: skip
        (measured,) = found.measurements
        assert measured.latency is not None
        assert measured.stages is not None
        print(
            f"{model.stem:36} {given.backend} {given.precision}: {measured.latency.p50:.3f} ms, "
            f"invoke {measured.stages.invoke:.3f} ms, {measured.dispatches} dispatches",
            flush=True,
        )


if __name__ == "__main__":
    main()
