"""What options require of a device: its precision, and the operators that may go there."""

from __future__ import annotations

from tflgpu.compiler.node_choice import NodeChoice
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.precision import Precision
from tflgpu.options import DelegateOptions


def precision_note(wanted: Precision, used: Precision) -> tuple[str, ...]:
    """For a report: a note where another precision is used than the options name, else none."""
    if wanted is used:
        return ()
    return (f"precision {wanted.value} is not there; {used.value} is used",)


def precision_on(caps: DeviceCaps, wanted: Precision) -> Precision:
    """The precision that the options name, or the next with more bits that the device has."""
    if wanted is Precision.F16 and not caps.f16_arithmetic:
        wanted = Precision.F32_F16
    if wanted is Precision.F32_F16 and not caps.f16_storage:
        wanted = Precision.F32
    return wanted


def node_choice(options: DelegateOptions) -> NodeChoice:
    """The operators that options allow on a device."""
    return NodeChoice(
        options.first_delegate_node_index,
        options.last_delegate_node_index,
        options.include,
        options.exclude,
    )
