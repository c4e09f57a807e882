"""`tflgpu run`: runs a model on photos, sounds, texts, arrays or random numbers, and says what its
outputs mean."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tflgpu.cli import console
from tflgpu.cli.check import DIFFERS, show
from tflgpu.cli.inputs import pixel_numbers
from tflgpu.cli.job import RunJob
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    CpuBackend,
    Device,
    Flags,
    Model,
    Numerics,
    Precision,
    opened,
    with_delegate_flags,
)
from tflgpu.cli.results import ResultPrinter
from tflgpu.errors import OptionError
from tflgpu.tools.check import compared
from tflgpu.tools.recipe import TaskOptions
from tflgpu.tools.runs import run_once

_RUNS = 10
_WARM_UP = 3
#: Exit code where some of several inputs could not be read.
_SOME = 1


def _meaning(help_text: str, metavar: str) -> Any:
    """An option that says what inputs and outputs mean; it is shown by --help-all."""
    return typer.Option(help=help_text, metavar=metavar, hidden=True, show_default=False)


@with_delegate_flags
def run(
    model: Model,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="A photo, .wav, .npy, text, video, folder, 'pattern*' or camera; one for each "
            "input, in order or as NAME=FILE. Others are random.",
            show_default=False,
        ),
    ] = None,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    cpu_backend: CpuBackend = None,
    labels: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Names of the classes, one a line.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="PNG|FOLDER", help="Draw boxes, masks, points on the picture."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save the outputs there, as .npy files.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each input.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="The answer alone.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="All outputs, and why what ran where.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Check the outputs against LiteRT's.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Items at once, of a model for one.")
    ] = 1,
    runs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Runs to time.  [default: 10]")
    ] = None,
    kind: Annotated[
        str | None,
        _meaning("What the outputs are.", "classify|detect|segment|keypoints|embed|image|values"),
    ] = None,
    mean: Annotated[str | None, _meaning("Subtracted from pixels of 0 to 255.", "N|R,G,B")] = None,
    std: Annotated[str | None, _meaning("Divides pixels then.", "N|R,G,B")] = None,
    resize: Annotated[
        str | None, _meaning("How a photo gets the input's shape.", "stretch|crop|pad")
    ] = None,
    top: Annotated[int | None, _meaning("How many classes to print; 5.", "N")] = None,
    threshold: Annotated[float | None, _meaning("Least score of what is found.", "N")] = None,
    anchors: Annotated[
        Path | None, _meaning("Of raw boxes: rows of y, x, height, width.", "CSV|NPY")
    ] = None,
    vocabulary: Annotated[Path | None, _meaning("A text model's words.", "FILE")] = None,
    rate: Annotated[int | None, _meaning("Samples a second that a sound model takes.", "N")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of random inputs.", hidden=True)
    ] = None,
    flags: Flags = NO_FLAGS,
) -> None:
    """Run a model: what it says of a photo, a sound or a text, in what time, and where."""
    options = TaskOptions(
        kind,
        labels,
        pixel_numbers("--mean", mean),
        pixel_numbers("--std", std),
        resize,
        top,
        threshold,
        anchors,
        vocabulary,
        rate,
    )
    options.check()
    if quiet and verbose:
        raise OptionError("--quiet and --verbose: give one of them")
    with opened(
        model, backend, device, precision, numerics, flags, cpu_backend, batch
    ) as interpreter:
        results = ResultPrinter(json=json, quiet=quiet, verbose=verbose, save=save, output=output)
        results.make_folders()  # a long run is not thrown away for a folder that cannot be
        job = RunJob(interpreter, model, options, inputs or [], batch, seed)
        is_one = job.look()
        _check_effect(
            {
                "--runs": runs and not is_one,
                "--compare": compare and not is_one,
                "--output": output and not is_one,
                "--batch": batch > 1 and not is_one,
            },
            "where one -i stands for several inputs",
        )
        _check_effect(
            {"--runs": runs and quiet, "--compare": compare and (quiet or json)},
            "beside --quiet or --json",
        )
        if not is_one:
            failed = _run_all(job, results)
        else:
            failed = 0
            outputs = job.first()
            times = job.times if quiet else _time_runs(job, runs or _RUNS)
            results.show_one(job, outputs, times)
            report = interpreter.report
            if output is not None:
                results.save_arrays(interpreter.get_output_details(), outputs)
    if compare:
        with console.working("comparing"):
            found = compared(str(model), *job.items(outputs), report)
        show(found)
        if not found.agrees:
            console.say("`tflgpu check` looks for the operator from which on they differ")
            raise typer.Exit(DIFFERS)
    if failed:
        raise typer.Exit(_SOME)


def _run_all(job: RunJob, results: ResultPrinter) -> int:
    """Run a series; how many of its inputs could not be read."""
    times: list[float] = []
    with console.counting(enabled=results.is_redirected) as progress:
        for _, outputs in progress.track(job.each(), total=job.count, description="running"):
            times += job.times
            results.show_line(job, outputs)
    results.end_series(job, times)
    return job.failed


def _time_runs(job: RunJob, runs: int) -> list[float]:
    """Milliseconds of ``runs`` calls, after a few that do not count."""
    for _ in range(min(_WARM_UP, runs)):
        run_once(job.interpreter, job.arrays)
    times = []
    with console.counting() as progress:
        for _ in progress.track(range(runs), description="measuring"):
            start = time.perf_counter()
            run_once(job.interpreter, job.arrays)
            times.append(1e3 * (time.perf_counter() - start))
    return times


def _check_effect(given: Mapping[str, Any], where: str) -> None:
    useless = [name for name, value in given.items() if value]
    if useless:
        raise OptionError(f"{', '.join(useless)}: without effect {where}; leave it out")
