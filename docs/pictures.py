"""What the site shows: plots of measurements, and the pages and pictures that the command makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import tflgpu
from tflgpu.plugins.registry import registry

ROOT = Path(__file__).parents[1]
RACE = ROOT / "benchmarks" / "results" / "all_h200.json"
#: Runtimes in the plots, and their colours in the order of these.
_COLOURS = {"LiteRT CPU": "#888", "LiteRT GPU": "#c07a1c", "tflgpu": "#2f7d4f"}
_ROW, _LABEL, _WIDE, _NUMBER = 20, 170, 420, 110  # pixels
_PRECISION = "f16"


def bars(rows: Sequence[tuple[str, float, float, float, str]]) -> str:
    """An SVG of horizontal bars: each a label, a value, the ends of a line over it, and a colour.
    Text is in the colour of the page, so that it can be read on a dark one."""
    most = max(high for _, _, _, high, _ in rows)
    made = []
    for at, (label, value, low, high, colour) in enumerate(rows):
        y, wide = at * _ROW, _WIDE * value / most
        middle, ends = y + _ROW / 2, [_LABEL + _WIDE * end / most for end in (low, high)]
        made.append(
            f'<text x="{_LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect x="{_LABEL}" y="{y + 4}" width="{wide:.1f}" height="{_ROW - 8}" '
            f'fill="{colour}"/><path d="M{ends[0]:.1f} {middle:g}H{ends[1]:.1f}"/>'
            f'<text x="{_LABEL + _WIDE * high / most + 6:.1f}" y="{y + 14}">{value:.3f} ms</text>'
        )
    size = f'width="{_LABEL + _WIDE + _NUMBER}" height="{len(rows) * _ROW + 4}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="12" fill="currentColor" '
        f'stroke-width="1"><g stroke="none">{"".join(made)}</g></svg>'
    ).replace("<path ", '<path stroke="currentColor" ')


def race_page() -> str:
    """The page of the race against LiteRT: method, date, versions, a plot and a table a model."""
    race: dict[str, Any] = json.loads(RACE.read_text(encoding="utf-8"))
    machine, versions = race["machine"], race["versions"]
    gpu = next(d for d in machine["devices"] if d["is_gpu"])
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [
        "# Against LiteRT",
        "",
        (
            "How long a call takes, from NumPy inputs to NumPy outputs, against LiteRT's own CPU "
            "and GPU paths in the same process. Contestants take turns, so that what changes on "
            f"the machine meets all of them; bars are medians of {_rounds(race)} calls, lines go "
            "from the 10 % to the 90 % quantile. LiteRT's CPU computes in f32, the others in "
            f"{_PRECISION}. `tflgpu benchmark MODEL --all --compare litert` measures the same here "
            "([benchmark.md](../docs/benchmark.md))."
        ),
        "",
        (
            f"* **Measured** {race['started'][:10]} on one {gpu['name']} ({gpu['driver']}), "
            f"{machine['cpu']}, {machine['cpus']} cores, {machine['system']}."
        ),
        f"* **Versions** {told}.",
        f"* **Command** `{' '.join(race['command'])}`",
        "",
        (
            "The numbers, with how far outputs are from LiteRT's, and what else was found: "
            "[all_h200.md](all_h200.md)."
        ),
        "",
    ]
    for name, contestants in race["models"].items():
        lines += [f"## {name}", "", "```{raw} html", bars(_rows(contestants)), "```", ""]
    return "\n".join(lines)


def _rounds(race: Mapping[str, Any]) -> int:
    """How many calls each median is of."""
    return min(len(c["times_ms"]) for each in race["models"].values() for c in each)


def _rows(contestants: Sequence[Mapping[str, Any]]) -> list[tuple[str, float, float, float, str]]:
    shown = [c for c in contestants if not c["failure"]]
    shown = [c for c in shown if c["precision"] == _PRECISION or c["contestant"] == "LiteRT CPU"]
    return [
        (
            f"{c['contestant']} {c['precision']}",
            c["median_ms"],
            c["p10_ms"],
            c["p90_ms"],
            next(colour for name, colour in _COLOURS.items() if c["contestant"].startswith(name)),
        )
        for c in shown
    ]


def write_shown(folder: Path, static: Path) -> str:
    """Make pictures in a folder, and pages in another, with the demo's model and the examples'.
    Gives the page that shows them."""
    folder.mkdir()
    static.mkdir()
    model = ["model.tflite"]
    device = ["--backend", "cpu_ref", "--device", "1"]
    if registry().probe("opencl").available:
        device = ["--backend", "opencl"]  # it notes the times of its kernels
    _run(folder, "demo", "--save", ".")
    _run(folder, "profile", *model, *device, "--html", "profile.html")
    _run(folder, "check", *model, *device, "--data", "images", "--html", "check.html")
    table = tflgpu.profiles.report(str(folder / "model.tflite"), "adreno-740")._repr_html_()
    (folder / "inspect.html").write_text(f"<!doctype html>{table}", encoding="utf-8")
    scale = ["--mean", "0", "--std", "255"]
    _run(folder, "run", *model, "-i", "digit.png", *scale, "--save", "classify.png", *device)
    for task in ("detect", "segment"):
        _start(folder, [sys.executable, str(ROOT / "examples" / "tasks" / f"{task}.py")])
    for name in ("profile", "check", "inspect"):
        (folder / f"{name}.html").rename(static / f"{name}.html")
    pages = [
        ("Where the time goes", "profile", "`tflgpu profile MODEL --html FILE`"),
        ("Whether a device agrees", "check", "`tflgpu check MODEL --html FILE`"),
        ("What a device takes", "inspect", "`tflgpu.profiles.report(MODEL, NAME)` in a notebook"),
    ]
    lines = [
        "# What it looks like",
        "",
        (
            "Pages and pictures that the command made when this site was built, of `tflgpu demo`'s "
            "model and of those that `examples/tasks/` make."
        ),
        "",
    ]
    for title, name, command in pages:
        frame = f'<iframe src="../_static/{name}.html" style="width:100%;height:28em"></iframe>'
        lines += [f"## {title}", "", f"{command}:", "", "```{raw} html", frame, "```", ""]
    lines += ["## What is drawn", "", "`tflgpu run MODEL -i photo.jpg --save seen.png`:", ""]
    for alt, name in (("classes", "classify"), ("boxes", "found"), ("a mask", "mask")):
        lines += [f"![{alt}](../docs/generated/shown/{name}.png)", ""]
    return "\n".join(lines)


def _run(folder: Path, *arguments: str) -> None:
    _start(folder, [sys.executable, "-m", "tflgpu", *arguments])


def _start(folder: Path, command: Sequence[str]) -> None:
    environment = {**os.environ, "TFLGPU_CACHE_DIR": str(folder / "cache")}
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
