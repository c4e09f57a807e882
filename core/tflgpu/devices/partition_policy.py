"""Whether operators go to the device wherever they can, or only where it is faster."""

from __future__ import annotations

from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.devices.choose import Choice
from tflgpu.options import DelegateOptions


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
