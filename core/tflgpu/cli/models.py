"""Opens a model for a command: the backend, the device, the precision, and the flags for the other
options of a delegate, which are made from their definition.

A command that is decorated with `with_delegate_flags` has ``--memory-limit`` for `memory_limit` and
so on; what was given arrives in its argument ``flags``, by option name.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tflgpu.cli import console
from tflgpu.compiler.report import TOLD
from tflgpu.devices.cpu_side import REFERENCES
from tflgpu.errors import OptionError
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import CPU, OPTIONS, OPTIONS_FILE, OTHER_NAMES, DelegateOptions
from tflgpu.options.kinds import is_count
from tflgpu.options.sources import from_toml
from tflgpu.runtime.opened_device import CHOICE

#: What was given: text by option name.
Flags = Mapping[str, str]
NO_FLAGS: Flags = {}

FILE = "options_file"
_ARGUMENT = "flags"
_HELP_ALL = "help_all"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        console.plain(ctx.get_help())
        raise typer.Exit


def flag_of(option: str) -> str:
    """How errors call an option that was given on the command line."""
    return "--" + option.replace("_", "-")


def with_delegate_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each option of `DelegateOptions` that it has no argument for."""
    hints = get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    kept = [p.replace(annotation=hints[n]) for n, p in own.items() if n != _ARGUMENT]
    flags = {name: _parameter(name, *text) for name, text in _texts().items() if name not in own}
    help_all = typer.Option(
        flag_of(_HELP_ALL),
        help="Show this message with the options of delegates, and exit.",
        callback=_show_all,
        is_eager=True,
    )
    flags[_HELP_ALL] = inspect.Parameter(
        _HELP_ALL,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, help_all],
    )

    @wraps(command)
    def decorated(**given: Any) -> None:
        said = {name: text for name in flags if (text := given.pop(name)) not in (None, False)}
        command(**given, flags=said)

    parameters = [*kept, *flags.values()]
    decorated.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    decorated.__annotations__ = {p.name: p.annotation for p in parameters}
    return decorated


def _texts() -> Mapping[str, tuple[str, str]]:
    """By the name of an option: its help, and what it takes in a word."""
    found = {}
    for name, option in OPTIONS.items():
        choices = option.kind.takes.split(", ")
        is_choice = len(choices) > 1 and all(choice.isidentifier() for choice in choices)
        takes = "" if is_choice else f"{option.kind.takes}; "
        text = f"{option.effect}  [{takes}default: {option.kind.shown(option.default)}]"
        found[name] = (text.replace("`", ""), "|".join(choices).lower() if is_choice else "VALUE")
    for name, other in OTHER_NAMES.items():
        found[name] = (f"Stands for {other.stands_for}.".replace("`", ""), "VALUE")
    found[FILE] = ("A TOML file of options; flags and environment variables come first.", "FILE")
    return found


def _parameter(name: str, text: str, takes: str) -> inspect.Parameter:
    flag = typer.Option(flag_of(name), help=text, metavar=takes, hidden=True, show_default=False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[str | None, flag],
    )


Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A .tflite file.", show_default=False)]
Backend = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="opencl, vulkan, wgpu, ...; cpu for no device.  [default: the best GPU]",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="INDEX|NAME|uuid:UUID", help="As `tflgpu devices` lists it, or part of the name."
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        metavar="f32|f16|f32_f16", help="f32_f16: 16-bit storage, 32-bit sums.  [default: f32]"
    ),
]

Numerics = Annotated[
    str | None,
    typer.Option(
        metavar="float|integer",
        help="Of quantized operators; integer where there is a kernel for it.  [default: float]",
    ),
]

CpuBackend = Annotated[
    str | None,
    typer.Option(
        metavar="litert|cpu_ref",
        help="For what the device leaves, or for all with --backend cpu.  [default: litert]",
    ),
]


def index_or_name(device: str | None) -> int | str | None:
    """The value of --device, as `GpuDelegate` takes it."""
    return int(device) if device is not None and is_count(device) else device


def delegate_of(
    backend: str | None,
    device: str | None,
    precision: str | None,
    numerics: str | None = None,
    flags: Flags | None = None,
    cpu_backend: str | None = None,
) -> GpuDelegate:
    """A delegate with the options that were given; then those of environment variables, then those
    of a file.

    Raises:
        OptionError: a wrong option; names the flag.
        DeviceError: no such backend or device, or it does not open.
    """
    options = options_of(backend, device, precision, numerics, flags, cpu_backend)
    return quiet_delegate(options, progress=console.kernels)


