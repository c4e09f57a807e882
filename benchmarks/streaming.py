"""A streaming LSTM, called again and again: each call depends on the state that the one before
left.

    python -m benchmarks.streaming --backend vulkan
    python -m benchmarks.streaming --backend opencl --cells 512 --inputs 128 --times 10

The model is one UNIDIRECTIONAL_SEQUENCE_LSTM of batch 1, made here. It is called with the same
inputs by tflgpu on a device, by tflgpu without a delegate, and by LiteRT's CPU kernels, in turns of
100 calls, so that what else the machine does falls on all of them. Their outputs and states must
agree at the end: a fast call that lost its state would be worth nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

_TURN = 100
_CLOSE = 1e-3  # of the largest value


def lstm(inputs: int, cells: int, times: int) -> bytes:
    """A layer of so many cells, which is given so many time steps a call."""
    rng = np.random.default_rng(0)
    tensors = [TensorSpec("x", (1, times, inputs))]

    def constant(*shape: int) -> int:
        data = rng.normal(0, 1 / np.sqrt(shape[-1]), shape).astype(np.float32)
        tensors.append(TensorSpec(f"constant{len(tensors)}", shape, data=data))
        return len(tensors) - 1

    weights = [constant(cells, inputs) for _ in range(4)]
    recurrent = [constant(cells, cells) for _ in range(4)]
    biases = [constant(cells) for _ in range(4)]
    states = [len(tensors), len(tensors) + 1]
    tensors += [TensorSpec(name, (1, cells), is_variable=True) for name in ("hidden", "cell")]
    tensors.append(TensorSpec("y", (1, times, cells)))
    operands = [0, *weights, *recurrent, *[-1] * 3, *biases, -1, -1, *states]
    fields = {"fused_activation_function": 4, "time_major": False}
    op = OperatorSpec("UNIDIRECTIONAL_SEQUENCE_LSTM", fields, operands, [len(tensors) - 1], 1)
    return write_model(ModelSpec(tensors, [op], [0], [len(tensors) - 1]))


def caller(interpreter: Any) -> Callable[[Any], Any]:
    """NumPy to NumPy."""
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()

    def call(x: Any) -> Any:
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        return interpreter.get_tensor(made["index"])

    return call


def main() -> None:
    """Time the contestants of the command line and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="vulkan", help="tflgpu's (default: vulkan)")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--inputs", type=int, default=64)
    parser.add_argument("--cells", type=int, default=128)
    parser.add_argument("--times", type=int, default=1, help="time steps a call (default: 1)")
    parser.add_argument("--num-threads", type=int, default=1, help="of LiteRT (default: 1)")
    given = parser.parse_args()
    content = lstm(given.inputs, given.cells, given.times)
    xs = np.random.default_rng(1).normal(0, 1, (given.calls, 1, given.times, given.inputs))
    xs = xs.astype(np.float32)
    with GpuDelegate(
        backend=given.backend, device=given.device, precision=given.precision, allow_fallback=False
    ) as delegate:
        device = Interpreter(model_content=content, experimental_delegates=[delegate])
        contestants = {
            f"tflgpu, {given.backend}": device,
            "tflgpu, no delegate": Interpreter(model_content=content, experimental_delegates=[]),
            "LiteRT, CPU": LiteRT(model_content=content, num_threads=given.num_threads),
        }
        calls = {name: caller(each) for name, each in contestants.items()}
        print(device.report.summary)
        for name, call in calls.items():
            for x in xs[:20]:  # warm-up, which the reset takes back
                call(x)
            contestants[name].reset_all_variables()
        took: dict[str, list[float]] = {name: [] for name in calls}
        last = {}
        for start in range(0, given.calls, _TURN):
            for name, call in calls.items():
                for x in xs[start : start + _TURN]:
                    begun = time.perf_counter()
                    last[name] = call(x)
                    took[name].append(time.perf_counter() - begun)
        expected = last["LiteRT, CPU"]
        for name, seconds in took.items():
            off = float(np.abs(last[name] - expected).max() / np.abs(expected).max())
            us = np.array(seconds) * 1e6
            print(
                f"{name:24} {given.calls} calls: median {np.median(us):8.1f} us, 99 % "
                f"{np.quantile(us, 0.99):8.1f} us; off LiteRT's by {off:.1e} after the last"
            )
            if given.precision == "f32" and not off < _CLOSE:
                raise SystemExit(f"{name} does not compute what LiteRT does")
        device.close()


if __name__ == "__main__":
    main()
