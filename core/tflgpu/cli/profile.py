"""`tflgpu profile`: where the time of a run goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cli import console
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
from tflgpu.errors import InputError
from tflgpu.tflite.read import read_model
from tflgpu.tools.profile_html import to_html
from tflgpu.tools.profile_json import to_dict, to_node_data, to_trace
from tflgpu.tools.profile_rows import lines, rich_table, tables
from tflgpu.tools.recipe import TaskOptions


@with_delegate_flags
def profile(
    model: Model,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="A .npy file or an image, once per input, in order or as NAME=FILE; else random.",
            show_default=False,
        ),
    ] = None,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    numerics: Numerics = None,
    cpu_backend: CpuBackend = None,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Items at once, of a model for one.")
    ] = 1,
    runs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Runs with timers, and without.")
    ] = 20,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Dispatches to list, the longest.")
    ] = 20,
    every: Annotated[
        bool, typer.Option("--all", help="List all dispatches, in their order.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For other programs.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with the graph coloured by time."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for ui.perfetto.dev or chrome://tracing."),
    ] = None,
    node_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write node data for Model Explorer.")
    ] = None,
    flags: Flags = NO_FLAGS,
) -> None:
    """Show where the time of a run goes: each kernel, what lies between, copies, the CPU.

    (`tflgpu profiles` lists something else: devices that `inspect --as` knows.)
    """
    with opened(
        model, backend, device, precision, numerics, flags, cpu_backend, batch
    ) as interpreter:
        job = RunJob(interpreter, model, TaskOptions(), inputs or [], batch, None)
        if not job.look():
            raise InputError("a profile is of one input; -i stands for several")
        job.first()  # leaves its input where the runs that are measured read it
        with console.working("profiling"):
            found = interpreter.profile(runs)
    if html is not None:
        console.write(html, to_html(found, model.name))
    if trace is not None:
        console.write(trace, json.dumps(to_trace(found), allow_nan=False))
    if node_data is not None:
        graph = read_model(str(model)).main.name
        console.write(node_data, json.dumps(to_node_data(found, graph), allow_nan=False))
    if as_json:
        console.show_json(to_dict(found))
        return
    for line in lines(found):
        console.say(line)
    for table in tables(found, None if every else top):
        console.show(rich_table(table))
