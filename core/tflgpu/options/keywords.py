"""The options as typed keywords, so that type checkers find a mistyped name or word.

Words are taken in any case; type checkers know those in capitals, as enumerations have them, and in
small letters. Where words come from elsewhere, `DelegateOptions.from_text` takes any text. What an
option is and does is said in `tflgpu.options.option_list`; a test holds the two against each other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, TypedDict, Union

from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.lowering.precision import Precision
from tflgpu.options.accuracy import AccuracyGuard
from tflgpu.options.enums import (
    ExperimentalFlags,
    ForceBackend,
    InferencePreference,
    InferencePriority,
    OnError,
    OpResolverType,
    WaitType,
)

# Here for all that takes options.
if sys.version_info >= (3, 11):
    from typing import Unpack
else:
    from typing_extensions import Unpack

__all__ = ["OptionKeywords", "Unpack"]

Truth = Union[bool, Literal[0, 1, "true", "false", "yes", "no", "on", "off", "1", "0"]]
Loss = Union[Truth, Literal[-1, "-1", "none"], None]
PrecisionWord = Literal["F32", "F16", "F32_F16", "f32", "f16", "f32_f16"]
NumericsWord = Literal["FLOAT", "INTEGER", "float", "integer"]
PartitionWord = Literal["GAIN", "ALL", "gain", "all"]
OnErrorWord = Literal["RAISE", "CPU", "RETRY", "raise", "cpu", "retry"]
ResolverWord = Literal[
    "AUTO",
    "BUILTIN",
    "BUILTIN_REF",
    "BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    "auto",
    "builtin",
    "builtin_ref",
    "builtin_without_default_delegates",
]
PriorityWord = Literal[
    "AUTO",
    "MAX_PRECISION",
    "MIN_LATENCY",
    "MIN_MEMORY_USAGE",
    "auto",
    "max_precision",
    "min_latency",
    "min_memory_usage",
    "TFLITE_GPU_INFERENCE_PRIORITY_AUTO",
    "TFLITE_GPU_INFERENCE_PRIORITY_MAX_PRECISION",
    "TFLITE_GPU_INFERENCE_PRIORITY_MIN_LATENCY",
    "TFLITE_GPU_INFERENCE_PRIORITY_MIN_MEMORY_USAGE",
]
PreferenceWord = Literal[
    "FAST_SINGLE_ANSWER",
    "SUSTAINED_SPEED",
    "BALANCED",
    "fast_single_answer",
    "sustained_speed",
    "balanced",
    "TFLITE_GPU_INFERENCE_PREFERENCE_FAST_SINGLE_ANSWER",
    "TFLITE_GPU_INFERENCE_PREFERENCE_SUSTAINED_SPEED",
    "TFLITE_GPU_INFERENCE_PREFERENCE_BALANCED",
]
WaitWord = Literal[
    "PASSIVE",
    "ACTIVE",
    "passive",
    "active",
    "TFLGPUDELEGATEWAITTYPEPASSIVE",
    "TFLGPUDELEGATEWAITTYPEACTIVE",
]
ForceWord = Literal["UNSET", "OPENCL", "OPENGL", "unset", "opencl", "opengl"]

Priority = Union[InferencePriority, PriorityWord, Literal[0, 1, 2, 3]]
Sizes = Union[int, str, Iterable[int]]
NodeNames = Union[int, str, Iterable[Union[int, str]]]
Path = Union[str, "os.PathLike[str]"]
Guard = Union[AccuracyGuard, Mapping[str, object], bool, int, str, None]


class OptionKeywords(TypedDict, total=False):
    """The keywords of `DelegateOptions` and `GpuDelegate`."""

    backend: str | None
    device: int | str | None
    allow_fallback: Truth
    cpu_backend: str | None
    num_threads: int | None
    op_resolver: OpResolverType | ResolverWord | Literal[0, 1, 2, 3]
    precision: Precision | PrecisionWord | None
    accuracy_guard: Guard
    is_precision_loss_allowed: Loss
    quantized_models_allowed: Truth
    quantized_numerics: Numerics | NumericsWord | None
    round_hybrid_inputs: Truth
    strict: Truth
    inference_preference: InferencePreference | PreferenceWord | Literal[0, 1, 2]
    inference_priority1: Priority
    inference_priority2: Priority
    inference_priority3: Priority
    max_delegated_partitions: int | None
    min_nodes_per_partition: int
    partitioning: PartitionBy | PartitionWord | None
    first_delegate_node_index: int
    last_delegate_node_index: int | None
    include: NodeNames
    exclude: NodeNames
    shape_buckets: Sizes
    memory_limit: int | str | None
    serialization_dir: Path | None
    model_token: str | None
    enable_serialization: Truth | None
    on_error: OnError | OnErrorWord | None
    run_timeout: float | None
    wait_type: WaitType | WaitWord | Literal[0, 1]
    keep_warm: float | None
    invoke_loop_times: int
    guard_bands: Truth

    # TFLite's other names

    experimental_flags: ExperimentalFlags | int | str
    enable_quantization: Truth
    allow_precision_loss: Truth
    precision_loss_allowed: Loss
    force_backend: ForceBackend | ForceWord | Literal[0, 1, 2]
    gpu_invoke_loop_times: int
