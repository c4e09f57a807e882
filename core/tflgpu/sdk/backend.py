"""What devices import: the contract, and the bases that help to implement it."""

from tflgpu.backend_kit.account import Ledger
from tflgpu.backend_kit.base_buffer import BaseBuffer
from tflgpu.backend_kit.base_device import BaseDevice, releasing_on_error
from tflgpu.backend_kit.buffer_memory import BufferPlanMemory
from tflgpu.backend_kit.heaps import Heaps
from tflgpu.backend_kit.kept_kernels import KeptKernels
from tflgpu.backend_kit.kernel_cache import KernelCache
from tflgpu.backend_kit.kernel_device import KernelDevice
from tflgpu.backend_kit.listing import Found, Listing
from tflgpu.backend_kit.node_recording import BaseNodeDevice, BaseNodeRecording
from tflgpu.backend_kit.output_sets import OutputSet, OutputSets
from tflgpu.backend_kit.plan_memory import BasePlanMemory
from tflgpu.backend_kit.plan_recording import BasePlanRecording
from tflgpu.backend_kit.pooled_memory import PooledMemory
from tflgpu.backend_kit.pooled_recording import PooledRecording
from tflgpu.backend_kit.run_commands import RunCommands
from tflgpu.backend_kit.shared_weights import SharedWeights
from tflgpu.backend_kit.staged_recording import StagedRecording
from tflgpu.backend_kit.staging import Staging
from tflgpu.backend_kit.waiting import wait_until
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
from tflgpu.contract.buffers import Buffer, Bytes
from tflgpu.contract.device import (
    API_VERSION,
    BackendInfo,
    CompilesAhead,
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
from tflgpu.contract.memory_use import CountsMemory, MemoryUse, Use
from tflgpu.contract.offers import KeepsCode, Lender
from tflgpu.contract.pending import Pending
from tflgpu.errors import CompileError, DeviceError, DeviceLostError, KernelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps, guess_cache_bytes
from tflgpu.language.check import check
from tflgpu.language.interpreter import interpret
from tflgpu.language.kernel import Kernel
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
    "BufferPlanMemory",
    "Bytes",
    "CompileError",
    "CompilesAhead",
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
