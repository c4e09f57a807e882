"""Which OpenCL devices there are, and what they can do."""

from __future__ import annotations

import os
from typing import Any

import pyopencl as cl
from tflgpu.backend_kit.driver_libraries import load_drivers
from tflgpu.backend_kit.forks import REMEDY, Begun
from tflgpu.backend_kit.listing import Found, Listing, vendor_named
from tflgpu.contract.device import UUID_BYTES, DeviceInfo, uuid_text
from tflgpu.errors import DeviceError
from tflgpu.errors.blame import attempt
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import LARGEST_GROUP

from tflgpu_opencl.native import native

NAME = "opencl"
_MAX_BINDINGS = 64
_POINTER_BYTES = 8
_LEAST_SUBGROUP = 8
_UUID_KHR = 0x106A  # CL_DEVICE_UUID_KHR, which pyopencl does not know

#: Vendors whose devices compute in threads that were started when the devices were first listed.
#: A child has none of them, and there is no way to have them started again.
_NO_CHILDREN = ("pocl",)
#: Of OpenCL's library: that devices were listed.
_listing = Begun()


def find_devices() -> Listing[Any]:
    """All devices of all platforms, by pyopencl's handles.

    GPUs come first, of those the ones with memory of their own; within a group devices are
    ordered by platform and name, so that an index means the same device in every process.
    """
    ranked: list[tuple[Any, DeviceInfo, Any]] = []
    problems: list[str] = []
    if reason := load_drivers(_driver_places(), "OCL_ICD_VENDORS"):
        return Listing("OpenCL", (), reason)
    _listing.begun = True
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return Listing("OpenCL", (), f"no OpenCL platform is installed ({error})")
    for platform in platforms:
        name = "an OpenCL platform"
        try:
            name = platform.name.strip()
            listed = platform.get_devices()
        except cl.Error as error:
            problems.append(f"{name}: {error}")
            continue
        for handle in listed:
            try:
                ranked.append((_order(handle), _info(handle), handle))
            except cl.Error as error:
                problems.append(f"a device of {name}: {error}")
        if not listed:
            problems.append(f"{name}: it has no devices")
    reason = "; ".join(problems) or "no OpenCL platform has a device"
    return Listing.of("OpenCL", ranked, reason)


def _driver_places() -> list[str]:
    """Where OpenCL's loaders look for drivers: ocl-icd, Khronos's, and the one that comes with
    pyopencl."""
    environ = os.environ
    folder = environ.get("OPENCL_VENDOR_PATH") or "/etc/OpenCL/vendors"
    chosen = environ.get("OCL_ICD_VENDORS") or folder
    if chosen.endswith(".icd") and "/" not in chosen:
        chosen = f"{folder}/{chosen}"
    own = f"{environ['PYOPENCL_HOME']}/.libs" if "PYOPENCL_HOME" in environ else ""
    return [chosen, own, *environ.get("OCL_ICD_FILENAMES", "").split(":")]


def device_at(index: int) -> Found[Any]:
    """A device by its index.

    Raises:
        DeviceError: there is none of that index; lists those there are. Or the process was
            forked, and the driver is one that does not survive that.
    """
    device = find_devices().at(index)
    info = device.info
    if _listing.inherited and info.vendor in _NO_CHILDREN:
        raise DeviceError(
            f"{info.name} cannot be opened: its driver, {info.driver}, was in use before this "
            f"process was forked, and its threads are gone; {REMEDY}"
        )
    return device


