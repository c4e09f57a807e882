"""Where each backend calls its driver: every such call can be told of, and made to fail once.

A seam is opened on a backend before it opens a device. From then on each call of the driver is
first told to a `Plan`, by name; the plan may answer that this one is to fail, and then it fails the
way this API does: by a code, by an exception of the wrapper's, by a handle that is null. The driver
itself is not called then.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs
import pytest

#: What fails says this, or that the device is lost: VkResult, OpenCL's status, words of wgpu's.
OUT_OF_HOST_MEMORY, DEVICE_LOST = -1, -4
OUT_OF_RESOURCES, INVALID_COMMAND_QUEUE = -5, -36
PLANTED, LOST = "planted", "Parent device is lost"


@attrs.define
class Plan:
    """Which calls there are, and which of them fails; with ``lost`` as on a device that is gone."""

    calls: list[str] = attrs.field(factory=list)
    chosen: tuple[str, int] | None = None
    came: bool = False
    lost: bool = False

    def start(self, chosen: tuple[str, int] | None = None) -> None:
        """Count from the start; let the n-th call of a name fail."""
        self.calls, self.chosen, self.came = [], chosen, False

    def fails(self, name: str) -> bool:
        """A call is about to be made: whether it is to fail."""
        self.calls.append(name)
        if self.chosen is None or self.came:
            return False
        wanted, number = self.chosen
        if name != wanted or self.calls.count(name) != number + 1:
            return False
        self.came = True
        return True


class _Names:
    """A module or library whose functions are called by way of ``wrap``; the rest is the
    other's."""

    def __init__(self, inner: Any, wrap: Callable[[str, Any], Any]) -> None:
        self._inner, self._wrap = inner, wrap

    @functools.cached_property
    def _known(self) -> dict[str, Any]:
        return {}

    def __getattr__(self, name: str) -> Any:
        known = self._known
        if name not in known:
            known[name] = self._wrap(name, getattr(self._inner, name))
        return known[name]


def _replace(patch: pytest.MonkeyPatch, package: str, name: str, new: Any) -> None:
    for key, module in list(sys.modules.items()):
        if key.startswith(package) and isinstance(module, ModuleType) and name in vars(module):
            patch.setattr(module, name, new)


def _raising(plan: Plan, name: str, function: Any, error: Callable[[], Exception]) -> Any:
    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if plan.fails(name):
            raise error()
        return function(*args, **kwargs)

    return call


def _methods(
    patch: pytest.MonkeyPatch, plan: Plan, kind: type, names: list[str], error: Any
) -> None:
    for name in names:
        if hasattr(kind, name):
            label = f"{kind.__name__}.{name}"
            patch.setattr(kind, name, _raising(plan, label, getattr(kind, name), error))


# Vulkan: functions that give a VkResult


def vulkan(patch: pytest.MonkeyPatch, plan: Plan) -> None:
    """All functions of the loader that can fail."""
    import tflgpu_vulkan.device  # noqa: F401  (what is to be patched is loaded)
    from tflgpu_vulkan.api import ffi, lib

    def wrap(name: str, found: Any) -> Any:
        kind = ffi.typeof(found) if callable(found) else None
        if kind is None or kind.result.cname not in ("VkResult", "int32_t", "int", "enum VkResult"):
            return found

        def call(*args: Any) -> Any:
            if plan.fails(name):
                return DEVICE_LOST if plan.lost else OUT_OF_HOST_MEMORY
            return found(*args)

        return call

    _replace(patch, "tflgpu_vulkan", "lib", _Names(lib, wrap))


# OpenCL: the wrapper's functions, classes and methods, and the raw ones, which give a status

_CLASSES = ("Buffer", "CommandQueue", "Context", "Kernel", "_Program")


def opencl(patch: pytest.MonkeyPatch, plan: Plan) -> None:
    """All that pyopencl and the driver are called for."""
    import pyopencl as cl
    import tflgpu_opencl.device  # noqa: F401  (so that all of the backend is there)
    from tflgpu_opencl import commands, native, staging

    def code() -> int:
        return INVALID_COMMAND_QUEUE if plan.lost else OUT_OF_RESOURCES

    def error() -> Exception:
        record = cl._cl._ErrorRecord(msg=PLANTED, code=code(), routine=PLANTED)
        return cl.RuntimeError(record)

    def wrap(name: str, found: Any) -> Any:
        is_call = name.startswith("enqueue_") or name in _CLASSES
        return _raising(plan, name, found, error) if is_call else found

    _methods(patch, plan, cl.CommandQueue, ["finish", "flush"], error)
    _methods(patch, plan, cl._Program, ["build", "_build"], error)
    _methods(patch, plan, cl.Buffer, ["get_sub_region"], error)
    _replace(patch, "tflgpu_opencl", "cl", _Names(cl, wrap))
    raw = native.native()

    def status(name: str, function: Any) -> Any:
        def call(*args: Any) -> Any:
            if not plan.fails(name):
                return function(*args)
            if name in ("_map", "_create"):  # which give pointers
                args[-1][0] = code()
            return code()

        return call

    fields = [a.name for a in attrs.fields(type(raw))]
    wrapped = type(raw)(*(
        getattr(raw, name) if name == "_release" else status(name, getattr(raw, name))
        for name in fields
    ))  # fmt: skip
    for module in (commands, native, staging):
        patch.setattr(module, "native", lambda: wrapped)


# WebGPU: methods of the wrapper's devices and queues, and raw functions, checked and unchecked

_DEVICE = ["create_buffer", "create_bind_group", "create_bind_group_layout", "create_query_set",
           "create_pipeline_layout", "create_compute_pipeline", "create_shader_module"]  # fmt: skip


def wgpu(patch: pytest.MonkeyPatch, plan: Plan) -> None:
    """All that wgpu-py and wgpu-native are called for and that can fail."""
    import tflgpu_wgpu.device
    from tflgpu_wgpu import mapping, native
    from wgpu import GPUOutOfMemoryError, GPUValidationError
    from wgpu.backends.wgpu_native import _api, ffi

    def memory() -> Exception:
        return GPUOutOfMemoryError(PLANTED)

    def refused() -> Exception:
        return GPUValidationError(LOST if plan.lost else PLANTED)

    _methods(patch, plan, _api.GPUDevice, _DEVICE[:1], memory)
    _methods(patch, plan, _api.GPUDevice, _DEVICE[1:], refused)
    _methods(patch, plan, _api.GPUQueue, ["write_buffer", "read_buffer"], refused)
    _methods(patch, plan, _api.GPUAdapter, ["request_device_sync"], refused)

    def checked(name: str, found: Any) -> Any:
        return _raising(plan, name, found, refused)

    def unchecked(name: str, found: Any) -> Any:
        if name != "wgpuBufferGetConstMappedRange":
            return found

        def call(*args: Any) -> Any:
            return ffi.NULL if plan.fails(name) else found(*args)

        return call

    names = _Names(native.CHECKED, checked)
    for module in (native, mapping):
        patch.setattr(module, "CHECKED", names)
    patch.setattr(native, "lib", _Names(native.lib, unchecked))
    assert tflgpu_wgpu.device


SEAMS: dict[str, Callable[[pytest.MonkeyPatch, Plan], None]] = {
    "opencl": opencl, "vulkan": vulkan, "wgpu": wgpu,
}  # fmt: skip
