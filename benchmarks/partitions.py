"""What partitions that pay are worth: all on the CPU, all that is possible on the device, and what
`partitioning="gain"` chooses.

    python -m benchmarks.partitions --backend opencl

The three take turns in one process, NumPy in to NumPy out, and medians are compared. The CPU side
is what `tflgpu` uses on this machine (LiteRT's kernels, where ai-edge-litert is installed), with
`--threads` threads. Estimates are those of the report. Models are those for which the choice is not
clear: conformer (138 small operators), dtln (tiny) and mobilenet_v1_0.25, unless others are named.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter
from tflgpu.cli import console
from tflgpu.compiler.times import told
from tflgpu.interpreter.api import Interpreter as TflgpuInterpreter
from tflgpu.ir.dtypes import Array
from tflgpu.options import DelegateOptions

from benchmarks.machine import machine, versions
from benchmarks.run import find_model

_MODELS = ("litert_torchaudio_conformer", "dtln_model_quant_1", "mobilenet_v1_0.25_224_float")
_CPU, _ALL, _CHOSEN = "all on the CPU", "all that is possible", "chosen"
#: Medians of one thing differ by this much from one run of the benchmark to the next.
_NOISE = 1.05


@attrs.frozen
class Way:
    """One way to run a model.

    Attributes:
        name: Which.
        median_ms: Of the rounds.
        division: Operators that are not on the device, by index.
        delegated, total: Operators on the device, and in all.
        partitions: Parts on the device.
        estimate: Of the report, in words; "" where there is none.
    """

    name: str
    median_ms: float
    division: tuple[int, ...]
    delegated: int
    total: int
    partitions: int
    estimate: str


def _inputs(interpreter: TflgpuInterpreter, rng: np.random.Generator) -> list[tuple[int, Array]]:
    found = []
    for detail in interpreter.get_input_details():
        dtype = np.dtype(detail["dtype"])
        drawn = rng.uniform(0, 1, detail["shape"])
        found.append((int(detail["index"]), drawn.astype(dtype)))
    return found


def _runner(interpreter: TflgpuInterpreter, rng: np.random.Generator) -> Callable[[], None]:
    given = _inputs(interpreter, rng)
    wanted = [int(d["index"]) for d in interpreter.get_output_details()]

    def run() -> None:
        for index, array in given:
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        for index in wanted:
            interpreter.get_tensor(index)

    return run


def race(model: Path, options: DelegateOptions, rounds: int, warm_up: int) -> list[Way]:
    """Run a model in the three ways, in turns."""
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        runners: dict[str, Callable[[], None]] = {}
        interpreters: dict[str, TflgpuInterpreter] = {}
        for name, given in (
            (_CPU, None),
            (_ALL, options.changed(partitioning="all")),
            (_CHOSEN, options.changed(partitioning="gain")),
        ):
            delegates = [] if given is None else [stack.enter_context(GpuDelegate(given))]
            interpreter = stack.enter_context(
                Interpreter(
                    model, experimental_delegates=delegates, num_threads=options.num_threads
                )
            )
            interpreter.allocate_tensors()
            runners[name], interpreters[name] = _runner(interpreter, rng), interpreter
        times: dict[str, list[float]] = {name: [] for name in runners}
        turns = list(runners)
        for at in range(warm_up + rounds):
            rng.shuffle(turns)  # whoever comes after another pays for its caches
            for name in turns:
                start = time.perf_counter()
                runners[name]()
                if at >= warm_up:
                    times[name].append(time.perf_counter() - start)
        ways = []
        for name, interpreter in interpreters.items():
            report = interpreter.report
            estimate = "" if report.seconds is None else told(report.seconds)
            ways.append(
                Way(name, median(times[name]) * 1e3, tuple(sorted(r.node for r in report.refusals)),
                    report.delegated_nodes, report.total_nodes, report.partitions, estimate)
            )  # fmt: skip
        return ways


def main() -> None:
    """Race the models of the command line and print a table for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", required=True)
    parser.add_argument("--device", help="index or part of a name")
    parser.add_argument("--precision", default="f32", choices=["f32", "f16", "f32_f16"])
    parser.add_argument("--models", nargs="+", default=list(_MODELS), metavar="MODEL")
    parser.add_argument("--threads", type=int, help="of the CPU side; its own default otherwise")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--json", type=Path, help="file to write everything to")
    given = parser.parse_args()
    options = DelegateOptions(
        backend=given.backend, device=given.device, precision=given.precision,
        num_threads=given.threads,
    )  # fmt: skip
    results = {}
    for name in given.models:
        model = find_model(name)
        ways = race(model, options, given.rounds, given.warm_up)
        numbers = ("median ms", "on the device", "parts", "estimate")
        table = console.table(model.stem, "", *numbers, "", right=numbers)
        best = min(way.median_ms for way in ways)
        for way in ways:
            same = [w.name for w in ways if w is not way and w.division == way.division]
            verdict = ""
            if way.name == _CHOSEN and same:
                verdict = f"the same as {same[0]}, which differs by chance only"
            elif way.name == _CHOSEN:
                verdict = "as good as the best" if way.median_ms <= best * _NOISE else "BEATEN"
            table.add_row(
                way.name, f"{way.median_ms:.3f}", f"{way.delegated} of {way.total}",
                str(way.partitions), way.estimate, verdict,
            )  # fmt: skip
        console.show(table)
        results[model.stem] = [attrs.asdict(way) for way in ways]
    if given.json is not None:
        said = {"machine": machine(), "versions": versions(), "models": results}
        given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