def caps_of(handle: Any, *, f16_arithmetic: bool) -> DeviceCaps:
    """A device's limits and features."""
    is_gpu = _is_gpu(handle)
    sizes = [*handle.max_work_item_sizes, 1, 1][:3]
    # OpenCL bounds the number of work items, not of groups; 2^31 keeps every index an int.
    axis = 65535 if is_gpu else 2**31 - 1
    return DeviceCaps(
        f16_storage=True,  # vload_half and vstore_half are part of every OpenCL
        f16_arithmetic=f16_arithmetic,
        int8_storage=True,
        max_workgroup=int(handle.max_work_group_size),
        max_workgroup_size=(int(sizes[0]), int(sizes[1]), int(sizes[2])),
        heavy_workgroup=256,
        max_groups=(2**31 - 1, axis, axis),
        shared_bytes=int(handle.local_mem_size),
        max_buffer_bytes=int(handle.max_mem_alloc_size),
        max_bindings=min(_MAX_BINDINGS, int(handle.max_parameter_size) // _POINTER_BYTES),
        cache_bytes=int(handle.global_mem_cache_size),
        compute_units=max(1, int(handle.max_compute_units)),
        is_gpu=is_gpu,
        vendor=vendor_of(handle),
    )


def alignment_of(handle: Any) -> int:
    """Bytes to which a sub-buffer's origin must be aligned (the API speaks of bits)."""
    return max(64, int(handle.mem_base_addr_align) // 8)


def lists_f16(handle: Any) -> bool:
    """Whether the driver promises arithmetic in half."""
    return "cl_khr_fp16" in str(handle.extensions).split()


def shares_memory(handle: Any) -> bool:
    """Whether host and device use the same memory."""
    return bool(_optional(handle, "host_unified_memory", False))


def fingerprint(handle: Any) -> str:
    """Everything that a compiled binary depends on, besides its source."""
    platform = handle.platform
    parts = (
        platform.name,
        platform.version,
        handle.vendor,
        handle.name,
        handle.version,
        handle.driver_version,
    )
    return "\n".join(str(p) for p in parts)


def _info(handle: Any) -> DeviceInfo:
    platform = handle.platform.name.strip("\0 ")
    driver = f"{platform} {handle.driver_version.strip()}"
    name = handle.name.strip("\0 ")
    return DeviceInfo(NAME, 0, name, vendor_of(handle), _is_gpu(handle), driver, _uuid(handle))


def _uuid(handle: Any) -> str | None:
    if "cl_khr_device_uuid" not in str(_optional(handle, "extensions", "")).split():
        return None
    raw = attempt(native().device_info, handle, _UUID_KHR, UUID_BYTES)
    return uuid_text(raw) if isinstance(raw, bytes) else None


def _order(handle: Any) -> tuple[bool, bool, str, str]:
    return (not _is_gpu(handle), shares_memory(handle), handle.platform.name, handle.name)


def _is_gpu(handle: Any) -> bool:
    return bool(handle.type & cl.device_type.GPU)


def vendor_of(handle: Any) -> str:
    """Who made the driver, as in `DeviceCaps.vendor`; "" if unknown."""
    platform = f"{handle.platform.name} {handle.platform.vendor}"
    # A software platform reports the vendor of the machine's CPU.
    if "portable computing language" in platform.lower():
        return "pocl"
    # A driver names the hardware's vendor first of all; a platform may serve several.
    return vendor_named(str(handle.vendor), platform)


def _subgroup(handle: Any) -> int:
    for name in ("warp_size_nv", "wavefront_width_amd"):
        width = int(_optional(handle, name, 0))
        if width:
            return width
    return 0


def widest_shuffle(handle: Any) -> int:
    """The most neighbours that may be in one subgroup in every kernel; 0 where nothing shuffles.

    NVIDIA's compiler has an instruction for it; other GPUs need cl_khr_subgroup_shuffle. A
    compiler may choose a width for each kernel; where a driver tells none, the least that GPUs
    have is meant.
    """
    if not _is_gpu(handle):
        return 0
    listed = "cl_khr_subgroup_shuffle" in str(handle.extensions).split()
    if vendor_of(handle) != "nvidia" and not listed:
        return 0
    return min(LARGEST_GROUP, _subgroup(handle) or _LEAST_SUBGROUP)


def _optional(handle: Any, name: str, default: Any) -> Any:
    """An attribute that only some drivers have."""
    try:
        return getattr(handle, name)
    except (cl.Error, AttributeError):
        return default
