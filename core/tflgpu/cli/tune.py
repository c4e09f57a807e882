"""`tflgpu tune`: kernels are timed on a device, and the fastest are kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import attrs
import typer

from tflgpu.cli import console
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    Device,
    Flags,
    Numerics,
    Precision,
    delegate_of,
    with_delegate_flags,
)
from tflgpu.errors import OptionError
from tflgpu.options import CPU
from tflgpu.runtime.tuning import Progress
from tflgpu.saved.kept_choices import Tuning

Models = Annotated[list[Path], typer.Argument(help=".tflite files.", show_default=False)]


@with_delegate_flags
def tune(
    models: Models,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    effort: Annotated[
        str,
        typer.Option(metavar="fast|exhaustive", help="fast: the most promising six ways; or all."),
    ] = "fast",
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all that is kept of the device, for a release."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
    flags: Flags = NO_FLAGS,
) -> None:
    """Time several ways to write a model's kernels on a device, and keep the fastest.

    Every later run uses them: `tflgpu run`, `benchmark`, an interpreter. Models with equal problems
    share what was measured.
    """
    if backend == CPU:
        raise OptionError("the CPU has no kernels; `tflgpu devices` lists more")
    found = {}
    with delegate_of(backend, device, precision, numerics, flags) as delegate:
        for model in models:
            with _progress(model) as progress:
                found[str(model)] = delegate.tune(model, effort, progress=progress)
            if not as_json:
                _show(model, found[str(model)])
        if table is not None:
            console.write(table, delegate.provider.usable().kept_choices.table())
    if as_json:
        console.show_json([{"model": m, **attrs.asdict(each)} for m, each in found.items()])


@contextmanager
def _progress(model: Path) -> Iterator[Progress]:
    """A bar; where stderr is no terminal, a line for each step."""
    with console.counting() as bar:
        task = bar.add_task(f"tuning {model.name}", total=None)

        def tell(done: int, whole: int) -> None:
            if not sys.stderr.isatty():
                console.err().print(f"tuning {model.name}: {done} of {whole} ...", markup=False)
            bar.update(task, completed=done, total=whole)

        yield tell


def _show(model: Path, found: Tuning) -> None:
    if found.changed:
        times = ("before, us", "after, us")
        table = console.table(str(model), "problem", "predicted", "fastest", *times, right=times)
        for key, kept in sorted(
            found.changed.items(), key=lambda item: item[1].after - item[1].before
        ):
            told = (f"{seconds * 1e6:.1f}" for seconds in (kept.before, kept.after))
            table.add_row(key, kept.predicted, kept.name, *told)
        console.show(table)
    console.say(f"{model}: {found}")