def options_of(
    backend: str | None,
    device: str | None,
    precision: str | None,
    numerics: str | None = None,
    flags: Flags | None = None,
    cpu_backend: str | None = None,
) -> DelegateOptions:
    """The options of `delegate_of`.

    Raises:
        OptionError: a wrong option; names the flag.
    """
    given = dict(flags or {})
    file = given.pop(FILE, None)
    environ: Mapping[str, str] = os.environ
    if file is not None:
        from_toml(file, who=f"--options-file {file}: ")  # for errors that name the flag
        environ = {**environ, OPTIONS_FILE: file}
    said = {"backend": backend, "device": device, "precision": precision}
    given |= {name: text for name, text in said.items() if text is not None}
    if numerics is not None:
        if "quantized_numerics" in given:
            raise OptionError("--numerics and --quantized-numerics are one option; give one")
        given["quantized_numerics"] = numerics
    if cpu_backend is not None:
        given["cpu_backend"] = cpu_backend

    def called(name: str) -> str:
        is_short = numerics is not None and name == "quantized_numerics"
        return "--numerics" if is_short else flag_of(name)

    return DelegateOptions.gathered(given, text=True, called=called, environ=environ)


@contextmanager
def opened(
    model: Path | bytes,
    backend: str | None = None,
    device: str | None = None,
    precision: str | None = None,
    numerics: str | None = None,
    flags: Flags | None = None,
    cpu_backend: str | None = None,
    batch: int = 1,
) -> Iterator[Interpreter]:
    """An interpreter (not allocated yet) on a backend; both are closed at the end. Without a
    backend or device it runs where `tflgpu.Interpreter` does: on a GPU, or on the CPU.

    Raises:
        OptionError: as `delegate_of`, or a device, precision or numerics for the CPU.
        DeviceError: as `delegate_of`.
        ModelError: no such file, or no well-formed model.
        UnsupportedError: a batch of a model that does not compute items apart from one another.
    """
    if backend == CPU:
        given = (("--device", device), ("--precision", precision), ("--numerics", numerics))
        for name, value in (*given, *((flag_of(n), v) for n, v in (flags or {}).items())):
            if value is not None:
                raise OptionError(f"{name} is for a GPU backend; --backend cpu has no such choice")
        with _read(model, None, cpu_backend, batch) as interpreter:
            yield interpreter
        return
    # The file first: a mistyped name is noticed before a device is woken up.
    _read(model, None, REFERENCES).close()
    options = options_of(backend, device, precision, numerics, flags, cpu_backend)
    if options.backend is None and options.device is None:
        with _read(model, options, batch=batch) as interpreter:
            yield interpreter
        return
    with (
        quiet_delegate(options, progress=console.kernels) as delegate,
        _read(model, delegate, batch=batch) as interpreter,
    ):
        yield interpreter


def _read(
    model: Path | bytes,
    delegate: GpuDelegate | DelegateOptions | None,
    cpu_backend: str | None = None,
    batch: int = 1,
) -> Interpreter:
    path, content = (None, model) if isinstance(model, bytes) else (str(model), None)
    if isinstance(delegate, DelegateOptions):
        made: Any = delegate  # those of the default delegate
    else:
        made = [] if delegate is None else [delegate]
    return Interpreter(path, content, made, cpu_backend=cpu_backend, batch=batch)


def allocate(interpreter: Interpreter) -> None:
    """Allocate, with a sign of life: drivers may compile for seconds. The log's sentence on
    operators left on the CPU is suppressed: the calling command shows the report. That there is no
    GPU is a line on stderr."""
    with _kept_back(TOLD), console.working("preparing the model"):
        interpreter.allocate_tensors()
    if any(refusal.code is ReasonCode.NO_DEVICE for refusal in interpreter.report.refusals):
        console.note(
            "no GPU was found, so the CPU runs the model, without the options of a device; "
            "`tflgpu devices` says what there is for --backend"
        )


def quiet_delegate(*options: DelegateOptions, **more: Any) -> GpuDelegate:
    """A delegate. That there is no device, and why, is kept back from the log: a command shows it
    in its report, or as its error."""
    with _kept_back(CHOICE):
        return GpuDelegate(*options, **more)


@contextmanager
def quiet_logs() -> Iterator[None]:
    """A context in which the choice of a device and operators left on the CPU are not logged: the
    command that opens it shows them."""
    with _kept_back(CHOICE), _kept_back(TOLD):
        yield


@contextmanager
def _kept_back(logger: logging.Logger) -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
