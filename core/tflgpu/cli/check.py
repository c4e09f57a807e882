"""`tflgpu check`: whether a device agrees with LiteRT, and what a device that is not here takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from tflgpu.cli import console
from tflgpu.cli.inputs import load, pixel_numbers
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    Device,
    Flags,
    Model,
    Numerics,
    Precision,
    options_of,
    quiet_logs,
    with_delegate_flags,
)
from tflgpu.cli.profiles import ProfileName
from tflgpu.errors import InputError, OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.options import CPU
from tflgpu.profiles.report import judged
from tflgpu.tflite.read import read_model
from tflgpu.tools.check import check as check_model
from tflgpu.tools.check_advice import advice
from tflgpu.tools.check_result import (
    COLUMNS,
    CheckResult,
    cells,
    histogram,
    layer_text,
    verdict,
)
from tflgpu.tools.metadata import metadata
from tflgpu.tools.recipe import Recipe, TaskOptions

#: Exit codes: 0 agrees, this, and 2 where the check could not be made.
DIFFERS = 1
_FILES = (".npy", ".npz", ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@with_delegate_flags
def check(
    model: Model,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Images and .npy files, a sample each; .npz where there are several inputs, by "
            "name.  [default: random inputs]",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Samples, at most.")] = 8,
    profile: ProfileName = None,
    full: Annotated[
        bool,
        typer.Option("--require-full-delegation", help="Differs where an operator is left."),
    ] = False,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="SHARE", help="Of an output's largest value.  [default: by precision]"
        ),
    ] = None,
    layer: Annotated[
        bool, typer.Option("--layer/--no-layer", help="Look for the first that diverges.")
    ] = True,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
    mean: Annotated[
        str | None, typer.Option(metavar="N|R,G,B", help="Subtracted from pixels of 0 to 255.")
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="N|R,G,B", help="Divides pixels then.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of random inputs.")] = 0,
    flags: Flags = NO_FLAGS,
) -> None:
    """Check whether a device's outputs agree with LiteRT's; or, with --as, what a device takes.

    Exit code 0: it agrees; 1: it differs; 2: the check could not be made.
    """
    if profile is not None:
        if backend is not None or device is not None or data is not None or html is not None:
            raise OptionError(
                "--as is for a device that is not here, whose outputs cannot be compared; leave "
                "out --backend, --device, --data and --html"
            )
        _by_profile(model, profile, full=full, as_json=as_json)
        return
    if backend == CPU:
        raise OptionError("check compares a device with the CPU; name another --backend")
    pixels = TaskOptions(mean=pixel_numbers("--mean", mean), std=pixel_numbers("--std", std))
    if data is None and (mean is not None or std is not None):
        raise OptionError("--mean and --std are for images; give a folder of some by --data")
    options = options_of(backend, device, precision, numerics, flags)
    samples = None if data is None else list(_samples(model, data, count, pixels))
    with quiet_logs(), console.working("checking"):
        result = check_model(
            str(model),
            samples,
            options,
            count=min(count, 4),
            seed=seed,
            tolerance=tolerance,
            find_layer=layer,
        )
    if html is not None:
        console.write(html, result.to_html())
    if as_json:
        console.show_json(result.to_dict())
    else:
        show(result)
    left = full and not result.report.fully_delegated
    if left:
        console.fail("not all operators run on the device, and --require-full-delegation is on")
    if left or not result.agrees:
        raise typer.Exit(DIFFERS)


def show(result: CheckResult) -> None:
    """A table of the outputs, and the verdict."""
    table = console.table(f"{result.reference} and the device", *COLUMNS, right=COLUMNS[2:8])
    for output in result.outputs:
        table.add_row(*cells(output))
    console.show(table)
    for output in result.outputs:
        console.say(f"{output.name}: differences from < 1e-7 to >= 0.1 |{histogram(output.gap)}|")
    console.say(result.report.summary)
    for note in result.notes:
        console.warn(note)
    if result.layer is not None:
        console.say(layer_text(result))
    console.say(verdict(result))


def _by_profile(model: Path, name: str, *, full: bool, as_json: bool) -> None:
    file = read_model(str(model))
    found = judged(file, name).report
    tips = list(advice(file))
    if as_json:
        console.show_json({"report": found.to_dict(), "advice": tips})
    else:
        console.say(str(found))
        for line in found.choice:
            console.say(line)
        for tip in tips:
            console.say(f"advice: {tip}")
    if full and not found.fully_delegated:
        raise typer.Exit(DIFFERS)


def _samples(
    model: Path, folder: Path, count: int, pixels: TaskOptions
) -> Iterator[Mapping[int, Array]]:
    if not folder.is_dir():
        raise InputError(f"--data {folder}: there is no such folder")
    paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in _FILES)
    if not paths:
        raise InputError(f"{folder} has no images, .npy or .npz files")
    with Interpreter(str(model), None, []) as interpreter:
        details = interpreter.get_input_details()
        recipe = Recipe(interpreter, metadata(model), pixels, 1)
        for path in paths[:count]:
            if path.suffix.lower() == ".npz":
                yield _archive(path, details)
            elif len(details) > 1:
                raise InputError(
                    f"{path}: the model has {len(details)} inputs; give .npz files with arrays by "
                    f"name: {', '.join(str(d['name']) for d in details)}"
                )
            elif path.suffix.lower() == ".npy":
                yield {int(details[0]["index"]): load(path, details[0])}
            else:
                yield from (prepared.arrays for prepared in recipe.prepare(str(path), 0))


def _archive(path: Path, details: Any) -> Mapping[int, Array]:
    names = {str(d["name"]): int(d["index"]) for d in details}
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a .npz file that can be read: {error}") from error
    if set(found) != set(names):
        raise InputError(f"{path} has arrays {', '.join(found)}, not the inputs {', '.join(names)}")
    return {names[name]: array for name, array in found.items()}
