"""What devices import: the contract, and the bases that help to implement it."""

from __future__ import annotations

from tflgpu.cache.disk_cache import DiskCache, cache_folder
from tflgpu.compiler.plan import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
)
from tflgpu.contract.base_device import BaseDevice, releasing_on_error
from tflgpu.contract.buffer_memory import BufferMemory
from tflgpu.contract.buffers import BaseBuffer, Buffer, Bytes
from tflgpu.contract.device import (
    API_VERSION,
    BackendInfo,
    CustomOps,
    Device,
    DeviceInfo,
    DispatchTime,
    ForeignOps,
    NodeDevice,
    NodeRun,
    Probe,
    Recording,
)
from tflgpu.contract.heaps import Heaps
from tflgpu.contract.kept_code import KeepsCode
from tflgpu.contract.kept_kernels import KeptKernels
from tflgpu.contract.kernel_cache import KernelCache
from tflgpu.contract.kernel_device import KernelDevice
from tflgpu.contract.lending import Lender, OutputSet, OutputSets
from tflgpu.contract.listing import Found, Listing
from tflgpu.contract.memory_use import CountsMemory, Ledger, MemoryUse, Use
from tflgpu.contract.node_device import BaseNodeDevice
from tflgpu.contract.node_recording import BaseNodeRecording
from tflgpu.contract.pending import Pending
from tflgpu.contract.plan_memory import BasePlanMemory
from tflgpu.contract.plan_recording import BasePlanRecording
from tflgpu.contract.pooled_memory import PooledMemory
from tflgpu.contract.pooled_recording import PooledRecording
from tflgpu.contract.run_commands import RunCommands
from tflgpu.contract.shared_weights import SharedWeights
from tflgpu.contract.staged_recording import StagedRecording
from tflgpu.contract.staging import Staging
from tflgpu.contract.waiting import wait_until
from tflgpu.errors import CompileError, DeviceError, DeviceLostError, KernelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.language.check import check
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Kernel
from tflgpu.lowering.caps import DeviceCaps, guess_cache_bytes
from tflgpu.lowering.reason import ReasonCode, Unsupported
from tflgpu.ops.base import OpDef

__all__ = [
    "API_VERSION",
    "ArenaRef",
    "Array",
    "BackendInfo",
    "BaseBuffer",
    "BaseDevice",
    "BaseNodeDevice",
    "BaseNodeRecording",
    "BasePlanMemory",
    "BasePlanRecording",
    "Buffer",
    "BufferMemory",
    "Bytes",
    "CompileError",
    "ConstRef",
    "CountsMemory",
    "CustomOps",
    "DType",
    "Device",
    "DeviceCaps",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "DiskCache",
    "DispatchTime",
    "ForeignOps",
    "Found",
    "Heaps",
    "InputRef",
    "KeepsCode",
    "KeptKernels",
    "Kernel",
    "KernelCache",
    "KernelDevice",
    "KernelError",
    "Ledger",
    "Lender",
    "Listing",
    "MemoryUse",
    "Node",
    "NodeDevice",
    "NodeRun",
    "OpDef",
    "OutputRef",
    "OutputSet",
    "OutputSets",
    "Pending",
    "Plan",
    "PlannedDispatch",
    "PlannedIO",
    "PooledMemory",
    "PooledRecording",
    "Probe",
    "ReasonCode",
    "Recording",
    "RunCommands",
    "SharedWeights",
    "StagedRecording",
    "Staging",
    "Unsupported",
    "Use",
    "cache_folder",
    "check",
    "guess_cache_bytes",
    "interpret",
    "releasing_on_error",
    "wait_until",
]
