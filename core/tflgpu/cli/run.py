"""`tflgpu run`: runs a model once, times it, and compares it with other runtimes."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import numpy as np
import typer

from tflgpu.cli import console
from tflgpu.cli.delegate_flags import NO_FLAGS, Flags, with_delegate_flags
from tflgpu.cli.inputs import Normalization, assign, load
from tflgpu.cli.models import (
    Backend,
    CpuBackend,
    Device,
    Model,
    Numerics,
    Precision,
    allocate,
    opened,
)
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import numbers
from tflgpu.devices.cpu_side import REFERENCES
from tflgpu.errors import InputError, OptionError, TflgpuError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.options import CPU
from tflgpu.tools.difference import difference
from tflgpu.tools.runs import random_input, run_once

_TOP = 5
_REASONS = 8
_WARM_UP = 3


@with_delegate_flags
def run(
    model: Model,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="A .npy file or an image, once per input, in order or as NAME=FILE. "
            "Inputs without one are random.",
            show_default=False,
        ),
    ] = None,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    cpu_backend: CpuBackend = None,
    compare: Annotated[
        bool, typer.Option(help="Compare with the NumPy references, and LiteRT if installed.")
    ] = False,
    batch: Annotated[
        int,
        typer.Option(min=1, help="Items at once, of a model for one; files of one are repeated."),
    ] = 1,
    runs: Annotated[int, typer.Option(min=1, help="Runs to time, after warm-up.")] = 10,
    output: Annotated[
        Path | None, typer.Option(help="Folder to save the outputs in, as .npy files.")
    ] = None,
    mean: Annotated[float, typer.Option(help="Of pixels, subtracted.")] = 127.5,
    std: Annotated[float, typer.Option(help="Of pixels, divided by.")] = 127.5,
    seed: Annotated[int, typer.Option(min=0, help="Of random inputs.")] = 0,
    flags: Flags = NO_FLAGS,
) -> None:
    """Run a model: outputs, time, what ran where, and (--compare) how right it is."""
    if not math.isfinite(mean) or not math.isfinite(std) or std == 0:
        raise OptionError(
            f"--mean {mean} and --std {std}: both are numbers, and pixels are divided by --std"
        )
    references = backend == CPU and cpu_backend in (None, REFERENCES)
    with opened(
        model, backend, device, precision, numerics, flags, cpu_backend, batch
    ) as interpreter:
        if output is not None:
            _make(output)  # a long run is not thrown away for a folder that cannot be
        arrays = _inputs(interpreter, inputs or [], Normalization(mean, std), seed, batch)
        outputs = run_once(interpreter, arrays)
        _show_outputs(interpreter, outputs)
        timing = _time_runs(lambda: run_once(interpreter, arrays), runs)
        console.say(
            f"{timing.median:.3f} ms, median of {runs} runs "
            f"({timing.fastest:.3f} to {timing.slowest:.3f}), NumPy to NumPy"
            + (f", {timing.median / batch:.3f} ms an item" if batch > 1 else "")
        )
        _show_report(interpreter.report, on_purpose=references)
        names = [str(d["name"]) for d in interpreter.get_output_details()]
    if compare:
        _compare(model, arrays, names, outputs, batch, skip_references=references)
    if output is not None:
        _save(output, names, outputs)


def _inputs(
    interpreter: Interpreter,
    given: Sequence[str],
    normalization: Normalization,
    seed: int,
    batch: int,
) -> dict[int, Array]:
    """Load the files, give the inputs their shapes, fill up with random numbers, allocate."""
    arrays: dict[int, Array] = {}
    assigned = assign(given, interpreter.get_input_details())
    for detail, path in assigned:
        if path is not None:
            index = int(detail["index"])
            arrays[index] = _loaded(path, detail, normalization, batch)
            if arrays[index].shape != tuple(detail["shape"]):
                interpreter.resize_tensor_input(index, arrays[index].shape)
    rng = np.random.default_rng(seed)
    for detail in interpreter.get_input_details():
        index = int(detail["index"])
        if index not in arrays:
            arrays[index] = random_input(detail, rng)
            console.say(
                f"input {detail['name']}: random {np.dtype(detail['dtype'])}"
                f"{[int(s) for s in detail['shape']]}, seed {seed}"
            )
    allocate(interpreter)
    return arrays


def _loaded(
    path: Path, detail: Mapping[str, Any], normalization: Normalization, batch: int
) -> Array:
    """A file's contents: of all items, or of one, for all of them."""
    if batch == 1:
        return load(path, dict(detail), normalization)
    shape, signature = detail["shape"][1:], detail["shape_signature"][1:]
    of_some = {"shape": np.array([1, *shape]), "shape_signature": np.array([-1, *signature])}
    found = load(path, {**detail, **of_some}, normalization)
    if len(found) not in (1, batch):
        raise InputError(f"{path} has {len(found)} items; with --batch {batch} it is 1 or {batch}")
    return np.repeat(found, batch // len(found), axis=0)


def _show_outputs(interpreter: Interpreter, outputs: Sequence[Array]) -> None:
    table = console.table(
        "Outputs",
        "name",
        "type",
        "least",
        "mean",
        "greatest",
        "greatest values (at: value)",
        whole=("least", "mean", "greatest"),
    )
    for detail, array in zip(interpreter.get_output_details(), outputs, strict=True):
        kind = f"{array.dtype}{list(array.shape)}"
        table.add_row(str(detail["name"]), kind, *_summary(array))
    console.show(table)


def _summary(array: Array) -> tuple[str, str, str, str]:
    if not array.size:
        return "", "", "", "empty"
    if array.dtype.kind not in "fiub":
        return "", "", "", str(array.ravel()[:_TOP])
    values = array.astype(np.float64).ravel()
    finite = np.isfinite(values)
    notes = "" if finite.all() else f"{int((~finite).sum())} not finite; "
    if not finite.any():
        return "", "", "", notes + "nothing else"
    seen = values[finite]
    order = np.argsort(-np.where(finite, values, -np.inf), kind="stable")[:_TOP]
    top = ", ".join(f"{_position(int(i), array.shape)}: {values[i]:.5g}" for i in order)
    return f"{seen.min():.5g}", f"{seen.mean():.5g}", f"{seen.max():.5g}", notes + top


def _position(flat: int, shape: tuple[int, ...]) -> str:
    """Where an element is, without the leading axes of size 1."""
    where = list(np.unravel_index(flat, shape))
    while len(where) > 1 and shape[len(shape) - len(where)] == 1:
        where.pop(0)
    return ",".join(str(int(i)) for i in where)


def _show_report(report: DelegationReport, *, on_purpose: bool) -> None:
    if on_purpose:
        console.say(f"{report.total_nodes} operators ran by their NumPy references")
        return
    summary = report.summary
    if report.backend:
        parts = "one part" if report.partitions == 1 else f"{report.partitions} parts"
        summary += f", in {parts} and {report.dispatches} dispatches"
    console.say(summary)
    if not report.backend and report.common_reason == "; ".join(report.choice):
        for reason in report.choice:
            console.say(f"  {reason}")
        return
    if not report.backend and report.common_reason is not None:
        console.say(f"  {report.common_reason}")
        return
    if report.refusals:
        table = report.table()
        table.title = None  # it is said above
        console.show(table)
    in_floats: dict[tuple[str, str], list[int]] = {}
    for left in report.in_floats:
        in_floats.setdefault((left.op, left.reason), []).append(left.node)
    for (op, reason), nodes in list(in_floats.items())[:_REASONS]:
        console.say(f"  in floats: {op} ({numbers(nodes)}): {reason}")
    for line in report.told_composites[:_REASONS]:
        console.say(line)
    for reason in report.choice:
        console.say(f"  {reason}")


def _compare(
    model: Path,
    arrays: Mapping[int, Array],
    names: Sequence[str],
    outputs: Sequence[Array],
    batch: int,
    *,
    skip_references: bool,
) -> None:
    table = console.table(
        "Difference",
        "from",
        "output",
        "max abs",
        "relative L2",
        right=("max abs", "relative L2"),
        whole=("max abs", "relative L2"),
    )
    others = [("LiteRT CPU", _litert)]
    if not skip_references:
        others.insert(0, ("NumPy references", _references))
    for title, answer in others:
        with console.working(f"running {title}"):
            theirs = answer(model, arrays, batch)
        if isinstance(theirs, str):
            table.add_row(title, f"cannot be compared: {theirs}")
            continue
        for name, ours, other in zip(names, outputs, theirs, strict=True):
            gap = difference(ours, other)
            table.add_row(title, name, f"{gap.max_abs:.3g}", f"{gap.relative_l2:.3g}")
    console.show(table)


def _references(model: Path, arrays: Mapping[int, Array], batch: int) -> list[Array] | str:
    """The references' outputs, or why there are none."""
    try:
        with opened(model, CPU, batch=batch) as interpreter:
            for index, array in arrays.items():
                interpreter.resize_tensor_input(index, array.shape)
            interpreter.allocate_tensors()
            return run_once(interpreter, arrays)
    except TflgpuError as error:
        return str(error)


def _litert(model: Path, arrays: Mapping[int, Array], batch: int) -> list[Array] | str:
    """LiteRT's outputs, of items one by one; or why there are none."""
    try:
        from ai_edge_litert.interpreter import Interpreter as LiteRT
    except ImportError:
        return "ai-edge-litert is not installed"
    try:
        interpreter: Any = LiteRT(**_for_litert(model))
        items = [arrays]
        if batch > 1:
            items = [{i: a[n : n + 1] for i, a in arrays.items()} for n in range(batch)]
        for index, array in items[0].items():
            interpreter.resize_tensor_input(index, array.shape)
        interpreter.allocate_tensors()
        parts = [run_once(interpreter, item) for item in items]
        return parts[0] if batch == 1 else [np.concatenate(p) for p in zip(*parts, strict=True)]
    except (ValueError, RuntimeError) as error:
        return str(error)


def _for_litert(model: Path) -> dict[str, Any]:
    """The model as LiteRT takes it: names of files that are no UTF-8 have no way into its
    library."""
    try:
        str(model).encode()
    except UnicodeEncodeError:
        return {"model_content": model.read_bytes()}
    return {"model_path": str(model)}


def _plain(name: str, array: Array) -> Array:
    """An output as a file has it: texts without Python's objects.

    Raises:
        InputError: NumPy's texts end where their zeros begin, and one of these has some there.
    """
    if array.dtype.kind != "O":
        return array
    texts = array.astype(np.bytes_)
    if not np.array_equal(texts.astype(object), array):
        raise InputError(f"output {name} has texts that end in zeros, which no .npy file can hold")
    return texts


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot save outputs in {folder}: {error}") from error


def _save(folder: Path, names: Sequence[str], outputs: Sequence[Array]) -> None:
    try:
        for i, (name, array) in enumerate(zip(names, outputs, strict=True)):
            path = folder / f"{i}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:80]}.npy"
            np.save(path, _plain(name, array), allow_pickle=False)
            console.say(f"saved {path}")
    except OSError as error:
        raise InputError(f"cannot save outputs in {folder}: {error}") from error


@attrs.frozen
class _Timing:
    """Milliseconds from NumPy arrays to NumPy arrays."""

    median: float
    fastest: float
    slowest: float


def _time_runs(call: Callable[[], object], runs: int) -> _Timing:
    """Time ``runs`` calls, after a few that do not count."""
    for _ in range(min(_WARM_UP, runs)):
        call()
    times = []
    with console.counting() as progress:
        for _ in progress.track(range(runs), description="measuring"):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
    return _Timing(float(np.median(times)), min(times), max(times))
