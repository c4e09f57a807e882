"""A Vulkan instance; with TFLGPU_VULKAN_VALIDATION=1 also the Khronos validation layer."""

from __future__ import annotations

import os
from typing import Any

from tflgpu.backend_kit.driver_libraries import load_drivers, vulkan_manifests
from tflgpu.backend_kit.forks import call_in_child
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, array, check, create, ffi, lib, listed, make, strings, text, vk

VALIDATION = "TFLGPU_VULKAN_VALIDATION"
_LAYER = "VK_LAYER_KHRONOS_validation"
_DEBUG = "VK_EXT_debug_utils"
_PORTABILITY = "VK_KHR_portability_enumeration"
_WANTED = (1, 2)
_NEEDED = (1, 1)
_MOST_PROBLEMS = 8


def version_word(major: int, minor: int) -> int:
    """A version as Vulkan writes it."""
    return major << 22 | minor << 12


#: An instance that nobody uses, by the settings that it was made under. Destroying the last one
#: unloads the drivers, and a driver may not load for ever: NVIDIA's, whose library takes storage
#: that belongs to threads, was refused the 31st time (580.159). It is not destroyed at all.
_spare: dict[object, Any] = {}
call_in_child(_spare.clear)


class Instance:
    """An instance of Vulkan 1.1 or 1.2. The debug messenger goes with it."""

    def __init__(self) -> None:
        """Make one.

        Raises:
            DeviceError: the loader knows no Vulkan 1.1, has no driver, lacks the validation layer
                that the environment asks for, or has a driver that would crash this process.
        """
        self.handle: Any = None
        self._messenger: Any = None
        self._callback: Any = None
        self.problems: list[str] = []
        available = _loader_version()
        if available < version_word(*_NEEDED):
            raise DeviceError("the Vulkan loader is older than 1.1; update it")
        self.version = min(available, version_word(*_WANTED))
        validate = os.environ.get(VALIDATION, "") not in ("", "0")
        self._settings = None if validate else _settings()
        spare = _spare.pop(self._settings, None)
        if spare is not None:
            self.handle = spare
            return
        if reason := load_drivers(vulkan_manifests(), "VK_DRIVER_FILES"):
            raise DeviceError(reason)
        layers = [_LAYER] if validate else []
        if validate:
            _need_layer()
        enumerate_extensions = lib.vkEnumerateInstanceExtensionProperties
        known = {
            text(e.extensionName)
            for e in listed(enumerate_extensions, "VkExtensionProperties", NULL)
        }
        extensions = [_DEBUG] if validate else []
        flags = 0
        if _PORTABILITY in known:
            extensions.append(_PORTABILITY)
            flags = vk.VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR
        application = make(
            "VkApplicationInfo",
            pApplicationName=ffi.new("char[]", b"tflgpu"),
            apiVersion=self.version,
        )
        # It also follows what every command reads and writes, and misses no missing barrier.
        features = make(
            "VkValidationFeaturesEXT",
            enabledValidationFeatureCount=1,
            pEnabledValidationFeatures=array(
                "VkValidationFeatureEnableEXT",
                [vk.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT],
            ),
        )
        info = make(
            "VkInstanceCreateInfo",
            pNext=features if validate else NULL,
            flags=flags,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=strings(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=strings(extensions),
        )
        handle = ffi.new("VkInstance*")
        check(lib.vkCreateInstance(info, NULL, handle), "making a Vulkan instance")
        self.handle = handle[0]
        if validate:
            self._listen()

    def close(self) -> None:
        """Destroy it, or leave it to the next one; twice is harmless."""
        handle, self.handle = self.handle, None
        if handle is None:
            return
        if self._messenger is not None:
            destroy = function_of(handle, "vkDestroyDebugUtilsMessengerEXT")
            destroy(handle, self._messenger, NULL)
        if self._settings is None or _spare:
            lib.vkDestroyInstance(handle, NULL)
        else:
            _spare[self._settings] = handle

    def raise_problems(self, what: str) -> None:
        """Report what the validation layer found since the last time.

        Raises:
            DeviceError: it found something; ``what`` says what was being done.
        """
        if self.problems:
            found, self.problems = self.problems, []
            raise DeviceError(f"{what}: the validation layer says\n" + "\n".join(found))

    # Inside

    def _listen(self) -> None:
        @ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT")  # type: ignore[untyped-decorator]
        def report(severity: int, kinds: int, data: Any, user: Any) -> int:
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(text(data.pMessage))
            return 0

        self._callback = report
        info = make(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT
            | vk.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT,
            messageType=vk.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
            pfnUserCallback=report,
        )
        make_messenger = function_of(self.handle, "vkCreateDebugUtilsMessengerEXT")
        self._messenger = create(
            make_messenger, "VkDebugUtilsMessengerEXT", self.handle, info, "listening to the layer"
        )


def function_of(instance: Any, name: str) -> Any:
    """A function of an extension; None where the loader is older than it."""
    address = lib.vkGetInstanceProcAddr(instance, name.encode())
    return None if address == NULL else ffi.cast(f"PFN_{name}", address)


def _settings() -> object:
    """What decides which drivers an instance has: the loader's part of the environment."""
    return tuple(sorted(i for i in os.environ.items() if i[0].startswith(("VK_", "XDG_"))))


def _loader_version() -> int:
    version = ffi.new("uint32_t*")
    try:
        check(lib.vkEnumerateInstanceVersion(version), "asking for the loader's version")
    except AttributeError:  # a loader of Vulkan 1.0 does not have the function
        return version_word(1, 0)
    return int(version[0])


def _need_layer() -> None:
    layers = listed(lib.vkEnumerateInstanceLayerProperties, "VkLayerProperties")
    if _LAYER not in {text(layer.layerName) for layer in layers}:
        raise DeviceError(
            f"{VALIDATION} is set, and {_LAYER} is not installed; "
            "apt install vulkan-validationlayers, or unset it"
        )
