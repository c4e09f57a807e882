"""`tflgpu compile`: a model, compiled for a device and saved in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cli import console
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    Device,
    Flags,
    Model,
    Numerics,
    Precision,
    delegate_of,
    with_delegate_flags,
)
from tflgpu.errors import OptionError
from tflgpu.options import CPU
from tflgpu.saved.model import SUFFIX


@with_delegate_flags
def compile(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; default: the model's name, ending .tflgpu."),
    ] = None,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    flags: Flags = NO_FLAGS,
) -> None:
    """Compile a model for a device, and save what comes out in a file.

    `GpuDelegate(saved=FILE)` reads it in the place of compiling, for this model, device, version of
    tflgpu and these options. The file has the main subgraph, at the shapes of the model file.
    """
    if backend == CPU:
        raise OptionError("the CPU has nothing to compile; `tflgpu devices` lists more")
    path = Path(f"{model.stem}{SUFFIX}") if output is None else output
    with (
        delegate_of(backend, device, precision, numerics, flags) as delegate,
        console.working("compiling"),
    ):
        report = delegate.save(model, path)
    console.say(str(report))
    console.say(f"{path}: {path.stat().st_size:,} bytes")
