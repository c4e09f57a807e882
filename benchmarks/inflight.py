"""One thread with one, two, three runs in flight: images a second, NumPy in to NumPy out.

    python -m benchmarks.inflight --models mobilenet_v2_1.0_224_f32 --backend vulkan --precision f16

For each number in flight the rounds are the same: `invoke_async` with an image of its own, of which
there are several by turns, and the results of the oldest run once so many are under way. The first
line is `set_tensor`, `invoke`, `get_tensor`. What each run gives is held against that at the end:
the numbers must be the same.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

import numpy as np
from tflgpu import GpuDelegate, Interpreter

from benchmarks.run import find_model

_IMAGES = 4


def main() -> None:
    """Print a line for each model and number in flight."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device")
    parser.add_argument("--precision", default="f16", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--in-flight", nargs="+", type=int, default=[1, 2, 3], metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements; the best is told")
    given = parser.parse_args()
    options = {"backend": given.backend, "precision": given.precision}
    if given.device is not None:
        options["device"] = given.device
    with GpuDelegate(**options) as delegate:
        for name in given.models:
            path = find_model(name)
            for most in (0, *given.in_flight):
                with Interpreter(
                    path, experimental_delegates=[delegate], max_in_flight=max(1, most)
                ) as interpreter:
                    found = _measured(interpreter, most, given.seconds, given.repeats)
                    what = f"{most} in flight" if most else "invoke     "
                    print(
                        f"{path.stem} {given.backend} {given.precision} {what}: {found}", flush=True
                    )


def _measured(interpreter: Interpreter, most: int, seconds: float, repeats: int) -> str:
    interpreter.allocate_tensors()
    rng = np.random.default_rng(0)
    inputs = interpreter.get_input_details()
    outputs = [d["index"] for d in interpreter.get_output_details()]
    images = [
        {d["index"]: rng.uniform(-1, 1, d["shape"]).astype(d["dtype"]) for d in inputs}
        for _ in range(_IMAGES)
    ]
    wanted = [_invoked(interpreter, image, outputs) for image in images]
    best = 0.0
    for turn in range(repeats + 1):
        # The first is to warm up: lanes are opened in it.
        lasts = min(0.5, seconds) if turn == 0 else seconds
        count, took = _round(interpreter, most, images, outputs, lasts)
        best = max(best, count / took if turn else 0.0)
    same = _same(interpreter, most, images, outputs, wanted)
    return f"{best:8.0f} images/s, {1e3 / best:.3f} ms an image, {same}"


def _invoked(interpreter: Interpreter, image: dict[int, Any], outputs: list[int]) -> list[Any]:
    for index, array in image.items():
        interpreter.set_tensor(index, array)
    interpreter.invoke()
    return [interpreter.get_tensor(index) for index in outputs]


def _round(
    interpreter: Interpreter, most: int, images: list[Any], outputs: list[int], seconds: float
) -> tuple[int, float]:
    """How many images, and the seconds that they took."""
    flying: deque[Any] = deque()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        image = images[count % _IMAGES]
        if most:
            if len(flying) == most:
                flying.popleft().results()
            flying.append(interpreter.invoke_async(image))
        else:
            _invoked(interpreter, image, outputs)
        count += 1
    while flying:
        flying.popleft().results()
    return count, time.perf_counter() - start


def _same(
    interpreter: Interpreter, most: int, images: list[Any], outputs: list[int], wanted: list[Any]
) -> str:
    if most:
        runs = [interpreter.invoke_async(image) for image in images]
        got = [run.results() for run in runs]
    else:
        got = [_invoked(interpreter, image, outputs) for image in images]
    for mine, theirs in zip(got, wanted, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            if not np.array_equal(a, b):
                return f"results DIFFER by up to {np.abs(a.astype(float) - b).max():g}"
    return "results as by invoke"


if __name__ == "__main__":
    main()
