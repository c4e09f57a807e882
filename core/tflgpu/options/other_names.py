"""Option names of TFLite's delegates that stand for another option here, or are refused.

`canonical` turns what was given, by any of the names, into values of the options themselves. Two
names for one thing may both be given where they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tflgpu.errors import OptionError
from tflgpu.options.definition import unknown_option
from tflgpu.options.enums import ExperimentalFlags, ForceBackend
from tflgpu.options.kinds import EnumMember, Flags, Loss, OptionKind, Truth, WholeNumber
from tflgpu.options.option_list import OPTIONS
from tflgpu.values import frozen

_BACKENDS = {ForceBackend.OPENCL: "opencl", ForceBackend.OPENGL: "opengl"}


@frozen
class OtherName:
    """A name for what other options say.

    Attributes:
        name: As a keyword.
        kind: What it takes.
        means: The options, by name, that a value stands for.
        stands_for: These in words, for people.
        origin: As `Option.origin`.
    """

    name: str
    kind: OptionKind
    means: Callable[[Any], Mapping[str, object]]
    stands_for: str
    origin: str


def _of_flags(flags: ExperimentalFlags) -> dict[str, object]:
    wanted = ExperimentalFlags.CL_ONLY | ExperimentalFlags.GL_ONLY
    if flags & wanted == wanted:
        raise OptionError("experimental_flags has CL_ONLY and GL_ONLY; drop one of the two")
    found: dict[str, object] = {
        "quantized_models_allowed": ExperimentalFlags.ENABLE_QUANT in flags,
        "enable_serialization": ExperimentalFlags.ENABLE_SERIALIZATION in flags,
    }
    if flags & wanted:
        found["backend"] = "opencl" if ExperimentalFlags.CL_ONLY in flags else "opengl"
    return found


def _of_forced(backend: ForceBackend) -> dict[str, object]:
    return {} if backend is ForceBackend.UNSET else {"backend": _BACKENDS[backend]}


FLAGS = OtherName(
    "experimental_flags",
    Flags(ExperimentalFlags, "TFLITE_GPU_EXPERIMENTAL_FLAGS_"),
    _of_flags,
    "`quantized_models_allowed` (ENABLE_QUANT), `backend` (CL_ONLY: opencl, GL_ONLY: opengl) and "
    "`enable_serialization` (ENABLE_SERIALIZATION), all at once: a flag that is left out is off",
    "V2, default ENABLE_QUANT",
)

#: By name. Only `experimental_flags` stands for several options.
OTHER_NAMES: Mapping[str, OtherName] = {
    other.name: other
    for other in (
        FLAGS,
        OtherName(
            "enable_quantization", Truth(), lambda on: {"quantized_models_allowed": on},
            "`quantized_models_allowed`", "Metal, default true",
        ),
        OtherName(
            "allow_precision_loss", Truth(), lambda on: {"is_precision_loss_allowed": on},
            "`is_precision_loss_allowed`", "Metal, default false",
        ),
        OtherName(
            "precision_loss_allowed", Loss(), lambda on: {"is_precision_loss_allowed": on},
            "`is_precision_loss_allowed`", "Java, default true; GL of 2019, default false",
        ),
        OtherName(
            "force_backend", EnumMember(ForceBackend), _of_forced,
            "`backend` (UNSET: as if it were not given)", "Java, default UNSET",
        ),
        OtherName(
            "gpu_invoke_loop_times", WholeNumber(), lambda n: {"invoke_loop_times": n},
            "`invoke_loop_times`", "V2, default 1",
        ),
    )
}  # fmt: skip

#: Names of TFLite's delegates that mean nothing here, and what to do.
REFUSED: Mapping[str, str] = {
    "serialization_params": "Java's parameter object is two options here: serialization_dir and "
    "model_token",
    "preferred_gl_object_type": "there is no OpenGL backend; every backend here keeps tensors in "
    "buffers. Leave it out",
    "dynamic_batch_enabled": "nothing has to be enabled: resize_tensor_input takes any batch, and "
    "what is delegated is compiled anew for it. Leave it out",
    "inline_parameters": "shapes are always constants of the kernels here. Leave it out",
}


def canonical(
    given: Mapping[str, object],
    *,
    text: bool = False,
    called: Callable[[str], str] = str,
    who: str = "",
) -> dict[str, Any]:
    """The values of options, by their own names; what was not given is left out.

    Args:
        given: By any name.
        text: Whether values that are text are read as text: numbers in digits, lists between
            commas, "none".
        called: What errors call an option of a name: itself, or a variable, or a flag.
        who: What errors begin with: a file.

    Raises:
        OptionError: an unknown option, a value that it does not take, or two names for one thing
            that disagree, naming both.
    """
    found: dict[str, Any] = {}
    said: dict[str, str] = {}  # by option: the name and value that said so
    for name, value in given.items():
        if name in REFUSED:
            raise OptionError(f"{who}{called(name)} is no option here: {REFUSED[name]}")
        definition = OPTIONS.get(name) or OTHER_NAMES.get(name)
        if definition is None:
            raise unknown_option(name, OPTIONS, _and_others(), called(name), who)
        kind, where = definition.kind, f"{who}{called(name)}"
        as_text = text and isinstance(value, str)
        read = kind.parse(where, str(value)) if as_text else kind.read(where, value)
        means = definition.means(read) if isinstance(definition, OtherName) else {name: read}
        for option, meant in means.items():
            now = f"{where}={kind.shown(read)}"
            if option in found and found[option] != meant:
                raise OptionError(
                    f"{said[option]} and {now} contradict each other: both say what "
                    f"{option} is; drop one of the two"
                )
            found[option] = meant
            said.setdefault(option, now)
    return found


def _and_others() -> str:
    return f" (and TFLite's other names for some: {', '.join(sorted(OTHER_NAMES))})"


def flags_of(quantized: bool, backend: str | None, serialization: bool) -> ExperimentalFlags:
    """The `experimental_flags` that options stand for."""
    flags = ExperimentalFlags.NONE
    if quantized:
        flags |= ExperimentalFlags.ENABLE_QUANT
    if backend in ("opencl", "opengl"):
        is_cl = backend == "opencl"
        flags |= ExperimentalFlags.CL_ONLY if is_cl else ExperimentalFlags.GL_ONLY
    return flags | ExperimentalFlags.ENABLE_SERIALIZATION if serialization else flags


def forced(backend: str | None) -> ForceBackend:
    """The `force_backend` that a backend stands for."""
    return next((f for f, name in _BACKENDS.items() if name == backend), ForceBackend.UNSET)
