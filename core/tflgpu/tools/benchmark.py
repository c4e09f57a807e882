"""`benchmark`: how fast a model is here, with what it takes to start, memory, error and energy."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import OptionError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import given_options
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.plugins.registry import registry
from tflgpu.tools.contestants import (
    Contestant,
    Inputs,
    OnTflgpu,
    litert_cpu,
    litert_gpu,
    on_tflgpu,
)
from tflgpu.tools.copy_times import copy_times
from tflgpu.tools.energy import Energy, cpu_counter, gpu_counter, measure_energy
from tflgpu.tools.machine import machine, usable_cpus, versions
from tflgpu.tools.measurement import Benchmark, Measurement, Stages
from tflgpu.tools.spread import LatencySpread
from tflgpu.tools.start import StartTimes, starts
from tflgpu.tools.turns import Progress, Racer, Settings, draw_sets, race

#: Other runtimes that may be timed beside, and what a hint may be.
RUNTIMES = ("litert", "litert-gpu")
HINTS = ("latency", "throughput")
#: What `throughput` stands for where nothing else is said.
_BUSY = {"in_flight": 3, "batch": 8}
#: Copies of the model that threads call where nothing is said.
_COPIES = 2
#: Runs with timers, of which the median counts.
_PROFILED = 5
#: Seconds for which energy is measured at least.
_ENERGY_SECONDS = 1.0


def benchmark(
    model: str | os.PathLike[str] | bytes | bytearray | memoryview,
    options: DelegateOptions | None = None,
    *,
    compare: Sequence[str] = (),
    all: bool = False,
    hint: str | None = None,
    batch: int | None = None,
    in_flight: int | None = None,
    threads: int | None = None,
    duration: float = 3.0,
    warm_up: float = 1.0,
    starts: bool = True,
    energy: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
    **more: Unpack[OptionKeywords],
) -> Benchmark:
    """How fast a model is on this machine, on random inputs.

        found = tflgpu.benchmark("mobilenet.tflite", backend="vulkan", compare=["litert"])
        print(found.measurements[0].latency.p50, "ms")

    Several ways to run it are timed by turns, in blocks of 15 calls, of which the first two do not
    count. docs/benchmark.md says what each number means.

    Args:
        model: Path of a `.tflite` file, or what is in it.
        options: Of the delegate. Without ``backend`` and ``device`` the model runs where
            `Interpreter` runs it without a delegate.
        compare: Other runtimes to time beside: "litert" (on the CPU, with all processors),
            "litert-gpu" (LiteRT's GPU accelerator).
        all: Time every backend that has a device here, in every precision; those that ``options``
            name where they do.
        hint: "latency" is one call at a time; "throughput" keeps the device busy: 3 runs in flight,
            of 8 items where the model can be run in batches. What is said besides comes before it.
        batch: Items of a run (docs/async.md).
        in_flight: Runs under way at a time.
        threads: Threads that call a `tflgpu.Pool` with one item each; it has ``in_flight`` copies
            of the model, 2 where nothing is said, and gathers requests to a ``batch``.
        duration: Seconds for which each is timed.
        warm_up: Seconds for which each is run before.
        starts: Whether starts are timed, in two processes of their own for each way.
        energy: Whether energy is measured, for which each runs a second more.
        seed: Of the inputs.
        progress: Told what is done, and which share of the measurement is over.
        more: Or the options as keywords.

    Raises:
        OptionError: an argument or option out of its range, or options given both ways.
        ModelError: no such file, or no well-formed model.
        InputError: an input takes texts, for which there are no random values.
        UnsupportedError: an operator that runs nowhere, or a batch of a model that does not compute
            items apart from one another.
        DeviceError: the backend or device asked for is not there, or failed. With ``all`` a
            measurement says so instead.
    """
    given = given_options(options, more)
    counts = {"batch": batch, "in_flight": in_flight, "threads": threads}
    settings = _settings(hint, counts, duration, warm_up, seed)
    with ExitStack() as stack:
        if isinstance(model, (str, os.PathLike)):
            path = Path(model)
        else:
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "model.tflite"
            path.write_bytes(model)
        named = str(path) if isinstance(model, (str, os.PathLike)) else "bytes"
        settings, notes = _feasible(path, settings, fixed=batch is not None)
        contestants = contestants_of(given, compare, settings, all=all)
        found = measure(
            path,
            contestants,
            settings,
            starts=starts,
            energy=energy,
            strict=not all,
            progress=progress,
        )
        return attrs.evolve(found, model=named, notes=(*notes, *found.notes))


def _settings(
    hint: str | None, counts: dict[str, int | None], duration: float, warm_up: float, seed: int
) -> Settings:
    if hint is not None and hint not in HINTS:
        raise OptionError(f"hint is one of {', '.join(HINTS)}, not {shown(hint)}")
    said: dict[str, Any] = dict(_BUSY) if hint == "throughput" else {}
    for name, count in counts.items():
        if count is not None:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise OptionError(f"{name} is a whole number of at least 1, not {shown(count)}")
            said[name] = count
    if said.get("threads", 1) > 1:
        said.setdefault("in_flight", _COPIES)
    for name, seconds in (("duration", duration), ("warm_up", warm_up)):
        if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
            raise OptionError(f"{name} is a number of seconds above 0, not {shown(seconds)}")
    return Settings(**said, duration=float(duration), warm_up=float(warm_up), seed=seed)


def _feasible(path: Path, settings: Settings, *, fixed: bool) -> tuple[Settings, tuple[str, ...]]:
    """The settings, with a batch of 1 where only a hint asked for one that cannot be."""
    try:
        Interpreter(str(path), experimental_delegates=[], batch=settings.batch).close()
    except UnsupportedError as error:
        if fixed or settings.batch == 1:
            raise
        return attrs.evolve(settings, batch=1), (f"one item a run: {error}",)
    return settings, ()


def contestants_of(
    options: DelegateOptions, compare: Sequence[str], settings: Settings, *, all: bool
) -> list[Contestant]:
    """The options' device, or backend in every precision, then other runtimes.

    Raises:
        OptionError: an unknown runtime.
    """
    wanted = [options]
    precisions = [options.wanted_precision]
    if all:
        known = registry()
        names = [n for n, info in known.backends.items() if info.rank >= 0]
        if options.backend is not None:
            names = [options.backend]
        else:
            names = [n for n in names if known.probe(n).available]
        if options.precision is None:
            precisions = [Precision.F32, Precision.F32_F16, Precision.F16]
        wanted = [options.changed(backend=n, precision=p) for n in names for p in precisions]
    found = [on_tflgpu(each, settings.in_flight) for each in wanted]
    for name in dict.fromkeys(compare):
        if name == "litert":
            found.append(litert_cpu(usable_cpus()))
        elif name == "litert-gpu":
            half = dict.fromkeys("f32" if p is Precision.F32 else "f16" for p in precisions)
            found += [litert_gpu(precision) for precision in half]
        else:
            raise OptionError(f"compare takes {', '.join(RUNTIMES)}, not {shown(name)}")
    return found


def measure(
    path: Path,
    contestants: Sequence[Contestant],
    settings: Settings,
    *,
    starts: bool = False,
    energy: bool = True,
    strict: bool = False,
    progress: Progress | None = None,
) -> Benchmark:
    """Measure ways to run a model; as `benchmark`, which makes them of its arguments.

    Args:
        path: The file.
        contestants: In the order of the measurements.
        settings: How each is called.
        starts: As `benchmark` takes it.
        energy: As `benchmark` takes it.
        strict: Whether the error of one of tflgpu's is raised.
        progress: As `benchmark` takes it.
    """
    told = progress or (lambda what, share: None)
    began = datetime.now(timezone.utc).isoformat(timespec="seconds")
    sets = draw_sets(path, settings.items, settings.seed)
    timed = [_starts(c, path, settings, told) if starts else None for c in contestants]
    racers = [Racer(contestant) for contestant in contestants]
    try:
        race(racers, path, settings, sets, told)
        if strict:
            for racer in racers:
                if racer.error is not None and racer.contestant.options is not None:
                    raise racer.error
        expected, note = _expected(racers, path, settings, sets)
        found = []
        for racer, start in zip(racers, timed, strict=True):
            found.append(_measurement(racer, start, settings, sets, expected))
            if energy and found[-1].latency is not None:
                told(f"energy of {racer.contestant}", 1.0)
                found[-1] = attrs.evolve(found[-1], energy=_energy(racer, settings, sets))
    finally:
        for racer in racers:
            racer.close()
    notes = (note,) if note else ()
    where = machine(sorted({m.backend for m in found if m.backend}))
    return Benchmark(str(path), settings, tuple(found), notes, began, where, versions())


def _starts(
    contestant: Contestant, path: Path, settings: Settings, progress: Progress
) -> tuple[StartTimes, StartTimes] | str | None:
    if contestant.options is None:
        return None
    progress(f"starting {contestant} in processes of their own", 0.0)
    return starts(path, contestant.options, settings.items)


def _expected(
    racers: Sequence[Racer], path: Path, settings: Settings, sets: Sequence[Inputs]
) -> tuple[list[list[Array]], str]:
    """What LiteRT gives on the CPU for each set of inputs; or nothing, and why."""
    reference = next((r for r in racers if r.contestant.name == "LiteRT CPU"), None)
    if reference is None:
        reference = Racer(litert_cpu(usable_cpus()))
        try:
            reference.open(path, settings, sets)
        except ImportError:
            return [], "no error is told, since ai-edge-litert is not installed"
        except Exception as error:  # noqa: BLE001  (what LiteRT raises is its result)
            reference.error = error
        finally:
            reference.close()
    if reference.error is not None:
        return [], f"no error is told, since LiteRT does not run the model: {reference.failure}"
    return reference.outputs, ""


def _measurement(
    racer: Racer,
    start: tuple[StartTimes, StartTimes] | str | None,
    settings: Settings,
    sets: Sequence[Inputs],
    expected: Sequence[Sequence[Array]],
) -> Measurement:
    contestant, opened = racer.contestant, racer.opened
    found = Measurement(contestant.name, contestant.precision, failure=racer.failure)
    if racer.error is not None or opened is None:
        return found
    latency = LatencySpread.of(racer.times)
    warnings = latency.warnings
    if isinstance(start, str):
        warnings, start = (*warnings, start), None
    stages = None
    if racer.steps:
        inputs, invoke, outputs = (1e3 * float(n) for n in np.median(racer.steps, axis=0))
        stages = Stages(inputs, invoke, outputs)
    found = attrs.evolve(
        found,
        note=opened.note,
        latency=latency,
        rate=racer.count * settings.items / racer.seconds,
        stages=stages,
        first=None if racer.first is None else 1e3 * racer.first,
        error=racer.gap(expected) if expected else None,
        warnings=warnings,
        times=tuple(1e3 * t for t in racer.times),
    )
    if start is not None:
        found = attrs.evolve(found, cold=start[0], kept=start[1])
    if isinstance(opened, OnTflgpu):
        report = opened.report
        found = attrs.evolve(
            found,
            backend=report.backend,
            device=report.device,
            memory=opened.memory,
            dispatches=report.dispatches if report.backend else None,
            report=report,
            stages=None if stages is None else device_stages(opened, stages, sets[0]),
        )
    return found


def _energy(racer: Racer, settings: Settings, sets: Sequence[Inputs]) -> Energy:
    gpu = None
    if isinstance(racer.opened, OnTflgpu) and racer.opened.report.backend:
        gpu = gpu_counter(racer.opened.report.device)

    def work() -> int:
        before = racer.count
        racer.block(settings, sets, racer.calls, 0)
        return (racer.count - before) * settings.items

    seconds = max(_ENERGY_SECONDS, settings.duration / 3)
    return measure_energy(work, seconds, gpu, cpu_counter())


def device_stages(opened: OnTflgpu, stages: Stages, inputs: Inputs) -> Stages:
    """The stages with what the device tells of a run."""
    interpreter = opened.interpreter
    interpreter.reset_copied()
    opened.put(inputs)
    opened.invoke()
    opened.take()
    copied = interpreter.copied
    moved = (copied.to_device, copied.to_host)
    stages = attrs.evolve(stages, to_device=moved[0], to_host=moved[1])
    if opened.report.backend:
        stages = attrs.evolve(stages, copies=copy_times(interpreter, inputs, moved))
    try:
        profile = interpreter.profile(_PROFILED)
    except TflgpuError as error:
        return attrs.evolve(stages, reason=str(error))
    parts = [part for part in profile.parts if not part.on_cpu]
    if not parts or profile.no_times:
        return attrs.evolve(stages, reason=profile.no_times or "nothing runs on a device")
    return attrs.evolve(stages, device=1e3 * sum(part.busy for part in parts))
