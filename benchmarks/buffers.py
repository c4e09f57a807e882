"""An invoke with input and output in buffers of the GPU, against one with arrays of the host.

    python -m benchmarks.buffers --backends opencl vulkan wgpu --precision f32_f16

A line for each backend and way: milliseconds of a run (the median, and the 90th percentile), and
the bytes that a run copies between host and device. What comes out is compared among the ways.
Ways:

    set, invoke, get   set_tensor, invoke and get_tensor, as scripts for TensorFlow Lite do
    invoke             the same without setting and getting: what a run itself copies
    numpy              invoke, with input and output bound to NumPy arrays
    numpy, in pages    the same with arrays of allocate_array
    buffers            invoke, with both bound to buffers of the device
    torch, cpu         invoke, with both bound to PyTorch's tensors in host memory, by DLPack
    torch, cuda        the same with tensors of CUDA

A backend or a package that is not there is one line that says so.
"""

from __future__ import annotations

import argparse
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tflgpu
from tflgpu.errors import TflgpuError

from benchmarks.run import find_model

_Way = Callable[[tflgpu.Interpreter, Any, int, int], "_Ready"]


class _Ready:
    """A way made ready: what a run is, and what reads the result afterwards."""

    def __init__(self, run: Callable[[], object], read: Callable[[], Any]) -> None:
        self.run, self.read = run, read


def _set_and_get(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
    def run() -> None:
        one.set_tensor(at, x)
        one.invoke()
        one.get_tensor(out)

    return _Ready(run, lambda: one.get_tensor(out))


def _invoke(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
    one.set_tensor(at, x)
    return _Ready(one.invoke, lambda: one.get_tensor(out))


def _numpy(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
    y = np.zeros_like(one.get_tensor(out))
    one.bind_input(at, x)
    one.bind_output(out, y)
    return _Ready(one.invoke, lambda: y)


def _pages(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
    given, found = one.allocate_array(at), one.allocate_array(out)
    given[...] = x
    one.bind_input(at, given)
    one.bind_output(out, found)
    return _Ready(one.invoke, lambda: found)


def _buffers(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
    given, found = one.allocate_buffer(at), one.allocate_buffer(out)
    given.write(x)
    one.bind_input(at, given)
    one.bind_output(out, found)
    return _Ready(one.invoke, found.read)


def _torch(place: str) -> _Way:
    def ready(one: tflgpu.Interpreter, x: Any, at: int, out: int) -> _Ready:
        torch = importlib.import_module("torch")
        if place == "cuda" and not torch.cuda.is_available():
            raise ImportError("this PyTorch has no CUDA device")
        given = torch.from_numpy(x.copy()).to(place)
        found = torch.zeros(one.get_tensor(out).shape, device=place)
        one.bind_input(at, given)
        one.bind_output(out, found)
        return _Ready(one.invoke, lambda: found.cpu().numpy())

    return ready


_WAYS: dict[str, _Way] = {
    "set, invoke, get": _set_and_get,
    "invoke": _invoke,
    "numpy": _numpy,
    "numpy, in pages": _pages,
    "buffers": _buffers,
    "torch, cpu": _torch("cpu"),
    "torch, cuda": _torch("cuda"),
}


def _lines(delegate: Any, name: str, backend: str, rounds: int, warm_up: int) -> Iterator[str]:
    with tflgpu.Interpreter(find_model(name), experimental_delegates=[delegate]) as one:
        one.allocate_tensors()
        (given,), (found, *_) = one.get_input_details(), one.get_output_details()
        x = np.random.default_rng(0).uniform(-1, 1, given["shape"]).astype(given["dtype"])
        expected: Any = None
        for way, prepare in _WAYS.items():
            label = f"{backend:8} {way:18}"
            one.unbind()
            try:
                ready = prepare(one, x, given["index"], found["index"])
            except (ImportError, TflgpuError) as error:
                yield f"{label} {'-':>9} {'-':>9} {'-':>11} {'-':>11}   {error}"
                continue
            for _ in range(warm_up):
                ready.run()
            one.reset_copied()
            times = np.empty(rounds)
            for i in range(rounds):
                start = time.perf_counter()
                ready.run()
                times[i] = time.perf_counter() - start
            sent, fetched = one.copied.to_device // rounds, one.copied.to_host // rounds
            result = np.array(ready.read())
            expected = result if expected is None else expected
            same = "" if np.array_equal(result, expected) else "   DIFFERENT RESULTS"
            median, tail = np.quantile(times, [0.5, 0.9]) * 1e3
            yield f"{label} {median:9.3f} {tail:9.3f} {sent:11,} {fetched:11,}{same}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="deeplabv3_257_mv_gpu", metavar="MODEL")
    parser.add_argument("--backends", nargs="+", default=["opencl", "vulkan", "wgpu"])
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--warm-up", type=int, default=30)
    given = parser.parse_args()
    print(
        f"{'backend':8} {'way':18} {'ms':>9} {'ms, 90 %':>9} {'B to device':>11} {'B to host':>11}"
    )
    for backend in given.backends:
        try:
            delegate = tflgpu.GpuDelegate(backend=backend, precision=given.precision)
        except TflgpuError as error:
            print(f"{backend:8} {'-':18} {error}")
            continue
        with delegate:
            info: Any = delegate.device
            for line in _lines(delegate, given.model, backend, given.rounds, given.warm_up):
                print(line, flush=True)
            print(f"# {backend}: {info.info.name}, {info.info.driver}, {delegate.precision.value}")


if __name__ == "__main__":
    main()
