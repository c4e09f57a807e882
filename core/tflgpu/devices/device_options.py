"""What options require of a device: its precision, which operators go there, and what a device of
nodes does not support."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.compiler.node_choice import NodeChoice
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.contract.device import NodeDevice
from tflgpu.devices.choose import Choice
from tflgpu.errors import OptionError
from tflgpu.ir.graph import Graph
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


def node_choice(options: DelegateOptions) -> NodeChoice | None:
    """The operators that options allow on a device; None where they name none."""
    choice = NodeChoice(
        options.first_delegate_node_index,
        options.last_delegate_node_index,
        options.include,
        options.exclude,
    )
    return None if choice == NodeChoice() else choice


def unmatched_names(options: DelegateOptions, graph: Graph) -> list[str]:
    """A sentence on each name in the options that no operator of a graph has."""
    choice = node_choice(options)
    return [] if choice is None else choice.unmatched(graph)


def partition_by(options: DelegateOptions, choice: Choice) -> tuple[PartitionBy, str]:
    """Which of the operators that a device can run go to it (by gain, or all), and why.

    Where `DelegateOptions.partitioning` does not say it, everything goes to a device that was asked
    for, and everything must where ``allow_fallback`` is off. A device that computes on the CPU is
    there for trying things, and gets everything too. A GPU that tflgpu chose by itself gets what
    pays.
    """
    if options.partitioning is not None:
        return options.partitioning, "asked for by the option partitioning"
    if not options.allow_fallback:
        return PartitionBy.ALL, "allow_fallback is off"
    if choice.explicit:
        return PartitionBy.ALL, "the device was asked for"
    if choice.device is None or not choice.judgement.is_gpu(choice.device):
        return PartitionBy.ALL, "the device computes on the CPU"
    return PartitionBy.GAIN, "the device is a GPU, and nobody asked for it by name"


def objections(options: DelegateOptions, device: NodeDevice, *, explicit: bool) -> Sequence[str]:
    """A sentence for the user on each option that has no effect on this device.

    Args:
        options: The delegate's options.
        device: An opened device that runs operators itself.
        explicit: Whether an option names this device or its backend, so that options it does not
            support are a mistake; else tflgpu chose it, and unsupported options are noted.

    Raises:
        OptionError: an option that promises something cannot be kept, or needs another device.
    """
    backend = device.info.backend
    if options.memory_limit is not None:
        raise OptionError(
            f"memory_limit={options.memory_limit} cannot be kept: backend {backend} runs operators "
            "itself and does not tell what memory they take; ask for another backend, or leave "
            "memory_limit out"
        )
    if options.cache_root is None:
        return ()
    reason = (
        f"serialization_dir={options.serialization_dir} has no effect with backend {backend}: it "
        "runs operators itself, and nothing is compiled"
    )
    if explicit:
        raise OptionError(f"{reason}; leave it out, or ask for another backend")
    return (reason,)
