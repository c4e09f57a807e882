"""What a Vulkan device can do: limits, features, memory types, and the queue to use."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import attrs
from tflgpu.backend_kit.listing import VENDORS
from tflgpu.language.caps import DeviceCaps, guess_cache_bytes
from tflgpu.language.types import LARGEST_GROUP, SUBGROUP

from tflgpu_vulkan.api import NULL, ffi, lib, listed, make, text, vk
from tflgpu_vulkan.instance import Instance, version_word
from tflgpu_vulkan.matrix import has_matrix_products
from tflgpu_vulkan.spirv.target import Target

_MAX_BINDINGS = 64
_MAX_INDEX = 2**31 - 1  # ids are i32 in kernels
_LEAST_ALIGNMENT = 64
#: Processors of a GPU that does not tell, by vendor: of small parts rather than of large ones.
_USUAL_UNITS = {"nvidia": 32, "amd": 24, "intel": 16, "arm": 8, "qualcomm": 4, "apple": 8}
#: Kinds of devices in the order of preference.
_KINDS = (
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU,
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU,
    vk.VK_PHYSICAL_DEVICE_TYPE_OTHER,
)
_GPUS = _KINDS[:3]
_SHARING = (vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, vk.VK_PHYSICAL_DEVICE_TYPE_CPU)
_SUBSET = "VK_KHR_portability_subset"
_SM_BUILTINS = "VK_NV_shader_sm_builtins"
_CORE_PROPERTIES = "VK_AMD_shader_core_properties"
_FLOAT_CONTROLS = "VK_KHR_shader_float_controls"
_DRIVER = "VK_KHR_driver_properties"
_HOST_MEMORY = "VK_EXT_external_memory_host"
_BY_FD = "VK_KHR_external_memory_fd"
_SUBGROUP_SIZE = "VK_EXT_subgroup_size_control"
#: Flags of memory that the host can use; of the device's own that it can write to (and read, but
#: only slowly); of what the host reads as fast as any of its own; of what both use at full speed.
VISIBLE = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
WRITABLE = VISIBLE | vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
CACHED = VISIBLE | vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
SHARED = WRITABLE | CACHED
#: Of vendors whose compilers make narrower subgroups than a device reports, the least.
_LEAST_SUBGROUPS = {"intel": 8}


class _Feature(NamedTuple):
    """What a driver has to turn on for kernels with the feature ``name`` of
    `tflgpu.language.caps.Features`: a member of a struct, of an extension or of Vulkan 1.1."""

    name: str
    struct: str
    member: str
    extension: str = ""


_FEATURES = (
    _Feature("f16_arithmetic", "VkPhysicalDeviceShaderFloat16Int8Features", "shaderFloat16",
             "VK_KHR_shader_float16_int8"),
    _Feature("int8_storage", "VkPhysicalDevice8BitStorageFeatures", "storageBuffer8BitAccess",
             "VK_KHR_8bit_storage"),
    _Feature("f16_storage", "VkPhysicalDevice16BitStorageFeatures", "storageBuffer16BitAccess"),
    _Feature("int8_dot", "VkPhysicalDeviceShaderIntegerDotProductFeatures",
             "shaderIntegerDotProduct", "VK_KHR_shader_integer_dot_product"),
    _Feature("matrix_tiles", "VkPhysicalDeviceCooperativeMatrixFeaturesKHR", "cooperativeMatrix",
             "VK_KHR_cooperative_matrix"),
    _Feature("matrix_tiles", "VkPhysicalDeviceVulkanMemoryModelFeatures", "vulkanMemoryModel",
             "VK_KHR_vulkan_memory_model"),
)  # fmt: skip
#: Extensions that became part of Vulkan 1.2.
_IN_1_2 = frozenset(
    {
        _FLOAT_CONTROLS,
        _DRIVER,
        "VK_KHR_shader_float16_int8",
        "VK_KHR_8bit_storage",
        "VK_KHR_vulkan_memory_model",
    }
)


def enabled(target: Target) -> Any:
    """The chain of features that a device is opened with."""
    chain: Any = NULL
    for feature in _FEATURES:
        if getattr(target, feature.name):
            chain = make(feature.struct, **{feature.member: 1}, pNext=chain)
    return chain


@attrs.frozen
class Details:
    """A device, as far as it matters here.

    Attributes:
        name, driver, rank: For people, and the place in the list.
        caps: For the core.
        target: For the printer; shuffles are as the driver says, which the device then tries.
        alignment: Bytes to which what is bound must be aligned.
        max_allocation: Largest piece of memory.
        memory: Flags of each memory type.
        shares_memory: Host and device use the same memory.
        has_writable_memory: The host can write to memory of the device's own.
        has_cached_memory: The host has memory for the device that it reads at full speed.
        queue_family: The family whose queues run everything.
        queues: How many of them are worth using.
        tick: Seconds of a timestamp's unit, 0 where the queue has none.
        tick_bits: Bits of a timestamp, which begins at 0 again after the largest.
        extensions: To enable.
        host_page: Where host memory that is imported begins and ends; 0 where none can be.
        exports: Whether memory can be shared by file descriptors.
        uuid: Which device it is, to other APIs too.
        fingerprint: Everything that a compiled pipeline depends on, besides its module.
        physical: The VkPhysicalDevice, of the instance that was asked.
    """

    name: str
    driver: str
    rank: int
    caps: DeviceCaps
    target: Target
    alignment: int
    max_allocation: int
    memory: tuple[int, ...]
    shares_memory: bool
    has_writable_memory: bool
    has_cached_memory: bool
    queue_family: int
    queues: int
    tick: float
    tick_bits: int
    extensions: tuple[str, ...]
    host_page: int
    exports: bool
    uuid: bytes
    fingerprint: str
    physical: Any = attrs.field(eq=False, repr=False)


def details_of(instance: Instance, handle: Any) -> Details | str:
    """The details, or why the device cannot be used."""
    properties = ffi.new("VkPhysicalDeviceProperties*")
    lib.vkGetPhysicalDeviceProperties(handle, properties)
    name = text(properties.deviceName)
    if properties.apiVersion < version_word(1, 1):
        return f"{name}: its driver has Vulkan 1.0; 1.1 is needed"
    queue = _compute_queue(handle)
    if queue is None:
        return f"{name}: it has no compute queue"
    known = {
        text(e.extensionName)
        for e in listed(
            lib.vkEnumerateDeviceExtensionProperties, "VkExtensionProperties", handle, NULL
        )
    }
    is_core = min(properties.apiVersion, instance.version) >= version_word(1, 2)
    query = Query(handle, known, is_core)
    target = _target(query, properties.vendorID)
    if target.matrix_tiles and not (is_core and has_matrix_products(instance.handle, handle)):
        target = attrs.evolve(target, matrix_tiles=False)
    kind = properties.deviceType
    memory = _memory_types(handle)
    wanted = {feature.extension for feature in _FEATURES if getattr(target, feature.name)}
    wanted = (wanted | {_FLOAT_CONTROLS}) - (_IN_1_2 if is_core else set())
    wanted |= {_SUBSET, _HOST_MEMORY, _BY_FD}
    host = query.properties("VkPhysicalDeviceExternalMemoryHostPropertiesEXT", _HOST_MEMORY)
    identity = query.properties("VkPhysicalDeviceIDProperties")
    driver = query.properties("VkPhysicalDeviceDriverProperties", _DRIVER)
    driver_name = f"{text(driver.driverName)} {text(driver.driverInfo)}".strip() if driver else ""
    uuid = bytes(ffi.buffer(properties.pipelineCacheUUID)).hex()
    version = properties.driverVersion
    maintenance = query.properties("VkPhysicalDeviceMaintenance3Properties")
    largest = min(int(maintenance.maxMemoryAllocationSize), 2**63 - 1)
    limits = properties.limits
    family, ticks, queues = queue
    return Details(
        name=name,
        driver=driver_name or f"Vulkan driver {version}",
        rank=_KINDS.index(kind) if kind in _KINDS else len(_KINDS),
        caps=_caps(properties, query, target, largest),
        target=target,
        alignment=max(_LEAST_ALIGNMENT, int(limits.minStorageBufferOffsetAlignment)),
        max_allocation=largest,
        memory=memory,
        shares_memory=kind in _SHARING and any(flags & SHARED == SHARED for flags in memory),
        has_writable_memory=any(flags & WRITABLE == WRITABLE for flags in memory),
        has_cached_memory=any(flags & CACHED == CACHED for flags in memory),
        queue_family=family,
        queues=queues,
        tick=float(limits.timestampPeriod) * 1e-9 if ticks else 0.0,
        tick_bits=ticks,
        extensions=tuple(sorted(wanted & known)),
        host_page=0 if host is None else int(host.minImportedHostPointerAlignment),
        exports=_BY_FD in known,
        uuid=bytes(ffi.buffer(identity.deviceUUID)),
        fingerprint=f"{properties.vendorID:x} {properties.deviceID:x} {version} {uuid} "
        f"{driver_name}",
        physical=handle,
    )


class Query:
    """Asks for structs of extensions that are there, or part of the device's version."""

    def __init__(self, handle: Any, known: set[str], is_core: bool) -> None:
        self._handle = handle
        self._has = known | {""} | (_IN_1_2 if is_core else set())

    def properties(self, kind: str, extension: str = "", of: str = "Properties2") -> Any:
        """A struct of properties; None where the extension is absent."""
        if extension not in self._has:
            return None
        found = make(kind)
        whole = make(f"VkPhysicalDevice{of}", pNext=found)
        getattr(lib, f"vkGetPhysicalDevice{of}")(self._handle, whole)
        return found

    def has(self, feature: _Feature) -> bool:
        """Whether the device can turn a feature on."""
        found = self.properties(feature.struct, feature.extension, "Features2")
        return found is not None and bool(getattr(found, feature.member))


