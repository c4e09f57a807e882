"""`DelegateOptions`: what a user may ask of the GPU delegate."""

from __future__ import annotations

import difflib
import enum
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import numpy as np

from tflgpu.accuracy_guard import AccuracyGuard, guard_of
from tflgpu.blame import shown
from tflgpu.compiler.numerics import Numerics
from tflgpu.errors import OptionError
from tflgpu.lowering.lowering import Precision


class InferencePriority(enum.Enum):
    """TFLite's `TfLiteGpuInferencePriority`."""

    AUTO = 0
    MAX_PRECISION = 1
    MIN_LATENCY = 2
    MIN_MEMORY_USAGE = 3


class InferencePreference(enum.Enum):
    """TFLite's `TfLiteGpuInferenceUsage`."""

    FAST_SINGLE_ANSWER = 0
    SUSTAINED_SPEED = 1
    BALANCED = 2


class OpResolverType(enum.Enum):
    """TFLite's choice of CPU kernels, for what runs on the CPU by LiteRT. NumPy has one of each."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


#: What a string may say for a truth value, in any case: options of TFLite's delegates that are
#: loaded from a library are all strings.
_WORDS = {
    "true": True, "false": False, "1": True, "0": False,
    "yes": True, "no": False, "on": True, "off": False,
}  # fmt: skip
_DIGITS = 9  # of an index; longer runs of digits are part of a name, if anything

_E = TypeVar("_E", bound=enum.Enum)
_P = InferencePriority
_COMPLETIONS = {
    _P.MIN_LATENCY: (_P.MIN_MEMORY_USAGE, _P.MAX_PRECISION),
    _P.MIN_MEMORY_USAGE: (_P.MAX_PRECISION, _P.MIN_LATENCY),
    _P.MAX_PRECISION: (_P.MIN_LATENCY, _P.MIN_MEMORY_USAGE),
}


# Conversions of what was given. Each is of one option, which its error names.


def _member(option: str, kind: type[_E], value: object, prefix: str = "") -> _E:
    """A member by itself, by name in any case (with or without TFLite's prefix), or by TFLite's
    code."""
    if isinstance(value, kind):
        return value
    code = _whole(value)
    if isinstance(value, str):
        name = value.strip().upper().removeprefix(prefix)
        if name in kind.__members__:
            return kind[name]
        code = int(name) if len(name) == 1 and name.isascii() and name.isdecimal() else None
    for member in kind:
        if code is not None and member.value == code:
            return member
    codes = isinstance(next(iter(kind)).value, int)
    names = ", ".join(f"{m.name} ({m.value})" if codes else m.name for m in kind)
    raise OptionError(f"{option} is one of {names}, not {shown(value)}")


def _whole(value: object) -> int | None:
    """A whole number of any integer type, None for everything else; a truth value is none."""
    if isinstance(value, (bool, np.bool_, enum.Enum)) or not hasattr(value, "__index__"):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of other than one number
        return None


def truth(option: str, value: object) -> bool:
    """A truth value as options take it: a boolean, 0 or 1, or a word such as "yes" in any case.

    Raises:
        OptionError: anything else; ``option`` is what the error calls it.
    """
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, str):
        known = _WORDS.get(value.strip().lower())
    else:
        whole = _whole(value)
        known = None if whole is None else {0: False, 1: True}.get(whole)
    if known is None:
        raise OptionError(
            f"{option} is True or False (also 1, 0, 'yes', 'no', 'on', 'off'), not {shown(value)}"
        )
    return bool(known)


def _count(option: str, value: object) -> int:
    count = _whole(value)
    if count is None:
        raise OptionError(f"{option} is a whole number, not {shown(value)}")
    if count < 1:
        raise OptionError(f"{option} is {shown(count)}; the least is 1")
    return count


def _name(option: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{option} is a name, not {shown(value)}")
    return value


def _device(option: str, value: object) -> int | str:
    if isinstance(value, str) and value.strip():
        return value
    index = _whole(value)
    if index is None or index < 0:
        raise OptionError(f"{option} is an index from 0 or part of a name, not {shown(value)}")
    return index


def device_from_text(option: str, text: str) -> int | str:
    """A device as a command line or an environment variable names it: an index, or a part of a
    name; ``option`` is what the error calls it.

    Raises:
        OptionError: it is neither.
    """
    text = text.strip()
    if text.lstrip("+-").isascii() and text.lstrip("+-").isdecimal() and len(text) <= _DIGITS:
        return _device(option, int(text))
    return _device(option, text)


def _loss(option: str, value: object) -> bool | None:
    if _whole(value) == -1 or (isinstance(value, str) and value.strip() == "-1"):
        return None
    try:
        return truth(option, value)
    except OptionError:
        raise OptionError(
            f"{option} is True (1), False (0), or None (-1) to follow the priorities, not {shown(value)}"
        ) from None


def precision_of(option: str, value: object) -> Precision:
    """A precision by itself or by name; ``option`` is what the error calls it.

    Raises:
        OptionError: anything else.
    """
    return _member(option, Precision, value)


def numerics_of(option: str, value: object) -> Numerics:
    """Numerics by themselves or by name; ``option`` is what the error calls them.

    Raises:
        OptionError: anything else.
    """
    return _member(option, Numerics, value)


def _preference(option: str, value: object) -> InferencePreference:
    return _member(option, InferencePreference, value, "TFLITE_GPU_INFERENCE_PREFERENCE_")


def _priority(option: str, value: object) -> InferencePriority:
    return _member(option, InferencePriority, value, "TFLITE_GPU_INFERENCE_PRIORITY_")


# One named converter an option: an error must say which it is, and mypy follows no other kind.


def _to_backend(value: object) -> str | None:
    return None if value is None else _name("backend", value)


def _to_device(value: object) -> int | str | None:
    return None if value is None else _device("device", value)


def _to_precision(value: object) -> Precision | None:
    return None if value is None else precision_of("precision", value)


def _to_is_precision_loss_allowed(value: object) -> bool | None:
    return None if value is None else _loss("is_precision_loss_allowed", value)


def _to_inference_preference(value: object) -> InferencePreference:
    return _preference("inference_preference", value)


def _to_inference_priority1(value: object) -> InferencePriority:
    return _priority("inference_priority1", value)


def _to_inference_priority2(value: object) -> InferencePriority:
    return _priority("inference_priority2", value)


def _to_inference_priority3(value: object) -> InferencePriority:
    return _priority("inference_priority3", value)


def _to_max_delegated_partitions(value: object) -> int | None:
    return None if value is None else _count("max_delegated_partitions", value)


def _to_min_nodes_per_partition(value: object) -> int:
    return _count("min_nodes_per_partition", value)


def _to_allow_fallback(value: object) -> bool:
    return truth("allow_fallback", value)


def _to_quantized_models_allowed(value: object) -> bool:
    return truth("quantized_models_allowed", value)


def _to_quantized_numerics(value: object) -> Numerics:
    return numerics_of("quantized_numerics", value)


def _to_guard_bands(value: object) -> bool:
    return truth("guard_bands", value)


def _to_cpu_backend(value: object) -> str | None:
    return None if value is None else _name("cpu_backend", value)


def _to_num_threads(value: object) -> int | None:
    return None if value is None else _count("num_threads", value)


def _to_op_resolver(value: object) -> OpResolverType:
    return OpResolverType.AUTO if value is None else _member("op_resolver", OpResolverType, value)


def _to_accuracy_guard(value: object) -> AccuracyGuard | None:
    return guard_of(value)


def unknown_option(name: str, known: Iterable[str]) -> OptionError:
    """The error for an option that does not exist, with the one that was probably meant."""
    listed = sorted(known)
    close = difflib.get_close_matches(name, listed, 1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    return OptionError(f"unknown option {name}{meant}; there are {', '.join(listed)}")


@attrs.frozen(kw_only=True)
class DelegateOptions:
    """Options of `GpuDelegate`, the counterpart of TFLite's `TfLiteGpuDelegateOptionsV2`.

    Attributes:
        backend: Backend name ("opencl", ...); None picks the best that is there.
        device: Index in the backend's list, or a part of the device's name; None picks.
        precision: F32, F16 or F32_F16 (f16 storage, f32 arithmetic); None follows the
            priorities.
        is_precision_loss_allowed: TFLite's older switch: True (1) allows 16-bit floats, False (0)
            forbids them, None (-1, TFLite's default) leaves it to the priorities.
        inference_preference: Single answer or sustained speed. Checked, and without effect: every
            model is compiled for the speed of single answers.
        inference_priority1, 2, 3: What matters first; AUTO ones are completed as TFLite does.
            These and the preference may also be given by name, with TFLite's prefix or without
            (``"TFLITE_GPU_INFERENCE_PRIORITY_MIN_LATENCY"``, ``"min_latency"``), or by TFLite's
            code.
        max_delegated_partitions: Most parts of the graph that go to the device; None = no limit.
        min_nodes_per_partition: Smaller parts stay on the CPU.
        allow_fallback: Whether nodes that the device refuses may run on the CPU; if not, a
            refusal is an `UnsupportedError`.
        quantized_models_allowed: Whether operators on quantized tensors may run on the device; if
            not, they run on the CPU. TFLite's `ENABLE_QUANT` flag, also on by default.
        quantized_numerics: What operators on quantized tensors are computed on: FLOAT, real numbers
            that are rounded behind each operator, or INTEGER, the stored numbers, bit for bit as
            TFLite's reference kernels, where there is a kernel that does so; the report says of
            which operators that is true, and of the others why not.
        guard_bands: Check every buffer for writes outside (slow; for tests).
        cpu_backend: What runs the operators that the device does not: "litert" (LiteRT's kernels)
            or "cpu_ref" (NumPy); None follows ``TFLGPU_CPU_BACKEND``, then takes LiteRT where it
            is installed.
        num_threads: Threads of the CPU's kernels; None leaves it to them (LiteRT takes one).
        op_resolver: Which of LiteRT's kernels: `OpResolverType`, or a member's name or code.
        accuracy_guard: Whether, and how many of, the first invocations are compared with the CPU:
            None for none, a number of runs, or an `AccuracyGuard`, which may also be given as text
            (``"runs=3,tolerance=0.02,on_failure=keep"``). See docs/accuracy.md.

    Truth values may be given as 0 and 1, and as the words "true", "false", "yes", "no", "on" and
    "off" in any case.

    Raises:
        OptionError: an unknown option, a value out of range, or a clash, naming both.
    """

    backend: str | None = attrs.field(default=None, converter=_to_backend)
    device: int | str | None = attrs.field(default=None, converter=_to_device)
    precision: Precision | None = attrs.field(default=None, converter=_to_precision)
    is_precision_loss_allowed: bool | None = attrs.field(
        default=None,
        converter=_to_is_precision_loss_allowed,
    )
    inference_preference: InferencePreference = attrs.field(
        default=InferencePreference.FAST_SINGLE_ANSWER,
        converter=_to_inference_preference,
    )
    inference_priority1: InferencePriority = attrs.field(
        default=_P.MAX_PRECISION, converter=_to_inference_priority1
    )
    inference_priority2: InferencePriority = attrs.field(
        default=_P.AUTO, converter=_to_inference_priority2
    )
    inference_priority3: InferencePriority = attrs.field(
        default=_P.AUTO, converter=_to_inference_priority3
    )
    max_delegated_partitions: int | None = attrs.field(
        default=None,
        converter=_to_max_delegated_partitions,
    )
    min_nodes_per_partition: int = attrs.field(default=1, converter=_to_min_nodes_per_partition)
    allow_fallback: bool = attrs.field(default=True, converter=_to_allow_fallback)
    quantized_models_allowed: bool = attrs.field(
        default=True, converter=_to_quantized_models_allowed
    )
    quantized_numerics: Numerics = attrs.field(
        default=Numerics.FLOAT, converter=_to_quantized_numerics
    )
    guard_bands: bool = attrs.field(default=False, converter=_to_guard_bands)
    cpu_backend: str | None = attrs.field(default=None, converter=_to_cpu_backend)
    num_threads: int | None = attrs.field(default=None, converter=_to_num_threads)
    op_resolver: OpResolverType = attrs.field(
        default=OpResolverType.AUTO, converter=_to_op_resolver
    )
    accuracy_guard: AccuracyGuard | None = attrs.field(default=None, converter=_to_accuracy_guard)

    if not TYPE_CHECKING:

        def __init__(self, **options: Any) -> None:
            known = attrs.fields_dict(type(self))
            for name in options:
                if name not in known:
                    raise unknown_option(name, known)
            self.__attrs_init__(**options)

    def __attrs_post_init__(self) -> None:
        """Check the options against each other."""
        if self.is_precision_loss_allowed is False and self.precision in (
            Precision.F16,
            Precision.F32_F16,
        ):
            raise OptionError(
                f"precision={self.precision.name} needs 16-bit floats, which "
                "is_precision_loss_allowed=False forbids; drop one of the two"
            )
        _ = self.priorities

    @property
    def priorities(self) -> tuple[InferencePriority, InferencePriority, InferencePriority]:
        """The three priorities, AUTO ones completed by TFLite's rules.

        Raises:
            OptionError: the first is AUTO, the second is AUTO but the third is not, or one is
                given twice.
        """
        first, second, third = (
            self.inference_priority1,
            self.inference_priority2,
            self.inference_priority3,
        )
        if first is _P.AUTO:
            raise OptionError("inference_priority1 must not be AUTO; give what matters most")
        if second is _P.AUTO:
            if third is not _P.AUTO:
                raise OptionError("inference_priority3 is set but inference_priority2 is AUTO")
            second, third = _COMPLETIONS[first]
        given = [first, second] + ([] if third is _P.AUTO else [third])
        if len(set(given)) != len(given):
            raise OptionError("inference priorities repeat: " + ", ".join(p.name for p in given))
        if third is _P.AUTO:
            (third,) = set(_COMPLETIONS) - {first, second}
        return first, second, third

    @property
    def wanted_precision(self) -> Precision:
        """The precision asked for; a device may have to fall back to one with more bits."""
        if self.precision is not None:
            return self.precision
        if self.is_precision_loss_allowed is not None:
            return Precision.F16 if self.is_precision_loss_allowed else Precision.F32
        position = self.priorities.index(_P.MAX_PRECISION)
        return (Precision.F32, Precision.F32_F16, Precision.F16)[position]


def options_from_text(options: Mapping[str, object]) -> DelegateOptions:
    """Options whose values are text, as TFLite's `load_delegate` takes them: numbers in digits, truth
    values as words, and "none" for what picks by itself. Other values are taken as they are.

    Raises:
        OptionError: as `DelegateOptions`.
    """
    known = attrs.fields_dict(DelegateOptions)
    given: dict[str, object] = {}
    for name, value in options.items():
        if name not in known:
            raise unknown_option(str(name), known)
        text = value.strip() if isinstance(value, str) else None
        if text is None:
            given[name] = value
        elif text.lower() in ("none", "") and known[name].default is None:
            given[name] = None
        elif name == "device":
            given[name] = device_from_text(name, text)
        elif isinstance(known[name].default, bool) or not _is_count(text):
            given[name] = value
        else:
            given[name] = int(text)
    return DelegateOptions(**given)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS
