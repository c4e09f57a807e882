"""One backend by itself: how fast a model is when nothing else uses the machine.

    python -m benchmarks.solo --backend vulkan --precision f16 --models a.tflite b.tflite

NumPy in to NumPy out: `set_tensor` of every input, `invoke`, `get_tensor` of every output, on
inputs that rotate among three. `benchmarks.run` races contestants against each other instead,
which costs each of them the caches.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter, Precision

_INPUTS = 3


@attrs.frozen
class Solo:
    """Medians over the rounds, in milliseconds.

    Attributes:
        total: Inputs set, invoked, outputs copied out.
        invoke: `invoke` alone.
        dispatches: Kernels launched per inference.
    """

    total: float
    invoke: float
    dispatches: int


def measure(model: Path, backend: str, precision: str, rounds: int, warm_up: int) -> Solo:
    """Time one model."""
    rng = np.random.default_rng(0)
    with (
        GpuDelegate(backend=backend, precision=Precision(precision)) as delegate,
        Interpreter(model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        inputs = interpreter.get_input_details()
        outputs = [d["index"] for d in interpreter.get_output_details()]
        drawn = [
            [(d["index"], rng.uniform(-1, 1, d["shape"]).astype(d["dtype"])) for d in inputs]
            for _ in range(_INPUTS)
        ]
        times = np.empty((warm_up + rounds, 2))
        for i in range(warm_up + rounds):
            start = time.perf_counter()
            for index, array in drawn[i % _INPUTS]:
                interpreter.set_tensor(index, array)
            invoked = time.perf_counter()
            interpreter.invoke()
            done = time.perf_counter()
            _ = [interpreter.get_tensor(index) for index in outputs]
            times[i] = time.perf_counter() - start, done - invoked
        total, invoke = np.median(times[warm_up:], axis=0) * 1e3
        return Solo(float(total), float(invoke), interpreter.report.dispatches)


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", type=Path, required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=30)
    given = parser.parse_args()
    for model in given.models:
        found = measure(model, given.backend, given.precision, given.rounds, given.warm_up)
        print(
            f"{model.stem:36} {given.backend} {given.precision}: {found.total:.3f} ms, "
            f"invoke {found.invoke:.3f} ms, {found.dispatches} dispatches",
            flush=True,
        )


if __name__ == "__main__":
    main()
