"""Which Vulkan devices there are."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import attrs
from tflgpu.contract.device import DeviceInfo, Probe
from tflgpu.contract.listing import device_of, probe_of
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import lib, listed
from tflgpu_vulkan.features import Details, details_of
from tflgpu_vulkan.instance import Instance

NAME = "vulkan"


@attrs.frozen
class Found:
    """A device, its handle in an instance, and what it can do."""

    info: DeviceInfo
    details: Details
    handle: Any = attrs.field(eq=False, repr=False)


def find_devices(instance: Instance) -> tuple[tuple[Found, ...], tuple[str, ...]]:
    """All usable devices, and why others are not.

    GPUs come first, of those the ones with memory of their own; within a group devices keep the
    loader's order, which it makes the same in every process.
    """
    problems: list[str] = []
    usable: list[tuple[Details, Any]] = []
    enumerate_devices = lib.vkEnumeratePhysicalDevices
    handles = listed(
        enumerate_devices, "VkPhysicalDevice", instance.handle, what="listing Vulkan devices"
    )
    for handle in handles:
        details = details_of(instance, handle)
        if isinstance(details, str):
            problems.append(details)
        else:
            usable.append((details, handle))
    usable.sort(key=lambda pair: pair[0].rank)
    found = tuple(
        Found(DeviceInfo(NAME, i, d.name, d.caps.vendor, d.caps.is_gpu, d.driver), d, handle)
        for i, (d, handle) in enumerate(usable)
    )
    return found, tuple(problems)


def probe() -> Probe:
    """What `tflgpu_probe` answers; makes an instance and no device."""
    try:
        with closing(Instance()) as instance:
            found, problems = find_devices(instance)
    except DeviceError as error:
        return Probe(False, str(error))
    return probe_of(found, "; ".join(problems) or "no Vulkan driver has a device")


def device_at(instance: Instance, index: int) -> Found:
    """A device by its index.

    Raises:
        DeviceError: there is none of that index; lists those there are.
    """
    found, problems = find_devices(instance)
    return device_of(found, index, "Vulkan", "; ".join(problems))
