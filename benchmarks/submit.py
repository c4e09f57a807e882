"""How long Vulkan's host side takes: from entering `invoke()` to the return of vkQueueSubmit.

    python -m benchmarks.submit --models a.tflite b.tflite

A partition is one command buffer, so this must not grow with the number of kernels. The clock is
read in a wrapper around vkQueueSubmit, which costs the measured time another call in Python.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tflgpu_vulkan.context
from tflgpu import GpuDelegate, Interpreter, Precision


class _Clocked:
    """The Vulkan library, noting when vkQueueSubmit was called and when it returned."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.called = self.returned = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def vkQueueSubmit(self, *arguments: Any) -> Any:
        """The same, with the clock read before and after."""
        self.called = time.perf_counter()
        result = self._lib.vkQueueSubmit(*arguments)
        self.returned = time.perf_counter()
        return result


@attrs.frozen
class Submit:
    """Microseconds since `invoke` was entered, medians, and the 99th percentile of the last.

    Attributes:
        called: Until vkQueueSubmit was called.
        returned: Until it returned.
        returned_p99: The same, exceeded by one run in a hundred.
        dispatches: Kernels in the command buffer.
    """

    called: float
    returned: float
    returned_p99: float
    dispatches: int


def measure(model: Path, precision: str, rounds: int, warm_up: int) -> Submit:
    """Time one model, which must run wholly on the device."""
    module: Any = tflgpu_vulkan.context
    library = module.lib
    module.lib = clock = _Clocked(library)
    try:
        with (
            GpuDelegate(backend="vulkan", precision=Precision(precision)) as delegate,
            Interpreter(model, experimental_delegates=[delegate]) as interpreter,
        ):
            interpreter.allocate_tensors()
            report = interpreter.report
            if report.partitions != 1 or report.delegated_nodes != report.total_nodes:
                raise SystemExit(f"{model.name} is not one part on the device")
            for given in interpreter.get_input_details():
                array = np.random.default_rng(0).uniform(-1, 1, given["shape"])
                interpreter.set_tensor(given["index"], array.astype(given["dtype"]))
            times = np.empty((warm_up + rounds, 2))
            for i in range(warm_up + rounds):
                start = time.perf_counter()
                interpreter.invoke()
                times[i] = clock.called - start, clock.returned - start
            called, returned = np.median(times[warm_up:], axis=0) * 1e6
            p99 = float(np.quantile(times[warm_up:, 1], 0.99)) * 1e6
            return Submit(float(called), float(returned), p99, report.dispatches)
    finally:
        module.lib = library


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", type=Path, required=True, metavar="MODEL")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=50)
    given = parser.parse_args()
    for model in given.models:
        found = measure(model, given.precision, given.rounds, given.warm_up)
        print(
            f"{model.stem:36} {given.precision}: vkQueueSubmit called after {found.called:.1f} us, "
            f"returned after {found.returned:.1f} us (99 %: {found.returned_p99:.1f} us), "
            f"{found.dispatches} dispatches",
            flush=True,
        )


if __name__ == "__main__":
    main()
