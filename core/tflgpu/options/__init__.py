"""The options of a delegate: one definition, and the sources that values come from."""

from __future__ import annotations

from tflgpu.compiler.numerics import Numerics
from tflgpu.options.checks import CPU
from tflgpu.options.definition import unknown_option
from tflgpu.options.delegate_options import DelegateOptions
from tflgpu.options.enums import (
    ExperimentalFlags,
    ForceBackend,
    InferencePreference,
    InferencePriority,
    OnError,
    OpResolverType,
    WaitType,
)
from tflgpu.options.keywords import OptionKeywords
from tflgpu.options.kinds import EnumMember, truth
from tflgpu.options.names import device_from_text
from tflgpu.options.option_list import OPTIONS
from tflgpu.options.other_names import OTHER_NAMES
from tflgpu.options.sources import OPTIONS_FILE


def numerics_of(option: str, value: object) -> Numerics:
    """Numerics by themselves or by name; ``option`` is what the error calls them.

    Raises:
        OptionError: anything else.
    """
    found: Numerics = EnumMember(Numerics).read(option, value)
    return found


__all__ = [
    "CPU",
    "OPTIONS",
    "OPTIONS_FILE",
    "OTHER_NAMES",
    "DelegateOptions",
    "ExperimentalFlags",
    "ForceBackend",
    "InferencePreference",
    "InferencePriority",
    "OnError",
    "OpResolverType",
    "OptionKeywords",
    "WaitType",
    "device_from_text",
    "numerics_of",
    "truth",
    "unknown_option",
]
