"""The GPUs that an engine has assigned to a process, as the option ``device`` names them.

Engines say it by the variable that hides GPUs from CUDA (or ROCm, or oneAPI). Vulkan, OpenCL and
WebGPU do not read it: without this every worker of a machine would open the same GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tflgpu.contract.device import UUID, read_uuid
from tflgpu.devices.nvml import gpu_uuid
from tflgpu.errors import DeviceError

VARIABLE = "CUDA_VISIBLE_DEVICES"
#: Those of AMD and Intel. Their runtimes count and name GPUs in ways that Vulkan and OpenCL do not
#: tell of.
_OTHERS = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_REMEDY = "name the worker's device yourself: by TFLGPU_DEVICE, or by the option device"


def assigned_devices(
    environ: Mapping[str, str] = os.environ, uuid_at: Callable[[int], str] = gpu_uuid
) -> tuple[str, ...] | None:
    """The devices by UUID, in the order of the variable, which ends at the first entry that is
    no GPU, as CUDA reads it; none at all where it hides all of them. None without a variable.

    Args:
        environ: The process's environment.
        uuid_at: The UUID of NVIDIA's GPU of a number.

    Raises:
        DeviceError: a number cannot be told apart from others; or it is a part of a GPU; or the
            variable is that of another vendor. No other GPU is taken in its place.
    """
    if VARIABLE not in environ:
        others = [name for name in _OTHERS if environ.get(name, "").strip()]
        if others:
            raise DeviceError(
                f"{others[0]}={environ[others[0]]} assigns a GPU to this process, and no API tells "
                f"which device that is; {_REMEDY}"
            )
        return None
    found: list[str] = []
    for entry in environ[VARIABLE].split(","):
        text = entry.strip()
        uuid = read_uuid(text)
        if uuid is None and text.isascii() and text.isdecimal():
            try:
                uuid = uuid_at(int(text))
            except DeviceError as error:
                raise DeviceError(
                    f"{VARIABLE}={environ[VARIABLE]} assigns GPU {text} to this process: {error}; "
                    f"{_REMEDY}"
                ) from error
        elif uuid is None and text.upper().startswith(("MIG", "GPU")):
            raise DeviceError(
                f"{VARIABLE} names {text}: parts of GPUs and abbreviated UUIDs cannot be told "
                f"apart by other APIs than CUDA; {_REMEDY}"
            )
        if uuid is None:
            break
        found.append(UUID + uuid)
    return tuple(found)
