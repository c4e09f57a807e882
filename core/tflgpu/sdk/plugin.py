"""What a plugin's module of hooks imports: what it registers, and what it answers. No kernels are
imported with it."""

from tflgpu.compat.entry import CompatEntry, Verdict
from tflgpu.contract.buffers import ForeignMemory, MemoryKind
from tflgpu.contract.device import API_VERSION, Allowances, BackendInfo, DeviceInfo, Probe
from tflgpu.errors import (
    CompileError,
    DeviceError,
    DeviceLostError,
    InputError,
    KernelError,
    ModelError,
    OptionError,
    PluginError,
    TflgpuError,
    UnsupportedError,
)
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.generator import ShaderGenerator
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.options import DelegateOptions
from tflgpu.plugins.hookspecs import hookimpl

__all__ = [
    "API_VERSION",
    "Allowances",
    "BackendInfo",
    "CompatEntry",
    "CompileError",
    "DelegateOptions",
    "DeviceCaps",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "ForeignMemory",
    "InputError",
    "KernelError",
    "MemoryKind",
    "ModelError",
    "OptionError",
    "PluginError",
    "Probe",
    "ReasonCode",
    "ShaderGenerator",
    "TflgpuError",
    "Unsupported",
    "UnsupportedError",
    "Verdict",
    "hookimpl",
]
