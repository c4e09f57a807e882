"""NVIDIA's management library (NVML), which is part of the driver: GPUs by their numbers."""

from __future__ import annotations

import ctypes
from typing import Any

from tflgpu.contract.device import read_uuid
from tflgpu.errors import DeviceError

_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
_UUID_SIZE = 96


def load_nvml() -> Any:
    """The library; None where there is none."""
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def gpu_uuid(index: int, library: Any = None) -> str:
    """`DeviceInfo.uuid` of a GPU by its number, which counts GPUs by their place on the PCI bus.

    Args:
        index: As `nvidia-smi` counts, from 0.
        library: NVML; None loads it.

    Raises:
        DeviceError: there is no NVML, no driver, or no such GPU.
    """
    nvml = load_nvml() if library is None else library
    if nvml is None:
        raise DeviceError("NVIDIA's management library (NVML), which tells which it is, is missing")
    if nvml.nvmlInit_v2():
        raise DeviceError("NVML, which tells which it is, finds no driver of NVIDIA's")
    try:
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_SIZE)
        status = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        status = status or nvml.nvmlDeviceGetUUID(handle, text, _UUID_SIZE)
        found = read_uuid(text.value.decode(errors="replace"))
        if status or found is None:
            count = ctypes.c_uint()
            nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
            raise DeviceError(f"NVML tells no UUID of GPU {index}; it knows {count.value} GPUs")
        return found
    finally:
        nvml.nvmlShutdown()
