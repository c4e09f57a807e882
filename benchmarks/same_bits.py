"""Whether a model's results have the same bits in every process.

    python -m benchmarks.same_bits --backends vulkan opencl --processes 20 --models a.tflite

Each process opens all models on all backends, in an order of its own, runs each several times on
the same inputs, and prints a digest of the outputs. A line for each model and backend says how many
different ones there were, and the exit code is 1 where that is more than one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from tflgpu import GpuDelegate, Interpreter, Precision
from tflgpu.tools.runs import random_inputs, run_once

from benchmarks.run import find_model

_RUNS = 3


def digests(
    models: Sequence[str], backends: Sequence[str], precision: str, order: int
) -> Iterator[tuple[str, str]]:
    """Of each run a name and the digest of its outputs, models and backends in an order that
    depends on a number."""
    pairs = [(model, backend) for model in models for backend in backends]
    random.Random(order).shuffle(pairs)
    for model, backend in pairs:
        with (
            GpuDelegate(backend=backend, precision=Precision(precision)) as delegate,
            Interpreter(str(find_model(model)), experimental_delegates=[delegate]) as interpreter,
        ):
            interpreter.allocate_tensors()
            inputs = random_inputs(interpreter, np.random.default_rng(0))
            for _ in range(_RUNS):
                digest = hashlib.sha256()
                for output in run_once(interpreter, inputs):
                    digest.update(np.asarray(output).tobytes())
                yield f"{find_model(model).stem} {backend} {precision}", digest.hexdigest()


def main() -> None:
    """Print a line for each model and backend."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=2, help="processes at a time")
    parser.add_argument("--order", type=int, help="be one of the processes, with this order")
    given = parser.parse_args()
    if given.order is not None:
        found = digests(given.models, given.backends, given.precision, given.order)
        json.dump(list(found), sys.stdout)
        return
    command = [sys.executable, "-m", "benchmarks.same_bits", "--precision", given.precision]
    command += ["--models", *given.models, "--backends", *given.backends, "--order"]
    seen: dict[str, set[str]] = defaultdict(set)
    for start in range(0, given.processes, given.at_once):
        # Dictionaries and memory in another order each time.
        children = [
            subprocess.Popen(
                [*command, str(order)], stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONHASHSEED": str(order)},
            )
            for order in range(start, min(start + given.at_once, given.processes))
        ]  # fmt: skip
        for child in children:
            out, _ = child.communicate()
            if child.returncode:
                sys.exit("a process failed")
            for name, digest in json.loads(out):
                seen[name].add(digest)
    for name, different in sorted(seen.items()):
        verdict = "the same bits" if len(different) == 1 else f"{len(different)} DIFFERENT results"
        print(f"{name}: {verdict} in {given.processes} processes, {_RUNS} runs each", flush=True)
    sys.exit(0 if all(len(different) == 1 for different in seen.values()) else 1)


if __name__ == "__main__":
    main()
