"""GPU delegate framework for TensorFlow Lite models.

    import tflgpu

    interpreter = tflgpu.Interpreter("model.tflite")  # on the best GPU there is

Names are loaded when they are first used, so that importing the package costs little and loads
no driver. Only the errors are there from the start: all that is raised on purpose is a
`TflgpuError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflgpu import errors
from tflgpu.errors import (
    AllocationError,
    ArgumentError,
    BudgetError,
    BusyError,
    CompileError,
    DelegateError,
    DeviceError,
    DeviceLostError,
    DynamicError,
    GraphError,
    InputError,
    KernelError,
    MemoryLimitError,
    ModelError,
    NotAllocatedError,
    OptionError,
    PluginError,
    QueueFullError,
    ResizeError,
    RunTimeoutError,
    SavedModelError,
    SignatureError,
    StateError,
    TflgpuError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from tflgpu import compiled_model, profiles
    from tflgpu.compiler.numerics import Numerics
    from tflgpu.compiler.report import DelegationReport
    from tflgpu.contract.device import DeviceInfo
    from tflgpu.devices.device_list import CompatibilityList
    from tflgpu.devices.device_states import DeviceState, devices
    from tflgpu.interpreter import Interpreter
    from tflgpu.interpreter.callers import Pool
    from tflgpu.interpreter.delegate import delegate_library, load_delegate
    from tflgpu.interpreter.details import TensorDetails
    from tflgpu.interpreter.device_buffer import DeviceBuffer
    from tflgpu.interpreter.estimate import estimate
    from tflgpu.interpreter.gpu_delegate import GpuDelegate
    from tflgpu.interpreter.invocation import Invocation
    from tflgpu.interpreter.model import Model, Results
    from tflgpu.interpreter.signatures import SignatureRunner
    from tflgpu.language_models.answer import Generation
    from tflgpu.language_models.language_model import LanguageModel, generate
    from tflgpu.lowering.precision import Precision
    from tflgpu.options import (
        DelegateOptions,
        ExperimentalFlags,
        InferencePreference,
        InferencePriority,
        OnError,
        OpResolverType,
        WaitType,
    )
    from tflgpu.options.accuracy import AccuracyGuard
    from tflgpu.runtime.estimate import Estimate
    from tflgpu.runtime.profile import RunProfile
    from tflgpu.tflite import converters
    from tflgpu.tools.answer import Answer
    from tflgpu.tools.benchmark import benchmark
    from tflgpu.tools.check import check
    from tflgpu.tools.check_result import CheckResult
    from tflgpu.tools.measurement import Benchmark, Measurement
    from tflgpu.tools.metadata import metadata
    from tflgpu.tools.metadata_values import ModelMetadata, TensorMetadata
    from tflgpu.tools.task import Task

    __version__: str

__all__ = [
    "AccuracyGuard",
    "AllocationError",
    "Answer",
    "ArgumentError",
    "Benchmark",
    "BudgetError",
    "BusyError",
    "CheckResult",
    "CompatibilityList",
    "CompileError",
    "DelegateError",
    "DelegateOptions",
    "DelegationReport",
    "DeviceBuffer",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceState",
    "DynamicError",
    "Estimate",
    "ExperimentalFlags",
    "Generation",
    "GpuDelegate",
    "GraphError",
    "InferencePreference",
    "InferencePriority",
    "InputError",
    "Interpreter",
    "Invocation",
    "KernelError",
    "LanguageModel",
    "Measurement",
    "MemoryLimitError",
    "Model",
    "ModelError",
    "ModelMetadata",
    "NotAllocatedError",
    "Numerics",
    "OnError",
    "OpResolverType",
    "OptionError",
    "PluginError",
    "Pool",
    "Precision",
    "QueueFullError",
    "ResizeError",
    "Results",
    "RunProfile",
    "RunTimeoutError",
    "SavedModelError",
    "SignatureError",
    "SignatureRunner",
    "StateError",
    "Task",
    "TensorDetails",
    "TensorMetadata",
    "TflgpuError",
    "UnsupportedError",
    "WaitType",
    "__version__",
    "benchmark",
    "check",
    "compiled_model",
    "converters",
    "delegate_library",
    "devices",
    "errors",
    "estimate",
    "generate",
    "load_delegate",
    "metadata",
    "profiles",
]

_HOMES = {
    "CheckResult": "tflgpu.tools.check_result",
    "AccuracyGuard": "tflgpu.options.accuracy",
    "Answer": "tflgpu.tools.answer",
    "Benchmark": "tflgpu.tools.measurement",
    "CompatibilityList": "tflgpu.devices.device_list",
    "DelegateOptions": "tflgpu.options",
    "DelegationReport": "tflgpu.compiler.report",
    "DeviceBuffer": "tflgpu.interpreter.device_buffer",
    "DeviceInfo": "tflgpu.contract.device",
    "DeviceState": "tflgpu.devices.device_states",
    "Estimate": "tflgpu.runtime.estimate",
    "ExperimentalFlags": "tflgpu.options",
    "Generation": "tflgpu.language_models.answer",
    "GpuDelegate": "tflgpu.interpreter.gpu_delegate",
    "InferencePreference": "tflgpu.options",
    "InferencePriority": "tflgpu.options",
    "Interpreter": "tflgpu.interpreter",
    "Invocation": "tflgpu.interpreter.invocation",
    "LanguageModel": "tflgpu.language_models.language_model",
    "Measurement": "tflgpu.tools.measurement",
    "Model": "tflgpu.interpreter.model",
    "ModelMetadata": "tflgpu.tools.metadata_values",
    "Pool": "tflgpu.interpreter.callers",
    "Results": "tflgpu.interpreter.model",
    "RunProfile": "tflgpu.runtime.profile",
    "Numerics": "tflgpu.compiler.numerics",
    "OnError": "tflgpu.options",
    "OpResolverType": "tflgpu.options",
    "Precision": "tflgpu.lowering.precision",
    "SignatureRunner": "tflgpu.interpreter.signatures",
    "Task": "tflgpu.tools.task",
    "TensorDetails": "tflgpu.interpreter.details",
    "TensorMetadata": "tflgpu.tools.metadata_values",
    "WaitType": "tflgpu.options",
    "benchmark": "tflgpu.tools.benchmark",
    "check": "tflgpu.tools.check",
    "delegate_library": "tflgpu.interpreter.delegate",
    "estimate": "tflgpu.interpreter.estimate",
    "generate": "tflgpu.language_models.language_model",
    "load_delegate": "tflgpu.interpreter.delegate",
    "metadata": "tflgpu.tools.metadata",
}

_MODULES = {
    "compiled_model": "tflgpu.compiled_model",
    "converters": "tflgpu.tflite.converters",
    "devices": "tflgpu.devices",
    "profiles": "tflgpu.profiles",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("importlib.metadata").version("tflgpu")
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = import_module(_MODULES[name])
    else:
        raise AttributeError(f"module 'tflgpu' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
