"""One model: open every contestant, take turns, compare."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from tflgpu.cli import console
from tflgpu.ir.dtypes import Array
from tflgpu.tools.difference import difference
from tflgpu.tools.runs import random_input

from benchmarks.contestants import Contestant, LiteRTCpu, Opened

#: Input sets that take turns, so that no contestant sees the same bytes twice in a row.
SETS = 3

Inputs = Mapping[int, Array]


@attrs.define
class Result:
    """What one contestant did with one model; times in milliseconds.

    Attributes:
        failure: Why it did not finish; empty where it did.
        init_ms: From nothing to ready, compiling and uploading included.
        first_ms: The first run.
        times_ms: Every timed run, in order.
        relative_l2: Worst over inputs and outputs, against LiteRT on the CPU.
        max_abs: Likewise.
    """

    contestant: str
    precision: str
    note: str = ""
    failure: str = ""
    init_ms: float | None = None
    first_ms: float | None = None
    times_ms: list[float] = attrs.Factory(list)
    relative_l2: float | None = None
    max_abs: float | None = None

    def quantile(self, q: float) -> float:
        """Of the timed runs; NaN where there are none."""
        return float(np.quantile(self.times_ms, q)) if self.times_ms else float("nan")

    @property
    def median_ms(self) -> float:
        """The middle of the timed runs."""
        return self.quantile(0.5)


@attrs.frozen
class _Running:
    """A contestant that is still in the race."""

    result: Result
    opened: Opened


def draw_inputs(path: Path, seed: int) -> list[Inputs]:
    """`SETS` sets of random inputs by tensor index."""
    details = LiteRTCpu(path, 1).interpreter.get_input_details()
    rng = np.random.default_rng(seed)
    return [{int(d["index"]): random_input(d, rng) for d in details} for _ in range(SETS)]


def race(
    path: Path,
    contestants: Sequence[Contestant],
    *,
    yardstick: Contestant,
    rounds: int,
    warm_up: int,
    seed: int,
) -> list[Result]:
    """Let them take turns on one model; the yardstick, LiteRT on the CPU, is one of them.

    One that fails, when it is opened or later, is out, and its result says why.
    """
    inputs = draw_inputs(path, seed)
    results: list[Result] = []
    running: list[_Running] = []
    expected: list[list[Array]] = []
    for contestant in (yardstick, *contestants):
        result = Result(contestant.name, contestant.precision)
        results.append(result)
        with console.working(f"{path.stem}: opening {contestant}"):
            opened = _open(contestant, path, result)
            outputs = None if opened is None else _check(opened, inputs, warm_up, result)
        if opened is None or outputs is None:
            continue
        if contestant is yardstick:
            expected = outputs
        if expected:
            _compare(outputs, expected, result)
        running.append(_Running(result, opened))
    _take_turns(path.stem, running, inputs, rounds)
    for item in running:
        item.opened.close()
    return results


def _open(contestant: Contestant, path: Path, result: Result) -> Opened | None:
    start = time.perf_counter()
    try:
        opened = contestant.open(path)
    except Exception as error:  # noqa: BLE001 - whatever another runtime throws is its result
        result.failure = _why(error)
        return None
    result.init_ms = 1e3 * (time.perf_counter() - start)
    return opened


def _check(
    opened: Opened, inputs: Sequence[Inputs], warm_up: int, result: Result
) -> list[list[Array]] | None:
    """Outputs of every input set, then the runs that do not count."""
    try:
        start = time.perf_counter()
        outputs = [opened.run(inputs[0])]
        result.first_ms = 1e3 * (time.perf_counter() - start)
        outputs += [opened.run(given) for given in inputs[1:]]
        for i in range(warm_up):
            opened.run(inputs[i % SETS])
        result.note = opened.note
    except Exception as error:  # noqa: BLE001
        result.failure = _why(error)
        opened.close()
        return None
    return outputs


def _compare(
    outputs: Sequence[Sequence[Array]], expected: Sequence[Sequence[Array]], result: Result
) -> None:
    gaps = [
        difference(ours, theirs)
        for one, other in zip(outputs, expected, strict=True)
        for ours, theirs in zip(one, other, strict=True)
    ]
    result.relative_l2 = max(g.relative_l2 for g in gaps)
    result.max_abs = max(g.max_abs for g in gaps)


def _take_turns(
    title: str, running: Sequence[_Running], inputs: Sequence[Inputs], rounds: int
) -> None:
    """Round by round, everyone once; who begins changes, so that nobody always follows the
    same neighbour."""
    gc.collect()
    gc.disable()
    try:
        with console.counting() as progress:
            for i in progress.track(range(rounds), description=title):
                first = i % max(1, len(running))
                for item in (*running[first:], *running[:first]):
                    if not item.result.failure:
                        _turn(item, inputs[i % SETS])
    finally:
        gc.enable()


def _turn(item: _Running, inputs: Inputs) -> None:
    try:
        start = time.perf_counter()
        item.opened.run(inputs)
        item.result.times_ms.append(1e3 * (time.perf_counter() - start))
    except Exception as error:  # noqa: BLE001
        item.result.failure = _why(error)


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}"
