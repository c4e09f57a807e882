"""Options that not every device supports, checked when a device is opened."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.contract.device import Device, NodeDevice
from tflgpu.errors import OptionError
from tflgpu.options import DelegateOptions


def objections(
    options: DelegateOptions, device: Device | NodeDevice, *, explicit: bool
) -> Sequence[str]:
    """A sentence for the user on each option that has no effect on this device.

    Args:
        options: The delegate's options.
        device: An opened device.
        explicit: Whether an option names this device or its backend, so that options it does not
            support are a mistake; else tflgpu chose it, and unsupported options are noted.

    Raises:
        OptionError: an option that promises something cannot be kept, or needs another device.
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
