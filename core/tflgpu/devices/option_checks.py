"""Options that not every device can honour: asked when one was opened."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import OptionError
from tflgpu.options import DelegateOptions


def objections(
    options: DelegateOptions, device: Device | NodeDevice, *, explicit: bool
) -> Sequence[str]:
    """What to tell the user of options that this device leaves without effect.

    Args:
        options: What was asked for.
        device: An opened device.
        explicit: Somebody asked for this device or its backend, so that options that do not go with
            it are a mistake; else it was found, and the options are for whatever is found.

    Raises:
        OptionError: an option that is a promise cannot be kept, or one goes with another device.
    """
    backend = device.info.backend
    if options.memory_limit is not None and isinstance(device, NodeDevice):
        raise OptionError(
            f"memory_limit={options.memory_limit} cannot be kept: backend {backend} runs operators "
            "itself and does not tell what memory they take; ask for another backend, or leave "
            "memory_limit out"
        )
    if options.cache_root is None or not isinstance(device, NodeDevice):
        return ()
    reason = (
        f"serialization_dir={options.serialization_dir} has no effect with backend {backend}: it "
        "runs operators itself, and nothing is compiled"
    )
    if explicit:
        raise OptionError(f"{reason}; leave it out, or ask for another backend")
    return (reason,)
