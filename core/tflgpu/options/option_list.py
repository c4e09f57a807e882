"""The list of options. A new one is a line here, and one in `tflgpu.options.keywords` for type
checkers."""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.lowering.precision import Precision
from tflgpu.options.accuracy import AccuracyGuard, GuardSetting
from tflgpu.options.definition import Option, option, options_of
from tflgpu.options.enums import (
    InferencePreference,
    InferencePriority,
    OnError,
    OpResolverType,
    WaitType,
)
from tflgpu.options.kinds import EnumMember, Loss, OrNone, Seconds, Truth, WholeNumber
from tflgpu.options.names import ByteSize, DeviceName, Folder, Nodes, PlainName, Sizes, Token
from tflgpu.values import frozen

_PRIORITY = EnumMember(InferencePriority, "TFLITE_GPU_INFERENCE_PRIORITY_")


@frozen(kw_only=True, init=False)
class OptionList:
    """The options of `tflgpu.options.DelegateOptions`, in the order of docs/options.md."""

    # Where it runs

    backend: str | None = option(
        OrNone(PlainName()),
        None,
        '"opencl", "vulkan", "wgpu", ...; "cpu" is the CPU alone; none picks the best device '
        "that is there.",
        origin="LiteRT 2",
    )
    device: int | str | None = option(
        OrNone(DeviceName()),
        None,
        "Index in the backend's list, part of the name, or `uuid:` and the UUID; none picks.",
    )
    allow_fallback: bool = option(
        Truth(),
        True,
        "Whether nodes that the device refuses may run on the CPU; if not, a refusal is an "
        "`UnsupportedError`.",
    )
    cpu_backend: str | None = option(
        OrNone(PlainName()),
        None,
        'What runs the operators that the device does not: "litert" (LiteRT\'s kernels) or '
        '"cpu_ref" (NumPy); none takes LiteRT where it is installed.',
    )
    num_threads: int | None = option(
        OrNone(WholeNumber()),
        None,
        "Threads of the CPU's kernels; none leaves it to them (LiteRT takes one).",
    )
    op_resolver: OpResolverType = option(
        EnumMember(OpResolverType), OpResolverType.AUTO, "Which of LiteRT's kernels on the CPU."
    )

    # How exact

    precision: Precision | None = option(
        OrNone(EnumMember(Precision)),
        None,
        "F32, F16 or F32_F16 (f16 storage, f32 arithmetic); none follows "
        "`is_precision_loss_allowed`, then the priorities.",
        origin="LiteRT 2",
    )
    is_precision_loss_allowed: bool | None = option(
        Loss(),
        None,
        "True allows 16-bit floats (F16), False forbids them (F32), none leaves it to the "
        "priorities.",
        origin="V2, obsolete there",
    )
    quantized_models_allowed: bool = option(
        Truth(),
        True,
        "Whether operators on quantized tensors may run on the device; if not, they run on the "
        "CPU.",
        origin="Java",
    )
    quantized_numerics: Numerics | None = option(
        OrNone(EnumMember(Numerics)),
        None,
        "What operators on quantized tensors are computed on: FLOAT, real numbers that are rounded "
        "behind each operator, or INTEGER, the stored numbers, bit for bit as TFLite's reference "
        "kernels, where there is a kernel that does so; the report says of which operators that "
        "is true, and of the others why not. None takes INTEGER where memory matters more than "
        "latency, else FLOAT.",
    )
    round_hybrid_inputs: bool = option(
        Truth(),
        True,
        "Whether operators with float inputs and 8-bit weights (models of dynamic range) round "
        "their inputs to 8 bits while the model runs, as LiteRT does by default (XNNPACK). "
        "Without it they multiply by the weights as real numbers, as TFLite's GPU delegate does: "
        "closer to the real result, further from LiteRT's on the CPU, and without the work of "
        "rounding. Where LiteRT's kernels run a product by blocks of 4-bit weights, they round.",
    )
    strict: bool = option(
        Truth(),
        False,
        "Whether an index outside a tensor (GATHER, GATHER_ND, EMBEDDING_LOOKUP, SCATTER_ND, "
        "SPARSE_TO_DENSE, REVERSE_SEQUENCE) and a whole number divided by zero (DIV, FLOOR_DIV, "
        "FLOOR_MOD) are errors, as on the CPU, and so is an item that a loop writes outside its "
        "list. No kernel can raise one, so operators that may meet "
        "these, whose indices or divisors are no constants, run on the CPU. Without it what comes "
        "of such an index is NaN, the smallest i32 or false, and of such a quotient anything.",
    )

    accuracy_guard: AccuracyGuard | None = option(
        OrNone(GuardSetting()),
        None,
        "How many of the first invocations are compared with the CPU; what f16 spoils is redone in "
        'f32 (docs/accuracy.md). "overflow" compares the first one where it gave infinities.',
    )

    # What matters

    inference_preference: InferencePreference = option(
        EnumMember(InferencePreference, "TFLITE_GPU_INFERENCE_PREFERENCE_"),
        InferencePreference.FAST_SINGLE_ANSWER,
        "What is prepared before the first run. FAST_SINGLE_ANSWER: only what that run needs. "
        "BALANCED: each part is run once when it is loaded, so that the first run is as fast as "
        "later ones. SUSTAINED_SPEED: the same, and before that run the model's kernels are tuned "
        "(docs/tuning.md), which takes seconds and is kept.",
        origin="V2",
    )
    inference_priority1: InferencePriority = option(
        _PRIORITY,
        InferencePriority.MAX_PRECISION,
        "What matters most. MAX_PRECISION in the first place means F32, in the second F32_F16, in "
        "the third F16. MIN_MEMORY_USAGE before MIN_LATENCY stores tensors and weights in fewer "
        "bits wherever the precision allows that, not only where it is faster, and searches longer "
        "for a smaller arena.",
        origin="V2",
    )
    inference_priority2: InferencePriority = option(
        _PRIORITY,
        InferencePriority.AUTO,
        "What matters then; AUTO is completed as TFLite does.",
        origin="V2",
    )
    inference_priority3: InferencePriority = option(
        _PRIORITY, InferencePriority.AUTO, "What matters least.", origin="V2"
    )

    # Which nodes

    max_delegated_partitions: int | None = option(
        OrNone(WholeNumber()),
        None,
        "Most parts of the graph that go to the device, those of the largest estimated gain; none "
        "is no limit: a part that costs more than it gains is for the estimate to leave out.",
        origin="V2, default 1",
    )
    min_nodes_per_partition: int = option(
        WholeNumber(), 1, "Smaller parts stay on the CPU.", origin="benchmark_model"
    )
    partitioning: PartitionBy | None = option(
        OrNone(EnumMember(PartitionBy)),
        None,
        "GAIN leaves to the CPU what is estimated to be faster there, ALL gives the device "
        "whatever it can run; none is GAIN on a GPU that nobody asked for by name, with "
        "`allow_fallback`, and ALL elsewhere.",
    )
    first_delegate_node_index: int = option(
        WholeNumber(0),
        0,
        "Operators of the file before this one stay on the CPU.",
        origin="V2, debug builds only",
    )
    last_delegate_node_index: int | None = option(
        OrNone(WholeNumber(0)),
        None,
        "Operators of the file after this one stay on the CPU.",
        origin="V2, debug builds only, default 2147483647",
    )
    include: tuple[int | str, ...] = option(
        Nodes(),
        (),
        "Only these operators may go to the device: indices in the file, names of ops, and names "
        "of tensors that they make. Empty is all.",
    )
    exclude: tuple[int | str, ...] = option(
        Nodes(), (), "These operators stay on the CPU; named as in `include`."
    )

    # Shapes

    shape_buckets: tuple[int, ...] = option(
        Sizes(),
        (),
        "Sizes, of a sequence for example, that have a plan each, which computes smaller ones as "
        "well, so that inputs resized to many sizes compile few plans; auto is 32, 128, 512, 2048 "
        "and 8192. Empty is a plan for each size. The report says which runs (docs/options.md).",
    )

    # Memory, and what is kept

    memory_limit: int | None = option(
        OrNone(ByteSize()),
        None,
        "Most bytes of device memory for all models on one delegate together: intermediate "
        "tensors, weights (once for equal ones), inputs, outputs and their staging, buffers to "
        "be bound. Parts that do not fit stay on the CPU; a buffer that does not is an error.",
    )
    serialization_dir: str | None = option(
        OrNone(Folder()),
        None,
        "Where compiled models are kept, in a folder of the name of `model_token`, and what "
        "drivers compile; otherwise both are in the user's cache folder.",
        origin="V2",
    )
    model_token: str | None = option(
        OrNone(Token()), None, "Names the folder in `serialization_dir`.", origin="V2"
    )
    enable_serialization: bool | None = option(
        OrNone(Truth()),
        None,
        "Whether compiled models are kept; true asks for `serialization_dir` and `model_token`, "
        "none uses the user's cache folder without them, false keeps none.",
        origin="V2, flag ENABLE_SERIALIZATION",
    )

    # How it is run

    wait_type: WaitType = option(
        EnumMember(WaitType, "TFLGPUDELEGATEWAITTYPE"),
        WaitType.PASSIVE,
        "How the end of a run is waited for. PASSIVE gives the processor to others and sleeps in "
        "long runs; ACTIVE asks the device again and again, which takes a whole processor and "
        "hears of the end sooner.",
        origin="Metal",
    )
    keep_warm: float | None = option(
        OrNone(Seconds()),
        None,
        "Seconds after the last run for which small runs keep the device's clocks up, ten in a "
        "second, so that the first runs after a pause are not slow; none makes no such runs "
        "(docs/benchmark.md).",
    )
    invoke_loop_times: int = option(
        WholeNumber(),
        1,
        "How often each part on the device is run in an invoke, with the same result, so that "
        "tools can measure it.",
        origin="V2 (gpu_invoke_loop_times)",
    )

    # When it fails

    on_error: OnError | None = option(
        OrNone(EnumMember(OnError)),
        None,
        "What follows when a run fails on the device. RAISE: the error; CPU: the CPU makes that "
        "run again and goes on; RETRY: recorded anew, once (docs/async.md). None is CPU on a "
        "device that nobody asked for, with `allow_fallback`, and RAISE elsewhere.",
    )
    run_timeout: float | None = option(
        OrNone(Seconds()),
        None,
        "Seconds after which a run of a part on the device has failed (`RunTimeoutError`); none is "
        "no limit. Not for backends that run nodes, nor between guard bands.",
    )

    # For tests

    guard_bands: bool = option(
        Truth(), False, "Check every buffer for writes outside (slow; for tests)."
    )


#: By name, in the order of docs/options.md.
OPTIONS: Mapping[str, Option] = options_of(OptionList)
