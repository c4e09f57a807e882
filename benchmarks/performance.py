"""docs/performance.md: how fast models are on this machine, written anew from measurements.

    python -m benchmarks.networks nets resnet50 vit_b vit_s decoder_f16 decoder_i8
    python -m benchmarks.torch_networks resnet50 vit_b vit_s decoder_f16 --json torch.json
    python -m benchmarks.performance --models nets/*.tflite mobilenet_v2_1.0_224_f32
        --backends vulkan opencl wgpu --peers torch.json --growth mobilenet_v2_1.0_224_f32
        --page docs/performance.md

Each number is the median of the medians of several processes, each of which runs every model once
(`benchmarks.growth.run_time`). Peers are measured by commands of their own in the same hour; their
files say ``{"peer": {"model": milliseconds}}``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from tflgpu import GpuDelegate, Interpreter, TflgpuError
from tflgpu.plugins.registry import registry

from benchmarks.growth import Growth, measure, plot, run_time
from benchmarks.machine import versions
from benchmarks.run import find_model

_HOW = """\
Milliseconds from NumPy inputs to NumPy outputs: the median of several processes' medians, after a
warm-up that is long enough for the device's clocks to rise. Peers ran in the same hour, with the
same weights.
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


def _times(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds by the model's name and the column."""
    found: dict[str, dict[str, float]] = {find_model(model).stem: {} for model in given.models}
    for backend in given.backends:
        for precision in given.precisions:
            turn = [sys.executable, "-m", "benchmarks.performance", "--turn"]
            turn += ["--backends", backend, "--precisions", precision]
            turn += ["--seconds", str(given.seconds), "--models", *given.models]
            medians: dict[str, list[float]] = defaultdict(list)
            for _ in range(given.processes):
                for line in subprocess.check_output(turn, text=True).splitlines():
                    name, median = json.loads(line)
                    medians[name].append(median)
            for name, several in medians.items():
                found[name][f"{backend} {precision}"] = float(np.median(several))
                print(name, backend, precision, *(f"{ms:.3f}" for ms in several), flush=True)
    for peers in given.peers:
        for peer, times in json.loads(peers.read_text(encoding="utf-8")).items():
            for name, ms in times.items():
                found.setdefault(name, {})[peer] = ms
    return found


def _speed(times: Mapping[str, Mapping[str, float]]) -> str:
    columns = list(dict.fromkeys(column for row in times.values() for column in row))
    known, used = registry(), versions()
    every = [d for name in known.backends for d in known.probe(name).devices if d.is_gpu]
    devices = "; ".join(dict.fromkeys(f"{d.name} ({d.driver})" for d in every)) or "no GPU"
    written = f"Written by `python -m benchmarks.performance` on {datetime.now(timezone.utc):%F}"
    rows = ([name, *(_milliseconds(row.get(c)) for c in columns)] for name, row in times.items())
    return "\n".join([
        "# Performance\n",
        f"{written} with tflgpu {used['tflgpu']}, commit {used['commit']}, on: {devices}.\n",
        _HOW,
        _table(["model", *columns], rows),
    ])  # fmt: skip


def _growth(lines: Sequence[Growth], axis: str, picture: Path) -> str:
    picture.write_text(plot(lines, axis), encoding="utf-8")
    head = [axis, *map(str, lines[0].sizes), "worst step"]
    rows = ([g.label, *map(_milliseconds, g.milliseconds), f"{g.worst:.2f}"] for g in lines)
    return f"{_table(head, rows)}\n![Time of an item by {axis}]({picture.name})\n"


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--precisions", nargs="+", default=["f32_f16", "f16"])
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of warm-up, and of measuring")
    parser.add_argument("--peers", nargs="*", type=Path, default=[], metavar="FILE")
    parser.add_argument("--growth", metavar="MODEL", help="of images whose size may change")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--page", type=Path)
    where.add_argument("--turn", action="store_true", help="be one of the processes")
    given = parser.parse_args()
    if given.turn:
        _turn(given)
        return
    sections = [_speed(_times(given))]
    if given.growth:
        model, seconds = find_model(given.growth), given.seconds / 2
        both = measure(model, given.backends, given.precisions[0], seconds)
        sections.append(_GROWTH)
        for lines, axis, name in zip(both, ("images", "pixels a side"), ("batches", "sides"),
                                     strict=True):  # fmt: skip
            if lines:
                sections.append(_growth(lines, axis, given.page.with_name(f"growth_{name}.svg")))
    given.page.write_text("\n".join(sections), encoding="utf-8")


if __name__ == "__main__":
    main()
