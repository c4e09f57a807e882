"""What LiteRT as the host adds to an invoke, by turns with tflgpu's own interpreter.

    python -m benchmarks.host --models mobilenet_v1_0.25_224_float --backends opencl vulkan

Both run the same model on the same delegate; inputs are set once, results are not fetched. The
first line is a model of one operator whose device does nothing, so that only the way there is
timed: with an input of 16 numbers, and with one of a 224 x 224 image.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import numpy as np
import tflgpu
from ai_edge_litert.interpreter import Interpreter
from tflgpu.hosts import callbacks
from tflgpu.hosts.kernel import SubsetKernel
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from benchmarks.run import find_model


def main() -> None:
    """Print one line a model and backend."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    small, image = _empty(20_000, 16), _empty(3_000, 224 * 224 * 3)
    print(f"LiteRT and an empty session: {small:.1f} us, with an image {image:.1f} us")
    for backend in given.backends:
        with tflgpu.GpuDelegate(backend=backend) as delegate:
            for name in given.models:
                path = str(find_model(name))
                inside = Interpreter(path, experimental_delegates=[delegate])
                inside.allocate_tensors()
                with tflgpu.Interpreter(path, experimental_delegates=[delegate]) as own:
                    own.allocate_tensors()
                    ours, theirs = _race([own.invoke, inside.invoke], given.rounds)
                print(
                    f"{backend} {name}: tflgpu.Interpreter {ours:.1f} us, LiteRT {theirs:.1f} us, "
                    f"added {theirs - ours:.1f} us ({delegate.reports[-1].summary})"
                )
                del inside


def _empty(rounds: int, numbers: int) -> float:
    axis = TensorSpec("axis", (1,), DType.I32, [1])
    tensors = [TensorSpec("x", (1, numbers)), axis, TensorSpec("y", (1,))]
    model = write_model(ModelSpec(tensors, [OperatorSpec("SUM", {}, (0, 1), (2,))], (0,), (2,)))
    with tflgpu.GpuDelegate(backend="cpu_ref") as delegate:
        interpreter = Interpreter(model_content=model, experimental_delegates=[delegate])
        interpreter.allocate_tensors()
        for kernel, _ in callbacks._kernels.values():  # noqa: SLF001
            if isinstance(kernel, SubsetKernel):
                setattr(kernel._session, "run", lambda: None)  # noqa: B010, SLF001
        return _race([interpreter.invoke], rounds)[0]


def _race(contestants: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Medians in microseconds, taking turns."""
    times: list[list[float]] = [[] for _ in contestants]
    for turn in range(rounds + rounds // 10):
        for contestant, taken in zip(contestants, times, strict=True):
            start = time.perf_counter()
            contestant()
            if turn >= rounds // 10:
                taken.append(time.perf_counter() - start)
    return [float(np.median(taken)) * 1e6 for taken in times]


if __name__ == "__main__":
    main()
