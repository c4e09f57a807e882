"""Opening a model from the command line: which backend, which device, which precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from tflgpu.cli import console
from tflgpu.delegate import GpuDelegate
from tflgpu.devices.cpu_side import REFERENCES
from tflgpu.errors import OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.options import device_from_text, numerics_of, precision_of

#: What --backend takes besides the backends' names: no delegate, the NumPy references.
CPU = "cpu"

Model = Annotated[Path, typer.Argument(help="A .tflite file.", show_default=False)]
Backend = Annotated[
    str | None,
    typer.Option(help="opencl, ...; cpu for the NumPy references. Default: the best there is."),
]
Device = Annotated[
    str | None, typer.Option(help="Index in `tflgpu devices`, or a part of the name.")
]
Precision = Annotated[
    str | None, typer.Option(help="f32, f16 or f32_f16 (16-bit storage, 32-bit sums).")
]

Numerics = Annotated[
    str | None,
    typer.Option(help="Of quantized operators: float, or integer where there is a kernel for it."),
]

CpuBackend = Annotated[
    str | None,
    typer.Option(
        help="What runs what the device leaves, or all of it with --backend cpu: litert, cpu_ref."
    ),
]


def delegate_of(
    backend: str | None,
    device: str | None,
    precision: str | None,
    numerics: str | None = None,
    cpu_backend: str | None = None,
) -> GpuDelegate:
    """A delegate with the options that were given.

    Raises:
        OptionError: a wrong option.
        DeviceError: no such backend or device, or it does not open.
    """
    options: dict[str, Any] = {}
    if backend is not None:
        options["backend"] = backend
    if device is not None:
        options["device"] = device_from_text("--device", device)
    if precision is not None:
        options["precision"] = precision_of("--precision", precision)
    if numerics is not None:
        options["quantized_numerics"] = numerics_of("--numerics", numerics)
    if cpu_backend is not None:
        options["cpu_backend"] = cpu_backend
    return GpuDelegate(**options)


@contextmanager
def opened(
    model: Path | bytes,
    backend: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    numerics: str | None = None,
    cpu_backend: str | None = None,
) -> Iterator[Interpreter]:
    """An interpreter (not allocated yet) on a backend; both are closed at the end.

    Raises:
        OptionError: as `delegate_of`, or a device, precision or numerics for the CPU.
        DeviceError: as `delegate_of`.
        ModelError: no such file, or no well-formed model.
    """
    if backend == CPU:
        given = (("--device", device), ("--precision", precision), ("--numerics", numerics))
        for name, value in given:
            if value is not None:
                raise OptionError(f"{name} is for a GPU backend; --backend cpu has no such choice")
        with _read(model, None, cpu_backend or REFERENCES) as interpreter:
            yield interpreter
        return
    # The file first: a mistyped name is noticed before a device is woken up.
    _read(model, None, REFERENCES).close()
    with (
        delegate_of(backend, device, precision, numerics, cpu_backend) as delegate,
        _read(model, delegate) as interpreter,
    ):
        yield interpreter


def _read(
    model: Path | bytes, delegate: GpuDelegate | None, cpu_backend: str | None = None
) -> Interpreter:
    path, content = (None, model) if isinstance(model, bytes) else (str(model), None)
    delegates = [] if delegate is None else [delegate]
    return Interpreter(path, content, delegates, cpu_backend=cpu_backend)


def allocate(interpreter: Interpreter) -> None:
    """Allocate, with a sign of life: drivers may compile for seconds."""
    with console.working("preparing the model"):
        interpreter.allocate_tensors()
