"""Whether a part must pay to go to the device, or goes because it can."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tflgpu.compiler.partition import PartitionBy
from tflgpu.devices.choose import Choice
from tflgpu.errors import OptionError
from tflgpu.options import DelegateOptions

VARIABLE = "TFLGPU_PARTITIONING"


def partition_by(
    options: DelegateOptions, choice: Choice, environ: Mapping[str, str] = os.environ
) -> tuple[PartitionBy, str]:
    """What goes to a device of all that it can run, and why that.

    Order of say: `DelegateOptions.partitioning`, then ``TFLGPU_PARTITIONING``. Where neither says it,
    everything goes to a device that was asked for, and everything must where ``allow_fallback`` is
    off. A device that computes on the CPU is there for trying things, and gets everything too. A GPU
    that tflgpu chose by itself gets what pays.

    Raises:
        OptionError: the variable says neither.
    """
    if options.partitioning is not None:
        return options.partitioning, "asked for by DelegateOptions"
    said = environ.get(VARIABLE, "").strip()
    if not options.allow_fallback:
        return PartitionBy.ALL, "allow_fallback is off"
    if said:
        try:
            asked = DelegateOptions(partitioning=said).partitioning
        except OptionError as error:
            raise OptionError(f"{VARIABLE}: {error}") from None
        assert asked is not None
        return asked, f"asked for by {VARIABLE}"
    if choice.explicit:
        return PartitionBy.ALL, "the device was asked for"
    if choice.device is None or not choice.judgement.is_gpu(choice.device):
        return PartitionBy.ALL, "the device computes on the CPU"
    return PartitionBy.GAIN, "the device is a GPU, and nobody asked for it by name"