def _target(query: Query, vendor: int) -> Target:
    """What modules may use; of matrices only that there are some."""
    lacking = {feature.name for feature in _FEATURES if not query.has(feature)}
    f16 = not lacking & {"f16_storage", "f16_arithmetic"}
    subgroup = query.properties("VkPhysicalDeviceSubgroupProperties")
    controls = query.properties("VkPhysicalDeviceFloatControlsProperties", _FLOAT_CONTROLS)

    def widths(mode: str, independence: str = "") -> frozenset[int]:
        """Of which floats a mode can be set; of each alone only where they do not go together."""
        every = vk.VK_SHADER_FLOAT_CONTROLS_INDEPENDENCE_ALL
        if controls is None or (independence and getattr(controls, independence) != every):
            return frozenset()
        return frozenset(w for w in (16, 32) if getattr(controls, f"{mode}Float{w}"))

    return Target(
        f16_storage="f16_storage" not in lacking,
        f16_arithmetic=f16,
        int8_storage="int8_storage" not in lacking,
        int8_dot="int8_dot" not in lacking,
        matrix_tiles=f16 and "matrix_tiles" not in lacking and subgroup.subgroupSize == SUBGROUP,
        subgroup_shuffle=_widest_shuffle(query, vendor),
        keeps_special=widths("shaderSignedZeroInfNanPreserve"),
        rounds_to_even=widths("shaderRoundingModeRTE", "roundingModeIndependence"),
        keeps_denormals=widths("shaderDenormPreserve", "denormBehaviorIndependence") & {16},
    )


