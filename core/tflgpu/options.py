"""`DelegateOptions`: what a user may ask of the GPU delegate."""

from __future__ import annotations

import enum
from typing import TypeVar

import attrs

from tflgpu.errors import OptionError
from tflgpu.kernel.lowering import Precision


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


_E = TypeVar("_E", bound=enum.Enum)
_P = InferencePriority
_COMPLETIONS = {
    _P.MIN_LATENCY: (_P.MIN_MEMORY_USAGE, _P.MAX_PRECISION),
    _P.MIN_MEMORY_USAGE: (_P.MAX_PRECISION, _P.MIN_LATENCY),
    _P.MAX_PRECISION: (_P.MIN_LATENCY, _P.MIN_MEMORY_USAGE),
}


def _member(kind: type[_E], value: object) -> _E:
    """A member by itself, by name in any case, or by TFLite's code."""
    for member in kind:
        if value is member or value == member.value or str(value).upper() == member.name:
            return member
    names = ", ".join(m.name for m in kind)
    raise OptionError(f"{kind.__name__} is one of {names}, not {value!r}")


def _precision(value: object) -> Precision | None:
    return None if value is None else _member(Precision, value)


def _preference(value: object) -> InferencePreference:
    return _member(InferencePreference, value)


def _priority(value: object) -> InferencePriority:
    return _member(InferencePriority, value)


@attrs.frozen(kw_only=True)
class DelegateOptions:
    """Options of `GpuDelegate`, the counterpart of TFLite's `TfLiteGpuDelegateOptionsV2`.

    Attributes:
        backend: Backend name ("opencl", ...); None picks the best that is there.
        device: Index in the backend's list, or a part of the device's name; None picks.
        precision: F32, F16 or F32_F16 (f16 storage, f32 arithmetic); None follows the
            priorities.
        is_precision_loss_allowed: TFLite's older switch: True allows 16-bit floats, False
            forbids them, None leaves it to the priorities.
        inference_preference: Single answer or sustained speed.
        inference_priority1, 2, 3: What matters first; AUTO ones are completed as TFLite does.
        max_delegated_partitions: Most parts of the graph that go to the device; None = no limit.
        min_nodes_per_partition: Smaller parts stay on the CPU.
        allow_fallback: Whether nodes that the device refuses may run on the CPU; if not, a
            refusal is an `UnsupportedError`.
        quantized_models_allowed: Whether operators on quantized tensors may run on the device, in
            floats; if not, they run on the CPU. TFLite's `ENABLE_QUANT` flag, also on by default.
        guard_bands: Check every buffer for writes outside (slow; for tests).

    Raises:
        OptionError: an unknown option, a value out of range, or a clash, naming both.
    """

    backend: str | None = None
    device: int | str | None = None
    precision: Precision | None = attrs.field(default=None, converter=_precision)
    is_precision_loss_allowed: bool | None = None
    inference_preference: InferencePreference = attrs.field(
        default=InferencePreference.FAST_SINGLE_ANSWER, converter=_preference
    )
    inference_priority1: InferencePriority = attrs.field(
        default=InferencePriority.MAX_PRECISION, converter=_priority
    )
    inference_priority2: InferencePriority = attrs.field(
        default=InferencePriority.AUTO, converter=_priority
    )
    inference_priority3: InferencePriority = attrs.field(
        default=InferencePriority.AUTO, converter=_priority
    )
    max_delegated_partitions: int | None = None
    min_nodes_per_partition: int = 1
    allow_fallback: bool = True
    quantized_models_allowed: bool = True
    guard_bands: bool = False

    def __attrs_post_init__(self) -> None:
        """Check the options against each other."""
        if self.backend is not None and not isinstance(self.backend, str):
            raise OptionError(f"backend is a name, not {self.backend!r}")
        if self.device is not None and (
            isinstance(self.device, bool) or not isinstance(self.device, (int, str))
        ):
            raise OptionError(f"device is an index or part of a name, not {self.device!r}")
        for name in ("max_delegated_partitions", "min_nodes_per_partition"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise OptionError(f"{name} is a whole number, not {value!r}")
            if value is not None and value < 1:
                raise OptionError(f"{name} is {value}; the least is 1")
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
