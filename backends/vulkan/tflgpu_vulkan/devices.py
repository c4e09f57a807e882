"""Which Vulkan devices there are."""

from __future__ import annotations

from contextlib import closing

from tflgpu.backend_kit.listing import Listing
from tflgpu.contract.device import DeviceInfo, Probe, uuid_text
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import lib, listed
from tflgpu_vulkan.features import Details, details_of
from tflgpu_vulkan.instance import Instance

NAME = "vulkan"


def find_devices(instance: Instance) -> Listing[Details]:
    """All usable devices, and why others are not.

    GPUs come first, of those the ones with memory of their own; within a group devices keep the
    loader's order, which it makes the same in every process.
    """
    problems: list[str] = []
    ranked: list[tuple[int, DeviceInfo, Details]] = []
    enumerate_devices = lib.vkEnumeratePhysicalDevices
    handles = listed(
        enumerate_devices, "VkPhysicalDevice", instance.handle, what="listing Vulkan devices"
    )
    for handle in handles:
        found = details_of(instance, handle)
        if isinstance(found, str):
            problems.append(found)
        else:
            caps = found.caps
            uuid = uuid_text(found.uuid)
            info = DeviceInfo(NAME, 0, found.name, caps.vendor, caps.is_gpu, found.driver, uuid)
            ranked.append((found.rank, info, found))
    return Listing.of("Vulkan", ranked, "; ".join(problems) or "no Vulkan driver has a device")


def probe() -> Probe:
    """What `tflgpu_probe` answers; makes an instance and no device."""
    try:
        with closing(Instance()) as instance:
            return find_devices(instance).probe()
    except DeviceError as error:
        return Probe(False, str(error))
