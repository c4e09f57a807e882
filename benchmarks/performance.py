"""docs/performance.md: how fast models are on this machine, written anew from measurements.

    python -m benchmarks.networks nets resnet50 vit_b vit_s decoder_f16 decoder_i8
    python -m benchmarks.performance --models nets/*.tflite mobilenet_v2_1.0_224_f32
        --backends vulkan opencl wgpu --peers torch litert --growth mobilenet_v2_1.0_224_f32
        --page docs/performance.md

Each number is the median of the medians of several processes, each of which runs every model once
(`benchmarks.growth.run_time`). Peers run in the same command: torch the networks that
`benchmarks.torch_networks` has, LiteRT all models on its threads; one that is measured elsewhere is
a file: ``{"peer": {"model": milliseconds}}``. ``--json`` keeps all that was measured, and
``--from`` writes a page of such files without measuring anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu import GpuDelegate, Interpreter, TflgpuError
from tflgpu.plugins.registry import registry
from tflgpu.tools.benchmark import measure as race
from tflgpu.tools.contestants import litert_cpu
from tflgpu.tools.turns import Settings

from benchmarks import torch_networks
from benchmarks.growth import BATCHES, SIDES, Growth, measure, plot, run_time
from benchmarks.machine import versions
from benchmarks.run import find_model

_HOW = """\
Milliseconds from NumPy inputs to NumPy outputs: the median of the medians of as many processes as
stand in brackets, each behind a warm-up as long as the measurement. Peers ran in the same hour,
with the same weights.
"""
_GROWTH = """\
## Growth

Milliseconds of a run by its size. The worst step is the most that the next size costs over what its
items say: 1 is linear, less is better. Pictures show the time of one item (of a batch of one, or of
224 x 224 pixels).
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _turn(given: argparse.Namespace) -> None:
    """Be one of the processes: a line of JSON for each model, its name and median milliseconds."""
    (backend,), (precision,) = given.backends, given.precisions
    for model in map(find_model, given.models):
        try:
            with (
                GpuDelegate(backend=backend, precision=precision) as delegate,
                Interpreter(str(model), experimental_delegates=[delegate]) as interpreter,
            ):
                print(json.dumps([model.stem, run_time(interpreter, given.seconds)]), flush=True)
        except TflgpuError as error:
            print(f"{model.stem} on {backend}: {error}", file=sys.stderr, flush=True)


def _times(given: argparse.Namespace) -> Iterator[tuple[str, str, float]]:
    """The model's name, the column, and milliseconds."""
    models = [find_model(name) for name in given.models]
    for backend in given.backends if models else ():
        for precision in given.precisions:
            turn = [sys.executable, "-m", "benchmarks.performance", "--turn"]
            turn += ["--backends", backend, "--precisions", precision]
            turn += ["--seconds", str(given.seconds), "--models", *map(str, models)]
            medians: dict[str, list[float]] = defaultdict(list)
            for _ in range(given.processes):
                for line in subprocess.check_output(turn, text=True).splitlines():
                    name, median = json.loads(line)
                    medians[name].append(median)
            for name, several in medians.items():
                print(name, backend, precision, *(f"{ms:.3f}" for ms in several), flush=True)
                yield name, f"{backend} {precision} ({given.processes})", float(np.median(several))
    for peer in given.peers:
        if peer == "torch":
            yield from _torch([model.stem for model in models], given.seconds)
        elif peer == "litert":
            yield from _litert(models, given.litert_threads, given.seconds)
        else:
            content = json.loads(Path(peer).read_text(encoding="utf-8"))
            for column, times in content.items():
                yield from ((name, column, ms) for name, ms in times.items())


def _torch(models: Sequence[str], seconds: float) -> Iterator[tuple[str, str, float]]:
    for name in models:
        if name in torch_networks.NAMES:
            yield name, "torch f16, CUDA graph", torch_networks.measure(name, 1, seconds)[0]


