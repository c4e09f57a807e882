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


def delegate_of(
    backend: str | None,
    device: str | None,
    precision: str | None,
    numerics: str | None = None,
    **others: Any,
) -> GpuDelegate:
    """A delegate with the options that were given, and ``others`` of its own.

    Raises:
        OptionError: a wrong option.
        DeviceError: no such backend or device, or it does not open.
    """
    options: dict[str, Any] = dict(others)
    if backend is not None:
        options["backend"] = backend
    if device is not None:
        options["device"] = device_from_text("--device", device)
    if precision is not None:
        options["precision"] = precision_of("--precision", precision)
    if numerics is not None:
        options["quantized_numerics"] = numerics_of("--numerics", numerics)
    return GpuDelegate(**options)


@contextmanager
def opened(
    model: Path | bytes,
    backend: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    numerics: str | None = None,
) -> Iterator[Interpreter]:
    """An interpreter (not allocated yet) on a backend; both are closed at the end.

    Raises:
        OptionError: as `delegate_of`, or a device, precision or numerics for the CPU references.
        DeviceError: as `delegate_of`.
        ModelError: no such file, or no well-formed model.
    """
    if backend == CPU:
        given = (("--device", device), ("--precision", precision), ("--numerics", numerics))
        for name, value in given:
            if value is not None:
                raise OptionError(f"{name} is for a GPU backend; --backend cpu has no such choice")
        with _read(model, None) as interpreter:
            yield interpreter
        return
    # The file first: a mistyped name is noticed before a device is woken up.
    _read(model, None).close()
    with (
        delegate_of(backend, device, precision, numerics) as delegate,
        _read(model, delegate) as interpreter,
    ):
        yield interpreter


def _read(model: Path | bytes, delegate: GpuDelegate | None) -> Interpreter:
    if delegate is None:
        path, content = (None, model) if isinstance(model, bytes) else (str(model), None)
        return Interpreter(path, content, cpu_backend=REFERENCES)
    if isinstance(model, bytes):
        return Interpreter(model_content=model, experimental_delegates=[delegate])
    return Interpreter(str(model), experimental_delegates=[delegate])


def allocate(interpreter: Interpreter) -> None:
    """Allocate, with a sign of life: drivers may compile for seconds."""
    with console.working("preparing the model"):
        interpreter.allocate_tensors()
