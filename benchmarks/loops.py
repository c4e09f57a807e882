"""A loop and a state: what control flow costs beside LiteRT's CPU.

    python -m benchmarks.loops --backend opencl

Three models that are written here. "while" runs a recurrent body 100 times by WHILE: one invoke.
"stream" keeps its state in a variable, and is called 1,000 times; so is "lstm", a
UNIDIRECTIONAL_SEQUENCE_LSTM of one time step a call, whose state is two state tensors. All in turns
in one process, NumPy in to NumPy out: LiteRT's own interpreter (its default kernels, one thread
unless `--threads`), tflgpu with a delegate on the backend, and tflgpu without one. Results are
compared before anything is timed; a fast call that lost its state would be worth nothing.

Of a turn on the device it also says how many runs were submitted, how often a buffer was read or
written by itself, and how many bytes were copied between host and device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tflgpu import GpuDelegate, Interpreter
from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.plan_recording import BasePlanRecording
from tflgpu.cli import console
from tflgpu.ir.dtypes import Array, DType
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from benchmarks.machine import machine, versions
from benchmarks.streaming import lstm

_I32 = DType.I32
_TANH = 4
_OFF = 2e-3  # of results of at most 1, after 100 rounds


def _weights(size: int) -> list[TensorSpec]:
    rng = np.random.default_rng(1)
    drawn = (rng.standard_normal((size, 2 * size)) / np.sqrt(2 * size)).astype(np.float32)
    return [
        TensorSpec("w", drawn.shape, data=drawn),
        TensorSpec("b", (size,), data=np.zeros(size, np.float32)),
    ]


def loop_model(size: int, rounds: int) -> bytes:
    """``h = tanh(w [x[i], h] + b)`` for each row of x, f32[rounds, 1, size]."""
    i, h, xs = (
        TensorSpec("i", (), _I32),
        TensorSpec("h", (1, size)),
        TensorSpec("xs", (rounds, 1, size)),
    )
    state = [i, h, xs]
    cond = SubgraphSpec(
        [*state, TensorSpec("n", (), _I32, data=np.array(rounds, np.int32)),
         TensorSpec("more", (), DType.BOOL)],
        [OperatorSpec("LESS", {}, [0, 3], [4])], [0, 1, 2], [4], "cond",
    )  # fmt: skip
    body = SubgraphSpec(
        [
            *state, *_weights(size), TensorSpec("one", (), _I32, data=np.array(1, np.int32)),
            TensorSpec("next", (), _I32), TensorSpec("x", (1, size)), TensorSpec("xh", (1,
            2 * size)),
            TensorSpec("z", (1, size)), TensorSpec("new", (1, size)),
        ],
        [
            OperatorSpec("ADD", {}, [0, 5], [6]),
            OperatorSpec("GATHER", {"axis": 0}, [2, 0], [7]),
            OperatorSpec("CONCATENATION", {"axis": 1}, [7, 1], [8]),
            OperatorSpec("FULLY_CONNECTED", {}, [8, 3, 4], [9]),
            OperatorSpec("TANH", {}, [9], [10]),
        ],
        [0, 1, 2], [6, 10, 2], "body",
    )  # fmt: skip
    main = [
        xs, TensorSpec("zero", (), _I32, data=np.array(0, np.int32)),
        TensorSpec("start", (1, size), data=np.zeros((1, size), np.float32)),
        TensorSpec("io", (), _I32), TensorSpec("ho", (1, size)), TensorSpec("xo", (rounds, 1,
        size)),
    ]  # fmt: skip
    loop = OperatorSpec(
        "WHILE", {"cond_subgraph_index": 1, "body_subgraph_index": 2}, [1, 2, 0], [3, 4, 5]
    )
    return write_model(ModelSpec(main, [loop], [0], [4], subgraphs=[cond, body]))


def stream_model(size: int) -> bytes:
    """The same step, of one row at a time; h is a variable."""
    handle = OperatorSpec("VAR_HANDLE", {"shared_name": "h"}, [], [1])
    tensors = [
        TensorSpec("x", (1, size)), TensorSpec("handle", (), DType.RESOURCE),
        TensorSpec("h", (1, size)), *_weights(size), TensorSpec("xh", (1, 2 * size)),
        TensorSpec("z", (1, size)), TensorSpec("new", (1, size)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("CALL_ONCE", {"init_subgraph_index": 1}, [], []),
        handle,
        OperatorSpec("READ_VARIABLE", {}, [1], [2]),
        OperatorSpec("CONCATENATION", {"axis": 1}, [0, 2], [5]),
        OperatorSpec("FULLY_CONNECTED", {}, [5, 3, 4], [6]),
        OperatorSpec("TANH", {}, [6], [7]),
        OperatorSpec("ASSIGN_VARIABLE", {}, [1, 7], []),
    ]
    start = TensorSpec("start", (1, size), data=np.zeros((1, size), np.float32))
    init = SubgraphSpec(
        [TensorSpec("handle", (), DType.RESOURCE), start],
        [OperatorSpec("VAR_HANDLE", {"shared_name": "h"}, [], [0]),
         OperatorSpec("ASSIGN_VARIABLE", {}, [0, 1], [])],
        [], [], "init",
    )  # fmt: skip
    return write_model(ModelSpec(tensors, operators, [0], [7], subgraphs=[init]))


class Counts:
    """What devices that run kernels are asked to do.

    Attributes:
        runs: Recordings run or submitted.
        transfers: Buffers read or written by themselves.
    """

    def __init__(self) -> None:
        self.runs = self.transfers = 0
        for cls, names, kind in (
            (BasePlanRecording, ("run", "submit"), "runs"),
            (BaseBuffer, ("read", "write"), "transfers"),
        ):
            for name in names:
                setattr(cls, name, self._counted(getattr(cls, name), kind))

    def _counted(self, method: Any, kind: str) -> Any:
        def counted(*args: Any) -> Any:
            setattr(self, kind, getattr(self, kind) + 1)
            return method(*args)

        return counted

    def of_turn(self, interpreter: Interpreter, turn: Callable[[], object]) -> dict[str, float]:
        """What a turn takes."""
        before = self.runs, self.transfers
        interpreter.reset_copied()
        turn()
        copied = interpreter.copied
        return {
            "runs": self.runs - before[0],
            "transfers": self.transfers - before[1],
            "to_device": copied.to_device,
            "to_host": copied.to_host,
        }


def _caller(interpreter: Any) -> Callable[[Array], Array]:
    interpreter.allocate_tensors()
    (given,), (wanted,) = interpreter.get_input_details(), interpreter.get_output_details()

    def call(x: Array) -> Array:
        interpreter.set_tensor(given["index"], x)
        interpreter.invoke()
        found: Array = interpreter.get_tensor(wanted["index"])
        return found

    return call


def contestants(
    model: bytes, options: DelegateOptions, stack: ExitStack
) -> tuple[Interpreter, dict[str, Callable[[Array], Array]]]:
    """The interpreter on the device; and by name what calls the model, LiteRT and that one
    first."""
    from ai_edge_litert.interpreter import Interpreter as LiteRT

    threads = options.num_threads
    delegate = stack.enter_context(GpuDelegate(options))
    on_device = stack.enter_context(
        Interpreter(model_content=model, experimental_delegates=[delegate], num_threads=threads)
    )
    plain = stack.enter_context(
        Interpreter(model_content=model, experimental_delegates=[], num_threads=threads)
    )
    return on_device, {
        "LiteRT": _caller(LiteRT(model_content=model, num_threads=threads)),
        f"tflgpu, {options.backend}": _caller(on_device),
        "tflgpu, no delegate": _caller(plain),
    }


def race(
    model: bytes, xs: Sequence[Array], options: DelegateOptions, turns: int, warm_up: int,
    counts: Counts,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Median seconds of a turn, which calls the model with each of ``xs``, and how far results are
    off LiteRT's; of the device also what a turn takes, as `Counts.of_turn` says it."""
    with ExitStack() as stack:
        on_device, callers = contestants(model, options, stack)
        found: dict[str, dict[str, float]] = {}
        wanted = [callers["LiteRT"](x) for x in xs]
        for name, call in callers.items():
            mine = wanted if name == "LiteRT" else [call(x) for x in xs]
            off = max(float(np.abs(a - b).max()) for a, b in zip(mine, wanted, strict=True))
            if not off <= _OFF and options.wanted_precision is not Precision.F16:
                raise SystemExit(f"{name} is off LiteRT's results by {off}")
            found[name] = {"off": off}
        times: dict[str, list[float]] = {name: [] for name in callers}
        order, rng = list(callers), np.random.default_rng(0)
        for at in range(warm_up + turns):
            rng.shuffle(order)
            for name in order:
                call = callers[name]
                start = time.perf_counter()
                for x in xs:
                    call(x)
                if at >= warm_up:
                    times[name].append(time.perf_counter() - start)
        for name, taken in times.items():
            found[name]["median_s"] = median(taken)
        call = callers[list(callers)[1]]
        found[list(callers)[1]] |= counts.of_turn(on_device, lambda: [call(x) for x in xs])
        return found


