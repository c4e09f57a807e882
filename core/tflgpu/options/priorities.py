"""TFLite's rules for inference priorities (`api.cc`): defaults, precision and memory."""

from __future__ import annotations

from tflgpu.errors import OptionError
from tflgpu.lowering.precision import Precision
from tflgpu.options.enums import InferencePriority

_P = InferencePriority
Three = tuple[InferencePriority, InferencePriority, InferencePriority]
_COMPLETIONS = {
    _P.MIN_LATENCY: (_P.MIN_MEMORY_USAGE, _P.MAX_PRECISION),
    _P.MIN_MEMORY_USAGE: (_P.MAX_PRECISION, _P.MIN_LATENCY),
    _P.MAX_PRECISION: (_P.MIN_LATENCY, _P.MIN_MEMORY_USAGE),
}


def completed(
    first: InferencePriority, second: InferencePriority, third: InferencePriority
) -> Three:
    """The three priorities with AUTO ones filled in.

    Raises:
        OptionError: the first is AUTO, the second is AUTO but the third is not, or one is given
            twice.
    """
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


def precision_for(priorities: Three) -> Precision:
    """The precision that TFLite's OpenCL API would take: by the place of MAX_PRECISION."""
    position = priorities.index(_P.MAX_PRECISION)
    return (Precision.F32, Precision.F32_F16, Precision.F16)[position]


def memory_first(priorities: Three) -> bool:
    """Whether memory matters more than latency."""
    return priorities.index(_P.MIN_MEMORY_USAGE) < priorities.index(_P.MIN_LATENCY)
