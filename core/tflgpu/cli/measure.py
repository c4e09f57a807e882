"""Times a model, and compares its results with those of other runtimes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from tflgpu.cli import console
from tflgpu.ir.dtypes import Array

_WARM_UP = 3


class Runner(Protocol):
    """The methods that tflgpu's interpreter and LiteRT's share."""

    def get_input_details(self) -> Sequence[Mapping[str, Any]]:
        """Name, index, shape and type of each input."""
        ...

    def get_output_details(self) -> Sequence[Mapping[str, Any]]:
        """Name, index, shape and type of each output."""
        ...

    def set_tensor(self, tensor_index: int, value: Array) -> None:
        """Copy an array into an input."""
        ...

    def get_tensor(self, tensor_index: int) -> Array:
        """A copy of a tensor."""
        ...

    def invoke(self) -> None:
        """Run the model once."""
        ...


@attrs.frozen
class Timing:
    """Milliseconds from NumPy arrays to NumPy arrays."""

    median: float
    fastest: float
    slowest: float


def run_once(runner: Runner, inputs: Mapping[int, Array]) -> list[Array]:
    """Inputs by tensor index in, outputs in the model's order out."""
    for index, array in inputs.items():
        runner.set_tensor(index, array)
    runner.invoke()
    return [runner.get_tensor(int(d["index"])) for d in runner.get_output_details()]


def time_runs(call: Callable[[], object], runs: int) -> Timing:
    """Time ``runs`` calls, after a few that do not count."""
    for _ in range(min(_WARM_UP, runs)):
        call()
    times = []
    with console.counting() as progress:
        for _ in progress.track(range(runs), description="measuring"):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return Timing(float(np.median(times)), min(times), max(times))


@attrs.frozen
class Difference:
    """How far an output is from another.

    Attributes:
        max_abs: Largest absolute difference of an element.
        relative_l2: Length of the difference over the length of the other; infinite where the
            other is all zeros and this is not.
    """

    max_abs: float
    relative_l2: float


def difference(output: Array, reference: Array) -> Difference:
    """Compare two outputs of one shape; a NaN that only one of them has is infinitely far, and so
    is another text."""
    if output.shape != reference.shape:
        return Difference(float("inf"), float("inf"))
    if not output.size:
        return Difference(0.0, 0.0)
    if output.dtype.kind in "OSU":  # texts, which are equal or are not
        texts = np.array_equal(output.astype(object), reference.astype(object))
        return Difference(0.0, 0.0) if texts else Difference(float("inf"), float("inf"))
    # f64 holds every f32 and every int up to 2^53, so that nothing is lost by comparing.
    kind = np.complex128 if "c" in (output.dtype.kind, reference.dtype.kind) else np.float64
    a, b = output.astype(kind).ravel(), reference.astype(kind).ravel()
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    gap = np.where(same, 0.0, np.abs(np.subtract(a, b, where=~same, out=np.zeros_like(a))))
    gap[np.isnan(gap)] = np.inf
    length = float(np.linalg.norm(np.where(np.isfinite(b), b, 0.0)))
    apart = float(np.linalg.norm(gap))
    relative = apart / length if length else (float("inf") if apart else 0.0)
    return Difference(float(gap.max()), relative)
