"""Whether the installed wgpu-py has what a run uses of its inside.

wgpu-py checks and converts the arguments of every call, which costs more than the call, so a run
goes to the library below by names that wgpu-py does not promise to keep. An installed version that
lacks one gives the backend a reason, not a traceback in the middle of a model.
"""

from __future__ import annotations

import importlib
from typing import Any

#: Versions that were tried, the first and the last of them.
TRIED = ("0.31", "0.32")

_FUNCTIONS = (
    "wgpuBufferGetConstMappedRange",
    "wgpuBufferMapAsync",
    "wgpuBufferUnmap",
    "wgpuCommandBufferRelease",
    "wgpuCommandEncoderBeginComputePass",
    "wgpuCommandEncoderCopyBufferToBuffer",
    "wgpuCommandEncoderFinish",
    "wgpuCommandEncoderRelease",
    "wgpuComputePassEncoderDispatchWorkgroups",
    "wgpuComputePassEncoderEnd",
    "wgpuComputePassEncoderRelease",
    "wgpuComputePassEncoderSetBindGroup",
    "wgpuComputePassEncoderSetPipeline",
    "wgpuDeviceCreateCommandEncoder",
    "wgpuDevicePoll",
    "wgpuQueueGetTimestampPeriod",
    "wgpuQueueSubmit",
    "wgpuQueueWriteBuffer",
)


def lacking() -> str:
    """What the installed wgpu-py lacks, as a reason with what to do; "" where it lacks nothing."""
    version = getattr(importlib.import_module("wgpu"), "__version__", "of unknown version")
    advice = f"; versions {TRIED[0]} to {TRIED[1]} were tried, install one of them"
    try:
        native: Any = importlib.import_module("wgpu.backends.wgpu_native")
        inside: Any = importlib.import_module("wgpu.backends.wgpu_native._api")
        helpers: Any = importlib.import_module("wgpu.backends.wgpu_native._helpers")
    except ImportError as error:
        return f"wgpu {version} cannot be used ({error}){advice}"
    names = [f"{n}" for n in ("ffi", "lib") if not hasattr(native, n)]
    names += [n for n in ("libf", "GPUShaderModule") if not hasattr(inside, n)]
    names += [n for n in ("_the_instance",) if not hasattr(helpers, n)]
    if "lib" not in names:
        names += [n for n in _FUNCTIONS if not hasattr(native.lib, n)]
    return f"wgpu {version} lacks {', '.join(names)}{advice}" if names else ""
