"""The options as keywords, for type checkers: with it they know a mistyped one.

What an option is and does is said in `tflgpu.options.option_list`; a test holds the two against
each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypedDict, Union

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

Truth = Union[bool, int, str]
Loss = Union[bool, int, str, None]
Priority = Union[InferencePriority, int, str]
NodeNames = Union[int, str, Iterable[Union[int, str]]]
Path = Union[str, "os.PathLike[str]"]
Guard = Union[AccuracyGuard, Mapping[str, object], bool, int, str, None]


class OptionKeywords(TypedDict, total=False):
    """What `DelegateOptions` and `GpuDelegate` take."""

    backend: str | None
    device: int | str | None
    allow_fallback: Truth
    cpu_backend: str | None
    num_threads: int | None
    op_resolver: OpResolverType | int | str
    precision: Precision | str | None
    accuracy_guard: Guard
    is_precision_loss_allowed: Loss
    quantized_models_allowed: Truth
    quantized_numerics: Numerics | str | None
    round_hybrid_inputs: Truth
    strict: Truth
    inference_preference: InferencePreference | int | str
    inference_priority1: Priority
    inference_priority2: Priority
    inference_priority3: Priority
    max_delegated_partitions: int | None
    min_nodes_per_partition: int
    partitioning: PartitionBy | str | None
    first_delegate_node_index: int
    last_delegate_node_index: int | None
    include: NodeNames
    exclude: NodeNames
    memory_limit: int | str | None
    serialization_dir: Path | None
    model_token: str | None
    enable_serialization: Truth | None
    on_error: OnError | str | None
    run_timeout: float | str | None
    wait_type: WaitType | int | str
    invoke_loop_times: int
    guard_bands: Truth

    # TFLite's other names

    experimental_flags: ExperimentalFlags | int | str
    enable_quantization: Truth
    allow_precision_loss: Truth
    precision_loss_allowed: Loss
    force_backend: ForceBackend | int | str
    gpu_invoke_loop_times: int