def _caps(properties: Any, query: Query, target: Target, largest: int) -> DeviceCaps:
    limits = properties.limits
    vendor = VENDORS.get(properties.vendorID, "")
    is_gpu = properties.deviceType in _GPUS
    x, y, z = (int(n) for n in limits.maxComputeWorkGroupSize)
    groups = [min(int(n), _MAX_INDEX) for n in limits.maxComputeWorkGroupCount]
    return DeviceCaps(
        f16_storage=target.f16_storage,
        f16_arithmetic=target.f16_arithmetic,
        int8_storage=target.int8_storage,
        max_workgroup=int(limits.maxComputeWorkGroupInvocations),
        max_workgroup_size=(x, y, z),
        max_groups=(groups[0], groups[1], groups[2]),
        shared_bytes=int(limits.maxComputeSharedMemorySize),
        max_buffer_bytes=min(int(limits.maxStorageBufferRange), largest),
        max_bindings=min(
            _MAX_BINDINGS,
            int(limits.maxPerStageDescriptorStorageBuffers),
            int(limits.maxDescriptorSetStorageBuffers),
            int(limits.maxPerStageResources),
        ),
        matrix_tiles=target.matrix_tiles,
        cache_bytes=guess_cache_bytes(
            is_gpu=is_gpu,
            is_discrete=properties.deviceType == vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
        ),
        compute_units=_compute_units(query, vendor) if is_gpu else os.cpu_count() or 1,
        fused_fma=is_gpu,
        is_gpu=is_gpu,
        vendor=vendor,
    )


