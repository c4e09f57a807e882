"""Race tflgpu against LiteRT on any models.

    python -m benchmarks.run --models a.tflite b.tflite --backends opencl --precisions f32 f32_f16

As `tflgpu benchmark --compare litert`, with the backends and precisions that are named. A runtime
that refuses a model is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tflgpu import DelegateOptions, Precision
from tflgpu.cli.benchmark import show
from tflgpu.plugins.registry import registry
from tflgpu.tools.benchmark import measure
from tflgpu.tools.contestants import Contestant, litert_cpu, litert_gpu, on_tflgpu
from tflgpu.tools.turns import Settings

from benchmarks.machine import machine, versions


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
    parser.add_argument("--duration", type=float, default=3.0, help="seconds for each")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds for each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file to write everything to")
    given = parser.parse_args()
    for name in ("duration", "litert_threads"):
        if getattr(given, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} is more than 0")
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
    device = int(given.device) if given.device and given.device.isdigit() else given.device
    found = [litert_cpu(given.litert_threads)]
    for backend in backends:
        for precision in map(Precision, given.precisions):
            options = DelegateOptions(backend=backend, device=device, precision=precision)
            found.append(on_tflgpu(options))
    if given.litert_gpu:
        # It has f32 and f16; where f16 goes is its own business.
        wanted = dict.fromkeys("f32" if p == "f32" else "f16" for p in given.precisions)
        found += [litert_gpu(p) for p in wanted]
    return found


def main() -> None:
    """Race, model by model; what was measured is written after each, so that a crash of a
    native runtime loses only the model at hand."""
    given = _arguments()
    models = [find_model(m) for m in given.models]
    contestants = _contestants(given)
    settings = Settings(duration=given.duration, warm_up=given.warm_up, seed=given.seed)
    report: dict[str, Any] = {
        "command": sys.argv,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "models": {},
    }
    for model in models:
        found = measure(model, contestants, settings)
        show(found)
        report["models"][model.stem] = [
            m.to_dict() | {"times": m.times} for m in found.measurements
        ]
        if given.json is not None:
            given.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
