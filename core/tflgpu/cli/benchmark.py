"""`tflgpu benchmark`: how fast models are here, as tables, JSON or comma-separated values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cli import console
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    CpuBackend,
    Device,
    Flags,
    Numerics,
    Precision,
    options_of,
    with_delegate_flags,
)
from tflgpu.errors import OptionError
from tflgpu.tools.benchmark import benchmark as measured
from tflgpu.tools.measurement import Benchmark, Measurement, to_csv
from tflgpu.tools.turns import Progress

_NOT_TOLD = "not told"
#: What speeds are relative to, where it takes part; else the first measurement.
_BASE = "LiteRT CPU"
#: Exit code where an operator is left to the CPU and that was not to be.
_NOT_DELEGATED = 1

Models = Annotated[list[Path], typer.Argument(help=".tflite files.", show_default=False)]


@with_delegate_flags
def benchmark(
    models: Models,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    cpu_backend: CpuBackend = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every backend here, in every precision.")
    ] = False,
    compare: Annotated[
        str, typer.Option(metavar="litert,litert-gpu", help="Time beside, by turns.")
    ] = "",
    hint: Annotated[
        str | None,
        typer.Option(metavar="latency|throughput", help="throughput: 3 runs in flight, of 8."),
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, metavar="N", help="Items of a run.")] = None,
    in_flight: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs under way at a time.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads that call copies of the model.")
    ] = None,
    duration: Annotated[float, typer.Option(metavar="SECONDS", help="Of timing each.")] = 3.0,
    warm_up: Annotated[float, typer.Option(metavar="SECONDS", help="Of runs before.")] = 1.0,
    starts: Annotated[bool, typer.Option(help="Time starts, in new processes.")] = True,
    energy: Annotated[bool, typer.Option(help="Measure it, a second more.")] = True,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of random inputs.")] = 0,
    require_full_delegation: Annotated[
        bool,
        typer.Option(
            "--require-full-delegation",
            help="Exit code 1 if the CPU runs an operator.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="A line for each measurement.")] = False,
    flags: Flags = NO_FLAGS,
) -> None:
    """Time models: latency or throughput, starts, memory, error, energy.

    docs/benchmark.md says how it is measured and what each number means.
    """
    if as_json and as_csv:
        raise OptionError("--json and --csv are two forms of the same; give one")
    options = options_of(backend, device, precision, numerics, flags, cpu_backend)
    found = []
    for model in models:
        with _progress(model) as progress:
            found.append(
                measured(
                    model,
                    options,
                    compare=[name.strip() for name in compare.split(",") if name.strip()],
                    all=every,
                    hint=hint,
                    batch=batch,
                    in_flight=in_flight,
                    threads=threads,
                    duration=duration,
                    warm_up=warm_up,
                    starts=starts,
                    energy=energy,
                    seed=seed,
                    progress=progress,
                )
            )
        if not as_json and not as_csv:
            show(found[-1])
    if as_json:
        console.show_json([each.to_dict() for each in found])
    if as_csv:
        console.plain(to_csv(found).rstrip())
    if all(m.failure for each in found for m in each.measurements):
        raise typer.Exit(console.ERROR)
    if require_full_delegation and not all(each.fully_delegated for each in found):
        console.fail("not every operator runs on the device, and --require-full-delegation is on")
        raise typer.Exit(_NOT_DELEGATED)


@contextmanager
def _progress(model: Path) -> Iterator[Progress]:
    """A bar; where stderr is no terminal, a line for each thing that begins."""
    with console.counting() as bar:
        task = bar.add_task(model.name, total=100)
        last = ""

        def tell(what: str, share: float) -> None:
            nonlocal last
            if what != last and not sys.stderr.isatty():
                console.err().print(f"{model.name}: {what} ...", markup=False)
            last = what
            bar.update(task, description=f"{model.name}: {what}", completed=100 * share)

        yield tell


def show(found: Benchmark) -> None:
    """Print one benchmark as tables."""
    timed = [m for m in found.measurements if m.latency is not None]
    _show_latency(found, timed)
    _show_stages([m for m in timed if m.stages is not None])
    _show_memory([m for m in timed if m.report is not None])
    _show_energy(timed)
    for m in found.measurements:
        console.say(f"{m.name}: {m.note or m.failure}")
        for warning in m.warnings:
            console.warn(f"{m.name}: {warning}")
    for note in found.notes:
        console.say(note)


def _show_latency(found: Benchmark, timed: Sequence[Measurement]) -> None:
    numbers = ("min", "p50", "p95", "p99", "mean", "deviation", "items/s", "speed", "error")
    settings = found.settings
    table = console.table(
        f"{found.model}: {settings}; milliseconds, NumPy to NumPy, for {settings.duration:g} s "
        f"after {settings.warm_up:g} s",
        "",
        *numbers,
        right=numbers,
        whole=numbers,
    )
    rates = [m.rate or 0.0 for m in sorted(timed, key=lambda m: m.runtime != _BASE)]
    base = rates[0] if rates else 0.0
    for m in timed:
        t = m.latency
        assert t is not None
        assert m.rate is not None
        times = (t.min, t.p50, t.p95, t.p99, t.mean, t.deviation)
        table.add_row(
            m.name,
            *(f"{time:.3f}" for time in times),
            f"{m.rate:.1f}",
            f"{m.rate / base:.2f}x" if len(timed) > 1 else "",
            "" if m.error is None or m.runtime == _BASE else f"{m.error.rms:.1e}",
        )
    console.show(table)


def _show_stages(timed: Sequence[Measurement]) -> None:
    parts = ("inputs", "run", "of it device", "upload", "download", "outputs")
    copied = ("bytes up", "bytes down")
    table = console.table("Of a call (medians, ms)", "", *parts, *copied, right=(*parts, *copied))
    for m in timed:
        s = m.stages
        assert s is not None
        told = (s.inputs, s.invoke, s.device, s.copies.upload, s.copies.download, s.outputs)
        table.add_row(
            m.name,
            *(_NOT_TOLD if ms is None else f"{ms:.3f}" for ms in told),
            *(_NOT_TOLD if n is None else f"{n:,}" for n in (s.to_device, s.to_host)),
        )
    if timed:
        console.show(table)
    for m in timed:
        if m.stages is not None and m.stages.copies.reason:
            console.say(f"{m.name}: {m.stages.copies.reason}")


def _show_memory(timed: Sequence[Measurement]) -> None:
    starts = ("device", "init", "first run")
    uses = ("arena", "weights", "staging", "host memory", "kernels")
    table = console.table(
        "Start (ms: with nothing kept / the next one) and memory (bytes)",
        "",
        *starts,
        *uses,
        right=(*starts, *uses),
    )
    for m in timed:
        times = [""] * len(starts)
        host = ""
        if m.cold is not None and m.kept is not None:
            pairs = [
                (m.cold.device, m.kept.device),
                (m.cold.init, m.kept.init),
                (m.cold.first, m.kept.first),
            ]
            times = ["" if a is None or b is None else f"{a:.0f} / {b:.0f}" for a, b in pairs]
            host = _NOT_TOLD if m.cold.host_memory is None else f"{m.cold.host_memory:,}"
        use = m.memory
        bytes_ = [_NOT_TOLD] * 3
        if use is not None:
            bytes_ = [f"{n:,}" for n in (use.arena, use.weights, use.staging)]
        dispatches = _NOT_TOLD if m.dispatches is None else str(m.dispatches)
        table.add_row(m.name, *times, *bytes_, host, dispatches)
    if timed:
        console.show(table)


def _show_energy(timed: Sequence[Measurement]) -> None:
    table = console.table("Energy (joules an item)", "", "GPU", "CPU", right=("GPU", "CPU"))
    reasons: dict[str, None] = {}
    for m in timed:
        if m.energy is None:
            continue
        reasons |= dict.fromkeys(m.energy.reasons)
        if m.energy.gpu is not None or m.energy.cpu is not None:
            told = (m.energy.gpu, m.energy.cpu)
            table.add_row(m.name, *(_NOT_TOLD if j is None else f"{j:.4g}" for j in told))
    if table.rows:
        console.show(table)
    for reason in reasons:
        console.say(reason)
