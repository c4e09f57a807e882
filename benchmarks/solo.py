"""One backend by itself: how fast a model is when nothing else uses the machine.

    python -m benchmarks.solo --backend vulkan --precision f16 --models a.tflite b.tflite

`tflgpu.benchmark` of each model, as a line. `benchmarks.run` times several ways by turns instead,
which costs each of them the caches.
"""

from __future__ import annotations

import argparse

import tflgpu
from tflgpu import Precision

from benchmarks.run import find_model


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--duration", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--warm-up", type=float, default=1.0, metavar="SECONDS")
    given = parser.parse_args()
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