def _widest_shuffle(query: Query, vendor: int) -> int:
    """The most neighbours that may be in one subgroup in every kernel; 0 where nothing shuffles.
    The width that a device reports is that of most kernels: its compiler may make narrower ones."""
    found = query.properties("VkPhysicalDeviceSubgroupProperties")
    shuffles = found.supportedOperations & vk.VK_SUBGROUP_FEATURE_SHUFFLE_BIT
    if not (shuffles and found.supportedStages & vk.VK_SHADER_STAGE_COMPUTE_BIT):
        return 0
    width = int(found.subgroupSize)
    control = query.properties("VkPhysicalDeviceSubgroupSizeControlProperties", _SUBGROUP_SIZE)
    if control is not None:
        width = int(control.minSubgroupSize)
    return min(LARGEST_GROUP, width, _LEAST_SUBGROUPS.get(VENDORS.get(vendor, ""), width))


def _compute_units(query: Query, vendor: str) -> int:
    nvidia = query.properties("VkPhysicalDeviceShaderSMBuiltinsPropertiesNV", _SM_BUILTINS)
    if nvidia is not None:
        return max(1, int(nvidia.shaderSMCount))
    amd = query.properties("VkPhysicalDeviceShaderCorePropertiesAMD", _CORE_PROPERTIES)
    if amd is not None:
        arrays = amd.shaderEngineCount * amd.shaderArraysPerEngineCount
        return max(1, int(arrays * amd.computeUnitsPerShaderArray))
    return _USUAL_UNITS.get(vendor, 8)


def _compute_queue(handle: Any) -> tuple[int, int, int] | None:
    """The family to use of those that compute, the bits of its timestamps (0: it has none), and how
    many of its queues are worth using.

    One that does not draw is preferred: its queues are at work at the same time, where several of a
    family that draws take turns, and an NVIDIA H200 computed more slowly with three of them than
    with one (`benchmarks/results/io_h200.md`).
    """
    families = listed(
        lib.vkGetPhysicalDeviceQueueFamilyProperties, "VkQueueFamilyProperties", handle
    )
    found = [
        (not family.timestampValidBits, bool(family.queueFlags & vk.VK_QUEUE_GRAPHICS_BIT), index)
        for index, family in enumerate(families)
        if family.queueFlags & vk.VK_QUEUE_COMPUTE_BIT
    ]
    if not found:
        return None
    _, draws, index = min(found)
    family = families[index]
    return index, int(family.timestampValidBits), 1 if draws else int(family.queueCount)


def _memory_types(handle: Any) -> tuple[int, ...]:
    memory = ffi.new("VkPhysicalDeviceMemoryProperties*")
    lib.vkGetPhysicalDeviceMemoryProperties(handle, memory)
    return tuple(int(memory.memoryTypes[i].propertyFlags) for i in range(memory.memoryTypeCount))
