"""Race tflgpu against LiteRT on any models.

    python -m benchmarks.run --models a.tflite b.tflite --backends opencl --precisions f32 f32_f16

Everyone runs in this process and takes turns, NumPy in to NumPy out, on fresh inputs. A runtime
that refuses a model is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
from tflgpu.cli import console
from tflgpu.plugins.registry import registry

from benchmarks.contestants import Contestant, litert_cpu, litert_gpu, tflgpu_on
from benchmarks.machine import machine, versions
from benchmarks.rounds import Result, race


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL",
                        help="files, or names of files in $TFLGPU_MODELS")  # fmt: skip
    parser.add_argument(
        "--backends",
        nargs="*",
        metavar="BACKEND",
        help="default: all that have a device here, references left out",
    )
    parser.add_argument("--device", help="index or part of a name, for every backend")
    parser.add_argument("--precisions", nargs="+", default=["f32"],
                        choices=["f32", "f16", "f32_f16"])  # fmt: skip
    parser.add_argument("--litert-threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--litert-gpu", action="store_true", help="let LiteRT's GPU take part")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to write everything to")
    given = parser.parse_args()
    for name in ("rounds", "litert_threads"):
        if getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is at least 1")
    return given


def find_model(name: str) -> Path:
    """A file by its path, or by its name in the folder $TFLGPU_MODELS."""
    candidates = [Path(name)]
    folder = os.environ.get("TFLGPU_MODELS")
    if folder:
        candidates += [Path(folder) / name, Path(folder) / f"{name}.tflite"]
    for path in candidates:
        if path.is_file():
            return path
    raise SystemExit(f"there is no model {name}; looked at {', '.join(map(str, candidates))}")


def _contestants(given: argparse.Namespace) -> list[Contestant]:
    known = registry()
    backends = given.backends
    if backends is None:
        backends = [
            n for n, i in known.backends.items() if i.rank >= 0 and known.probe(n).available
        ]
    found = [tflgpu_on(b, p, given.device) for b in backends for p in given.precisions]
    if given.litert_gpu:
        # It has f32 and f16; where f16 goes is its own business.
        wanted = dict.fromkeys("f32" if p == "f32" else "f16" for p in given.precisions)
        found += [litert_gpu(p) for p in wanted]
    return found


def _show(model: Path, results: Sequence[Result]) -> None:
    numbers = ("median ms", "10 % to 90 %", "speed", "init ms", "relative L2")
    table = console.table(model.stem, "", "precision", *numbers, "", right=numbers)
    baseline = results[0].median_ms
    for r in results:
        if r.failure:
            table.add_row(r.contestant, r.precision, "", "", "", "", "", f"out: {r.failure}")
            continue
        table.add_row(
            r.contestant,
            r.precision,
            f"{r.median_ms:.3f}",
            f"{r.quantile(0.1):.3f} to {r.quantile(0.9):.3f}",
            f"{baseline / r.median_ms:.2f}x",
            f"{r.init_ms or 0:.0f}",
            "" if r.relative_l2 is None or r is results[0] else f"{r.relative_l2:.1e}",
            r.note,
        )
    console.show(table)


def _as_json(result: Result) -> dict[str, Any]:
    timed = {}
    if result.times_ms:
        timed = {"median_ms": result.median_ms, "p10_ms": result.quantile(0.1),
                 "p90_ms": result.quantile(0.9)}  # fmt: skip
    return {**attrs.asdict(result), **timed}


def main() -> None:
    """Race, model by model; what was measured is written after each, so that a crash of a
    native runtime loses only the model at hand."""
    given = _arguments()
    models = [find_model(m) for m in given.models]
    contestants = _contestants(given)
    report: dict[str, Any] = {
        "command": sys.argv,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "models": {},
    }
    for model in models:
        results = race(
            model,
            contestants,
            yardstick=litert_cpu(given.litert_threads),
            rounds=given.rounds,
            warm_up=given.warm_up,
            seed=given.seed,
        )
        _show(model, results)
        report["models"][model.stem] = [_as_json(r) for r in results]
        if given.json is not None:
            given.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
