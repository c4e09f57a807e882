"""UUIDs of adapters. WebGPU tells none, but where it runs on Vulkan, Vulkan's devices have them.

An adapter and a Vulkan device of equal PCI numbers and names are the same GPU where each list has
one of them. Where it has several, equal GPUs, both lists have the order of Vulkan's loader, which
is what wgpu lists adapters by. Where the lists do not have equally many of them, nothing is told.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from tflgpu.contract.device import UUID_BYTES, uuid_text

#: PCI numbers of the vendor and the device, and the name.
_Kind = tuple[int, int, str]

_VERSION_1_1 = 1 << 22 | 1 << 12
_NAME_BYTES = 256
_PROPERTIES_BYTES = 824  # of VkPhysicalDeviceProperties on 64-bit machines
_INSTANCE, _APPLICATION, _PROPERTIES_2, _ID = 1, 0, 1000059001, 1000071004  # VkStructureType


class VulkanDevice(NamedTuple):
    """A device in Vulkan's list."""

    kind: _Kind
    uuid: str | None


def uuids_of(
    adapters: Sequence[Mapping[str, Any]],
    vulkan: Callable[[], Sequence[VulkanDevice]] | None = None,
) -> list[str | None]:
    """`DeviceInfo.uuid` of each adapter, None where it cannot be told.

    Args:
        adapters: What wgpu says of them, in its order.
        vulkan: Lists Vulkan's devices in the loader's order; by default the loader is asked.
    """
    kinds = [
        (int(each["vendor_id"]), int(each["device_id"]), str(each["device"]))
        if each["backend_type"] == "Vulkan"
        else None
        for each in adapters
    ]
    devices: Sequence[VulkanDevice] = ()
    if any(kinds):
        with suppress(OSError, AttributeError):
            devices = (vulkan or _vulkan_devices)()
    found: list[str | None] = []
    for at, kind in enumerate(kinds):
        same = [device.uuid for device in devices if device.kind == kind]
        is_paired = len(same) == kinds.count(kind)
        found.append(same[kinds[:at].count(kind)] if is_paired else None)
    return found


class _Application(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class _Instance(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_Application)),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]


class _Identity(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("device", ctypes.c_ubyte * UUID_BYTES),
        ("driver", ctypes.c_ubyte * UUID_BYTES),
        ("luid", ctypes.c_ubyte * 8),
        ("node_mask", ctypes.c_uint32),
        ("valid", ctypes.c_uint32),
    ]


class _Properties(ctypes.Structure):
    """VkPhysicalDeviceProperties2, as far as it is read."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("api_version", ctypes.c_uint32),
        ("driver_version", ctypes.c_uint32),
        ("vendor", ctypes.c_uint32),
        ("device", ctypes.c_uint32),
        ("kind", ctypes.c_uint32),
        ("name", ctypes.c_char * _NAME_BYTES),
        ("others", ctypes.c_uint64 * ((_PROPERTIES_BYTES - 20 - _NAME_BYTES + 7) // 8)),
    ]


def _vulkan_devices() -> list[VulkanDevice]:
    """Vulkan's devices; none where an instance of Vulkan 1.1 cannot be made.

    Raises:
        OSError, AttributeError: there is no loader, or it is that of Vulkan 1.0.
    """
    loader = ctypes.CDLL("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1")
    describe = loader.vkGetPhysicalDeviceProperties2
    application = _Application(_APPLICATION, api_version=_VERSION_1_1)
    create = _Instance(_INSTANCE, application=ctypes.pointer(application))
    instance = ctypes.c_void_p()
    if loader.vkCreateInstance(ctypes.byref(create), None, ctypes.byref(instance)):
        return []
    try:
        count = ctypes.c_uint32()
        loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        found = []
        for handle in handles[: count.value]:
            identity = _Identity(_ID)
            seen = _Properties(_PROPERTIES_2, next=ctypes.addressof(identity))
            describe(ctypes.c_void_p(handle), ctypes.byref(seen))
            name = seen.name.decode(errors="replace")
            uuid = uuid_text(bytes(identity.device)) if seen.api_version >= _VERSION_1_1 else None
            found.append(VulkanDevice((seen.vendor, seen.device, name), uuid))
        return found
    finally:
        loader.vkDestroyInstance(instance, None)
