"""The table of `tflgpu inspect --memory`: what a model takes of each device's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tflgpu.cli import console
from tflgpu.cli.models import index_or_name
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import TflgpuError
from tflgpu.interpreter.estimate import estimate
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.options import numerics_of
from tflgpu.plugins.registry import registry
from tflgpu.runtime.estimate import Estimate

_NUMBERS = ("parts", "kernels", "on the CPU", "arena", "weights", "staging", "total")


@attrs.frozen
class _Line:
    info: DeviceInfo
    found: Estimate | None
    problem: str = ""


def show_memory(
    model: Path, backend: str | None, device: str | None, numerics: str | None, *, as_json: bool
) -> None:
    """Print it, for every device here that runs kernels, or the one that was asked for.

    Raises:
        TflgpuError: the one that was asked for is not there, or no estimate can be made on it.
    """
    lines = _asked(model, backend, device, numerics) if device or backend else _all(model, numerics)
    if as_json:
        file = {"model": str(model), "file_bytes": model.stat().st_size}
        console.show_json(file | {"devices": [_as_json(line) for line in lines]})
        return
    made = console.table(
        f"{model}: bytes of device memory",
        "backend",
        "device",
        "precision",
        *_NUMBERS,
        "why not",
        right=_NUMBERS,
    )
    for line in lines:
        known = line.found
        cells = [""] * len(_NUMBERS)
        if known is not None:
            use = known.memory
            counts = (len(known.parts), known.dispatches, known.on_cpu)
            cells = [f"{n:,}" for n in (*counts, use.arena, use.weights, use.staging, use.total)]
        precision = "" if known is None else known.precision
        made.add_row(line.info.backend, line.info.name, precision, *cells, line.problem)
    console.show(made)
    console.say(
        f"The file has {model.stat().st_size:,} bytes. Weights are there once for all models on a "
        "device that have equal ones"
    )


def _asked(
    model: Path, backend: str | None, device: str | None, numerics: str | None
) -> list[_Line]:
    kind = numerics_of("--numerics", numerics or "float")
    with GpuDelegate(
        backend=backend, device=index_or_name(device), quantized_numerics=kind
    ) as delegate:
        found = estimate(model, delegate=delegate)
        if delegate.device is None:
            why = "; ".join(delegate.choice.reasons)
            return [_Line(DeviceInfo("", 0, "none"), found, why)]
        return [_Line(delegate.device.info, found)]


def _all(model: Path, numerics: str | None) -> list[_Line]:
    known, lines = registry(), []
    for name in known.backends:
        for info in known.probe(name).devices:
            try:
                lines += _asked(model, name, str(info.index), numerics)
            except TflgpuError as error:
                lines.append(_Line(info, None, next(iter(str(error).splitlines()), "")))
    return lines


def _as_json(line: _Line) -> dict[str, Any]:
    told: dict[str, Any] = {"backend": line.info.backend, "device": line.info.name}
    if line.problem:
        told["why_not"] = line.problem
    if line.found is None:
        return told
    found = line.found
    return told | {
        "precision": found.precision,
        "parts": [attrs.asdict(part) for part in found.parts],
        "on_cpu": found.on_cpu,
        "dispatches": found.dispatches,
        "total": attrs.asdict(found.memory) | {"total": found.memory.total},
    }