def main() -> None:
    """Race both models and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", help="index or part of a name")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument(
        "--threads", type=int, help="of the CPU's kernels; their own default otherwise"
    )
    parser.add_argument("--size", type=int, default=256, help="of the recurrent state")
    parser.add_argument("--rounds", type=int, default=100, help="of the loop")
    parser.add_argument("--calls", type=int, default=1000, help="of the streaming model")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file to write everything to")
    given = parser.parse_args()
    options = DelegateOptions(
        backend=given.backend, device=given.device, precision=given.precision,
        num_threads=given.threads,
    )  # fmt: skip
    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        return rng.uniform(-1, 1, shape).astype(np.float32)

    size = given.size
    races = {
        f"while, {given.rounds} rounds": (
            loop_model(size, given.rounds), [drawn(given.rounds, 1, size)],
        ),
        f"stream, {given.calls} calls": (
            stream_model(size), [drawn(1, size) for _ in range(given.calls)],
        ),
        f"lstm, {given.calls} calls": (
            lstm(size, size, 1), [drawn(1, 1, size) for _ in range(given.calls)],
        ),
    }  # fmt: skip
    results = {}
    counts = Counts()
    numbers = ("median ms", "us a step", "off LiteRT", "runs", "transfers", "bytes in", "bytes out")
    table = console.table("", "", *numbers, right=numbers)
    for name, (model, xs) in races.items():
        results[name] = race(model, xs, options, given.turns, given.warm_up, counts)
        steps = given.rounds if len(xs) == 1 else len(xs)
        for who, told in results[name].items():
            seconds = told["median_s"]
            taken = [
                f"{told[n]:,}" if n in told else ""
                for n in ("runs", "transfers", "to_device", "to_host")
            ]
            table.add_row(
                f"{name}: {who}", f"{seconds * 1e3:.3f}", f"{seconds / steps * 1e6:.1f}",
                f"{told['off']:.1e}", *taken,
            )  # fmt: skip
    console.show(table)
    if given.json is not None:
        said = {"machine": machine(), "versions": versions(), "size": size, "races": results}
        given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
