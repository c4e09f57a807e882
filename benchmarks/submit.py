"""What tflgpu's Python and the driver's calls take of a call on Vulkan, without copies and waiting.

    python -m benchmarks.submit --models a.tflite b.tflite

A call is `set_tensor`, `invoke` and `get_tensor`. A partition is one command buffer, so nothing of
this must grow with the number of kernels. The clock is read in wrappers around Vulkan's functions,
which costs the measured time another call in Python; copies are timed apart, on the same arrays.

    set_tensor   -> vkQueueSubmit -> it returns | waiting | vkResetFences ->   get_tensor
    less copying                                                               less copying
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tflgpu_vulkan.context
from tflgpu import GpuDelegate, Interpreter, Precision
from tflgpu.interpreter.copies import copy
from tflgpu.tools.runs import random_inputs

from benchmarks.run import find_model


class _Clocked:
    """The Vulkan library, noting when vkQueueSubmit was called and returned, and when a function
    that asks for the end returned last."""

    def __init__(self, lib: Any) -> None:
        self._lib = lib
        self.called = self.returned = self.over = 0.0
        self.vkGetFenceStatus = self._asking(lib.vkGetFenceStatus)
        self.vkWaitForFences = self._asking(lib.vkWaitForFences)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)

    def vkQueueSubmit(self, *arguments: Any) -> Any:
        """The same, with the clock read before and after."""
        self.called = time.perf_counter()
        result = self._lib.vkQueueSubmit(*arguments)
        self.returned = time.perf_counter()
        return result

    def _asking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            result = function(*arguments)
            self.over = time.perf_counter()
            return result

        return ask


def _is_copied(output: Any) -> bool:
    """Whether an output is in memory of NumPy's own; what the device has lent is not copied."""
    while isinstance(output.base, np.ndarray):
        output = output.base
    return output.base is None


@attrs.frozen
class Submit:
    """Medians in microseconds.

    Attributes:
        dispatches: Kernels in the command buffer.
        inputs: `set_tensor`, without copying.
        called: From entering `invoke` until vkQueueSubmit was called.
        submitting: vkQueueSubmit.
        waiting: Until its end was seen.
        ending: Until `invoke` returned.
        outputs: `get_tensor`, without copying.
        copying: Of inputs and outputs, by the host.
    """

    dispatches: int
    inputs: float
    called: float
    submitting: float
    waiting: float
    ending: float
    outputs: float
    copying: float

    @property
    def own(self) -> float:
        """All without copies and waiting."""
        return self.inputs + self.called + self.submitting + self.ending + self.outputs


def measure(model: Path, precision: str, rounds: int, warm_up: float) -> Submit:
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
            given = random_inputs(interpreter, np.random.default_rng(0))
            wanted = [int(d["index"]) for d in interpreter.get_output_details()]
            session = interpreter._main.session  # noqa: SLF001
            assert session is not None
            targets = [session.arrays[index] for index in given]
            copied: list[Any] = []
            made: list[Any] = []

            def call() -> Sequence[float]:
                start = time.perf_counter()
                for index, array in given.items():
                    interpreter.set_tensor(index, array)
                put = time.perf_counter()
                interpreter.invoke()
                invoked = time.perf_counter()
                made[:] = [interpreter.get_tensor(index) for index in wanted]
                taken = time.perf_counter()
                for target, array in zip(targets, given.values(), strict=True):
                    copy(target, array)
                sent = time.perf_counter()
                copied[:] = [np.empty_like(a) if _is_copied(a) else a for a in made]
                begun = time.perf_counter()
                for target, array in zip(copied, made, strict=True):
                    if target is not array:
                        copy(target, array)
                fetched = time.perf_counter() - begun
                return (
                    put - start - (sent - taken), clock.called - put,
                    clock.returned - clock.called, clock.over - clock.returned,
                    invoked - clock.over, taken - invoked - fetched, sent - taken + fetched,
                )  # fmt: skip

            end = time.perf_counter() + warm_up
            while time.perf_counter() < end:
                call()
            times = np.median([call() for _ in range(rounds)], axis=0) * 1e6
            return Submit(report.dispatches, *map(float, times))
    finally:
        module.lib = library


def main() -> None:
    """Time the models of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", type=find_model, required=True, metavar="MODEL")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--warm-up", type=float, default=0.7, metavar="SECONDS")
    given = parser.parse_args()
    for model in given.models:
        found = measure(model, given.precision, given.rounds, given.warm_up)
        print(
            f"{model.stem:36} {given.precision}: {found.own:.1f} us without copies "
            f"({found.copying:.1f}) and waiting ({found.waiting:.1f}): set_tensor "
            f"{found.inputs:.1f}, until vkQueueSubmit {found.called:.1f}, in it "
            f"{found.submitting:.1f}, after the end {found.ending:.1f}, get_tensor "
            f"{found.outputs:.1f}; {found.dispatches} dispatches",
            flush=True,
        )


if __name__ == "__main__":
    main()
