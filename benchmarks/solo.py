"""One backend by itself: how fast a model is when nothing else uses the machine.

    python -m benchmarks.solo --backend vulkan --precision f16 --models a.tflite b.tflite

`tflgpu.benchmark` of each model, as a line. `benchmarks.run` times several ways by turns instead,
which costs each of them the caches. With ``--processes 5`` so many processes measure one after
another; a line says how far their medians are apart, and the exit code is 1 where that is more than
3 %.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
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
    command = [sys.executable, "-m", "tflgpu", "benchmark", str(model), "--no-starts", "--json"]
    command += ["--backend", backend, "--precision", precision]
    command += ["--duration", str(duration), "--warm-up", str(warm_up)]
    medians = []
    for _ in range(processes):
        found = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
        medians.append(found[0]["measurements"][0]["latency"]["p50"])
    return medians


def _repeats(model: Path, given: argparse.Namespace) -> bool:
    settings = (given.processes, given.duration, given.warm_up)
    medians = process_medians(model, given.backend, given.precision, *settings)
    apart: float = (max(medians) - min(medians)) / float(np.median(medians))
    listed = ", ".join(f"{ms:.4f}" for ms in medians)
    print(f"{model.stem:36} {given.backend} {given.precision}: {apart:.1%} apart, {listed} ms",
          flush=True)  # fmt: skip
    return apart <= _REPEATS_WITHIN


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--duration", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--processes", type=int, default=1, help="measure in so many, and compare")
    given = parser.parse_args()
    if given.processes > 1:
        close = [_repeats(find_model(model), given) for model in given.models]
        sys.exit(0 if all(close) else 1)
    for model in map(find_model, given.models):
        found = tflgpu.benchmark(
            model, backend=given.backend, precision=Precision(given.precision), starts=False,
            duration=given.duration, warm_up=given.warm_up,
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