def _litert(
    models: Sequence[Path], threads: int, seconds: float
) -> Iterator[tuple[str, str, float]]:
    settings = Settings(duration=seconds, warm_up=seconds)
    for model in models:
        (found,) = race(model, [litert_cpu(threads)], settings).measurements
        if found.latency is None:
            print(f"{model.stem} LiteRT: {found.failure}", flush=True)
        else:
            yield model.stem, f"LiteRT, {threads} threads", found.latency.p50


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    """All that a page is made of, as `--json` keeps it."""
    times: dict[str, dict[str, float]] = {}
    for name, column, ms in _times(given):
        times.setdefault(name, {})[column] = ms
        print(f"{name} {column}: {ms:.3f} ms", flush=True)
    growths: list[Growth] = []
    if given.growth:
        model, sizes = find_model(given.growth), (given.batches, given.sides)
        both = measure(model, given.backends, given.precisions[0], given.seconds / 2, *sizes)
        growths = [line for lines in both for line in lines]
    known, used = registry(), versions()
    every = [d for name in known.backends for d in known.probe(name).devices if d.is_gpu]
    devices = "; ".join(dict.fromkeys(f"{d.name} ({d.driver})" for d in every)) or "no GPU"
    said = f"{datetime.now(timezone.utc):%F} with tflgpu {used['tflgpu']}, commit {used['commit']}"
    return {
        "where": f"{said}, on: {devices}",
        "times": times,
        "growth": [attrs.asdict(line) for line in growths],
    }


def _page(found: Sequence[Mapping[str, Any]], page: Path) -> str:
    """What was measured, by one command or several."""
    times: dict[str, dict[str, float]] = {}
    for each in found:
        for name, row in each["times"].items():
            times.setdefault(name, {}).update(row)
    columns = list(dict.fromkeys(column for row in times.values() for column in row))
    places = "; ".join(dict.fromkeys(each["where"] for each in found))
    rows = ([name, *(_milliseconds(row.get(c)) for c in columns)] for name, row in times.items())
    sections = [
        "# Performance\n",
        f"Written by `python -m benchmarks.performance` on {places}.\n",
        _HOW,
        _table(["model", *columns], rows),
    ]
    growths = [Growth(**line) for each in found for line in each["growth"]]
    if growths:
        sections.append(_GROWTH)
    for by_side, axis, name in ((False, "images", "batches"), (True, "pixels a side", "sides")):
        lines = [line for line in growths if line.by_side == by_side]
        if lines:
            sections.append(_growth(lines, axis, page.with_name(f"growth_{name}.svg")))
    return "\n".join(sections)


def _growth(lines: Sequence[Growth], axis: str, picture: Path) -> str:
    picture.write_text(plot(lines, axis), encoding="utf-8")
    sizes = sorted({size for line in lines for size in line.sizes})
    head = [axis, *map(str, sizes), "worst step"]
    rows = []
    for line in lines:
        times = dict(zip(line.sizes, line.milliseconds, strict=True))
        cells = [_milliseconds(times.get(size)) for size in sizes]
        rows.append([line.label, *cells, f"{line.worst:.2f}"])
    return f"{_table(head, rows)}\n![Time of an item by {axis}]({picture.name})\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[], metavar="MODEL")
    parser.add_argument("--backends", nargs="*", default=[], metavar="BACKEND")
    parser.add_argument("--precisions", nargs="+", default=["f32_f16", "f16"])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of warm-up, and of measuring")
    parser.add_argument("--peers", nargs="*", default=[], metavar="PEER",
                        help="torch, litert, or a file")  # fmt: skip
    parser.add_argument("--litert-threads", type=int, default=8)
    parser.add_argument("--growth", metavar="MODEL", help="of images whose size may change")
    parser.add_argument("--batches", nargs="*", type=int, default=BATCHES, metavar="N")
    parser.add_argument("--sides", nargs="*", type=int, default=SIDES, metavar="PIXELS")
    parser.add_argument("--json", type=Path, help="a file for all that was measured")
    parser.add_argument("--from", nargs="*", type=Path, default=[], metavar="FILE", dest="kept",
                        help="what was measured before")  # fmt: skip
    parser.add_argument("--page", type=Path)
    parser.add_argument("--turn", action="store_true", help="be one of the processes")
    given = parser.parse_args()
    if given.turn:
        _turn(given)
        return
    found = [json.loads(path.read_text(encoding="utf-8")) for path in given.kept]
    if given.models or given.growth or given.peers:
        found.append(_measured(given))
        if given.json:
            given.json.write_text(json.dumps(found[-1], indent=1), encoding="utf-8")
    if given.page:
        given.page.write_text(_page(found, given.page), encoding="utf-8")


if __name__ == "__main__":
    main()
