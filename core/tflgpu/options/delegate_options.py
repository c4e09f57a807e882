"""`DelegateOptions`: what a user may ask of the GPU delegate. A new option is a line here, and one in
`tflgpu.options.keywords` for type checkers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.errors import OptionError
from tflgpu.lowering.precision import Precision
from tflgpu.options import priorities, sources
from tflgpu.options.accuracy import AccuracyGuard, Guard
from tflgpu.options.checks import (
    check_nodes,
    check_on_error,
    check_partitioning,
    check_precision,
    check_serialization,
    check_wait,
)
from tflgpu.options.definition import Option, option, options_of, variable
from tflgpu.options.enums import (
    ExperimentalFlags,
    ForceBackend,
    InferencePreference,
    InferencePriority,
    OnError,
    OpResolverType,
    WaitType,
)
from tflgpu.options.kinds import Count, Loss, Member, OrNone, Seconds, Truth
from tflgpu.options.names import Device, Folder, Name, Nodes, Size, Token
from tflgpu.options.other_names import canonical, flags_of, forced
from tflgpu.values import frozen

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tflgpu.options.keywords import OptionKeywords

_PRIORITY = Member(InferencePriority, "TFLITE_GPU_INFERENCE_PRIORITY_")


@frozen(kw_only=True, init=False)
class DelegateOptions:
    """Options of `GpuDelegate`, the counterpart of TFLite's `TfLiteGpuDelegateOptionsV2` and of the
    options of its Metal and Java delegates. docs/options.md has them in a table.

    Members of enumerations may be given by name, with TFLite's prefix or without
    (``"TFLITE_GPU_INFERENCE_PRIORITY_MIN_LATENCY"``, ``"min_latency"``), or by TFLite's code;
    truth values also as 0 and 1, and as the words "true", "false", "yes", "no", "on" and "off" in
    any case.

    Raises:
        OptionError: an unknown option, a value out of range, or a clash, naming both.
    """

    # Where it runs

    backend: str | None = option(
        OrNone(Name()), None,
        '"opencl", "vulkan", "wgpu", ...; none picks the best that is there.',
        origin="LiteRT 2",
    )  # fmt: skip
    device: int | str | None = option(
        OrNone(Device()), None, "Index in the backend's list, or part of the name; none picks."
    )
    allow_fallback: bool = option(
        Truth(), True,
        "Whether nodes that the device refuses may run on the CPU; if not, a refusal is an "
        "`UnsupportedError`.",
    )  # fmt: skip
    cpu_backend: str | None = option(
        OrNone(Name()), None,
        'What runs the operators that the device does not: "litert" (LiteRT\'s kernels) or '
        '"cpu_ref" (NumPy); none takes LiteRT where it is installed.',
    )  # fmt: skip
    num_threads: int | None = option(
        OrNone(Count()), None,
        "Threads of the CPU's kernels; none leaves it to them (LiteRT takes one).",
    )  # fmt: skip
    op_resolver: OpResolverType = option(
        Member(OpResolverType), OpResolverType.AUTO, "Which of LiteRT's kernels on the CPU."
    )

    # How exact

    precision: Precision | None = option(
        OrNone(Member(Precision)), None,
        "F32, F16 or F32_F16 (f16 storage, f32 arithmetic); none follows "
        "`is_precision_loss_allowed`, then the priorities.",
        origin="LiteRT 2",
    )  # fmt: skip
    is_precision_loss_allowed: bool | None = option(
        Loss(), None,
        "True allows 16-bit floats (F16), False forbids them (F32), none leaves it to the "
        "priorities.",
        origin="V2, obsolete there",
    )  # fmt: skip
    quantized_models_allowed: bool = option(
        Truth(), True,
        "Whether operators on quantized tensors may run on the device; if not, they run on the "
        "CPU.",
        origin="Java",
    )  # fmt: skip
    quantized_numerics: Numerics | None = option(
        OrNone(Member(Numerics)), None,
        "What operators on quantized tensors are computed on: FLOAT, real numbers that are rounded "
        "behind each operator, or INTEGER, the stored numbers, bit for bit as TFLite's reference "
        "kernels, where there is a kernel that does so; the report says of which operators that "
        "is true, and of the others why not. None takes INTEGER where memory matters more than "
        "latency, else FLOAT.",
    )  # fmt: skip
    round_hybrid_inputs: bool = option(
        Truth(), True,
        "Whether operators with float inputs and 8-bit weights (models of dynamic range) round "
        "their inputs to 8 bits while the model runs, as LiteRT's reference kernels do. Without it "
        "they multiply by the weights as real numbers, as TFLite's GPU delegate does: closer to "
        "the real result, further from LiteRT's on the CPU, and without the work of rounding.",
    )  # fmt: skip
    strict: bool = option(
        Truth(), False,
        "Whether an index outside a tensor (GATHER, GATHER_ND, EMBEDDING_LOOKUP, SCATTER_ND, "
        "SPARSE_TO_DENSE, REVERSE_SEQUENCE) and a whole number divided by zero (DIV, FLOOR_DIV, "
        "FLOOR_MOD) are errors, as on the CPU, and so is an item that a loop writes outside its list. "
        "No kernel can raise one, so operators that may meet "
        "these, whose indices or divisors are no constants, run on the CPU. Without it what comes "
        "of such an index is NaN, the smallest i32 or false, and of such a quotient anything.",
    )  # fmt: skip

    accuracy_guard: AccuracyGuard | None = option(
        OrNone(Guard()), None,
        "How many of the first invocations are compared with the CPU; what f16 spoils is redone in "
        "f32 (docs/accuracy.md).",
    )  # fmt: skip

    # What matters

    inference_preference: InferencePreference = option(
        Member(InferencePreference, "TFLITE_GPU_INFERENCE_PREFERENCE_"),
        InferencePreference.FAST_SINGLE_ANSWER,
        "What is prepared before the first run. FAST_SINGLE_ANSWER: only what that run needs. "
        "BALANCED: each part is run once when it is loaded, so that the first run is as fast as "
        "later ones. SUSTAINED_SPEED: the same, and kernels that join a 1x1 and a depthwise "
        "convolution are compiled besides the usual ones, both are timed, and the faster stay.",
        origin="V2",
    )
    inference_priority1: InferencePriority = option(
        _PRIORITY, InferencePriority.MAX_PRECISION,
        "What matters most. MAX_PRECISION in the first place means F32, in the second F32_F16, in "
        "the third F16. MIN_MEMORY_USAGE before MIN_LATENCY stores tensors and weights in fewer "
        "bits wherever the precision allows that, not only where it is faster, and searches longer "
        "for a smaller arena.",
        origin="V2",
    )  # fmt: skip
    inference_priority2: InferencePriority = option(
        _PRIORITY, InferencePriority.AUTO, "What matters then; AUTO is completed as TFLite does.",
        origin="V2",
    )  # fmt: skip
    inference_priority3: InferencePriority = option(
        _PRIORITY, InferencePriority.AUTO, "What matters least.", origin="V2"
    )

    # Which nodes

    max_delegated_partitions: int | None = option(
        OrNone(Count()), None,
        "Most parts of the graph that go to the device, those of the largest estimated gain; none "
        "is no limit: a part that costs more than it gains is for the estimate to leave out.",
        origin="V2, default 1",
    )  # fmt: skip
    min_nodes_per_partition: int = option(
        Count(), 1, "Smaller parts stay on the CPU.", origin="benchmark_model"
    )
    partitioning: PartitionBy | None = option(
        OrNone(Member(PartitionBy)), None,
        "GAIN leaves to the CPU what is estimated to be faster there, ALL gives the device whatever "
        "it can run; none is GAIN on a GPU that nobody asked for by name, with `allow_fallback`, "
        "and ALL elsewhere.",
    )  # fmt: skip
    first_delegate_node_index: int = option(
        Count(0), 0, "Operators of the file before this one stay on the CPU.",
        origin="V2, debug builds only",
    )  # fmt: skip
    last_delegate_node_index: int | None = option(
        OrNone(Count(0)), None, "Operators of the file after this one stay on the CPU.",
        origin="V2, debug builds only, default 2147483647",
    )  # fmt: skip
    include: tuple[int | str, ...] = option(
        Nodes(), (),
        "Only these operators may go to the device: indices in the file, names of ops, and names "
        "of tensors that they make. Empty is all.",
    )  # fmt: skip
    exclude: tuple[int | str, ...] = option(
        Nodes(), (), "These operators stay on the CPU; named as in `include`."
    )

    # Memory, and what is kept

    memory_limit: int | None = option(
        OrNone(Size()), None,
        "Most bytes of device memory for all models on one delegate together: intermediate tensors, "
        "weights (once for equal ones), inputs, outputs and their staging, buffers to be bound. Parts "
        "that do not fit stay on the CPU; a buffer that does not is an error.",
    )  # fmt: skip
    serialization_dir: str | None = option(
        OrNone(Folder()), None,
        "Where compiled models are kept, in a folder of the name of `model_token`, and what drivers "
        "compile; otherwise both are in the user's cache folder.",
        origin="V2",
    )  # fmt: skip
    model_token: str | None = option(
        OrNone(Token()), None, "Names the folder in `serialization_dir`.", origin="V2"
    )
    enable_serialization: bool | None = option(
        OrNone(Truth()), None,
        "Whether compiled models are kept; true asks for `serialization_dir` and `model_token`, none "
        "uses the user's cache folder without them, false keeps none.",
        origin="V2, flag ENABLE_SERIALIZATION",
    )  # fmt: skip

    # How it is run

    wait_type: WaitType = option(
        Member(WaitType, "TFLGPUDELEGATEWAITTYPE"), WaitType.PASSIVE,
        "How the end of a run is waited for. PASSIVE gives the processor to others and sleeps in "
        "long runs; ACTIVE asks the device again and again, which takes a whole processor and "
        "hears of the end sooner.",
        origin="Metal",
    )  # fmt: skip
    invoke_loop_times: int = option(
        Count(), 1,
        "How often each part on the device is run in an invoke, with the same result, so that "
        "tools can measure it.",
        origin="V2 (gpu_invoke_loop_times)",
    )  # fmt: skip

    # When it fails

    on_error: OnError | None = option(
        OrNone(Member(OnError)), None,
        "What follows when a run fails on the device. RAISE: the error; CPU: the CPU makes that run "
        "again and goes on; RETRY: recorded anew, once (docs/async.md). None is CPU on a device that "
        "nobody asked for, with `allow_fallback`, and RAISE elsewhere.",
    )  # fmt: skip
    run_timeout: float | None = option(
        OrNone(Seconds()), None,
        "Seconds after which a run of a part on the device has failed (`RunTimeoutError`); none is "
        "no limit. Not for backends that run nodes, nor between guard bands.",
    )  # fmt: skip

    # For tests

    guard_bands: bool = option(
        Truth(), False, "Check every buffer for writes outside (slow; for tests)."
    )

    def __init__(self, **options: Unpack[OptionKeywords]) -> None:
        values: dict[str, Any] = canonical(options, options_of(type(self)))
        self.__attrs_init__(**values)

    @classmethod
    def from_dict(cls, options: Mapping[str, object]) -> DelegateOptions:
        """Options by name, with the values that keywords have.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**sources.from_dict(options, options_of(cls)))

    @classmethod
    def from_text(cls, options: Mapping[str, object]) -> DelegateOptions:
        """Options whose values are text: numbers in digits, truth values as words, lists between
        commas, and "none" for what picks by itself. Other values are taken as they are.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**canonical(options, options_of(cls), text=True))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], table: str = "") -> DelegateOptions:
        """Options that a TOML file has, in the table of that name ("tool.tflgpu") or at its top.

        Raises:
            OptionError: the file cannot be read, or as `DelegateOptions`; names the file.
        """
        values = sources.from_toml(path, options_of(cls), table)
        try:
            return cls(**values)
        except OptionError as error:
            raise OptionError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DelegateOptions:
        """Options that variables have: ``TFLGPU_PRECISION`` is `precision`. A variable that begins
        with TFLGPU_ and that nothing reads is warned of, once.

        Raises:
            OptionError: as `DelegateOptions`; names the variables.
        """
        values = sources.from_environment(environ, options_of(cls))
        try:
            return cls(**values)
        except OptionError as error:
            listed = ", ".join(map(variable, values))
            raise OptionError(f"{error} (said by {listed})") from None

    @classmethod
    def gathered(
        cls,
        options: Mapping[str, object],
        *,
        text: bool = False,
        called: Callable[[str], str] = str,
        environ: Mapping[str, str] = os.environ,
    ) -> DelegateOptions:
        """Options by name; what they leave open is said by environment variables, and what these
        leave open by the TOML file that ``TFLGPU_OPTIONS_FILE`` names. So `GpuDelegate` takes its
        keywords.

        Args:
            options: What the caller gives.
            text: Whether text among it is read as `from_text` does.
            called: What errors call an option of the caller's.
            environ: Variables.

        Raises:
            OptionError: as `DelegateOptions`; says what came from elsewhere.
        """
        known = options_of(cls)
        own = canonical(options, known, text=text, called=called)
        found = sources.gathered(own, environ, known)
        try:
            return cls(**found.values)
        except OptionError as error:
            raise found.explain(error) from None

    @classmethod
    def from_v2(cls, **options: Unpack[OptionKeywords]) -> DelegateOptions:
        """``TfLiteGpuDelegateOptionsV2Default()`` with the given options: what is not given has TFLite's
        default, also where ours is another. That is ``max_delegated_partitions``, which is 1 there
        (docs/options.md says why not here).

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**{"max_delegated_partitions": 1, **canonical(options, known_options())})

    def changed(self, **changes: Unpack[OptionKeywords]) -> DelegateOptions:
        """The same with some options changed; as `attrs.evolve`, which type checkers cannot follow
        here, and by other names, too.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return attrs.evolve(self, **canonical(changes, known_options()))

    def __attrs_post_init__(self) -> None:
        """Check the options against each other."""
        _ = self.priorities
        check_precision(self.precision, self.is_precision_loss_allowed)
        check_nodes(self.first_delegate_node_index, self.last_delegate_node_index)
        check_serialization(self.serialization_dir, self.model_token, self.enable_serialization)
        check_wait(self.wait_type)
        check_partitioning(self.partitioning, self.allow_fallback)
        check_on_error(self.on_error, self.allow_fallback)

    @property
    def priorities(self) -> tuple[InferencePriority, InferencePriority, InferencePriority]:
        """The three priorities, AUTO ones completed by TFLite's rules.

        Raises:
            OptionError: the first is AUTO, the second is AUTO but the third is not, or one is
                given twice.
        """
        return priorities.completed(
            self.inference_priority1, self.inference_priority2, self.inference_priority3
        )

    @property
    def wanted_precision(self) -> Precision:
        """The precision asked for; a device may have to fall back to one with more bits."""
        if self.precision is not None:
            return self.precision
        if self.is_precision_loss_allowed is not None:
            return Precision.F16 if self.is_precision_loss_allowed else Precision.F32
        return priorities.precision_for(self.priorities)

    @property
    def wanted_numerics(self) -> Numerics:
        """The numerics of quantized operators, asked for or by the priorities."""
        if self.quantized_numerics is not None:
            return self.quantized_numerics
        return Numerics.INTEGER if self.saves_memory else Numerics.FLOAT

    @property
    def saves_memory(self) -> bool:
        """Whether memory matters more than latency."""
        return priorities.memory_first(self.priorities)

    @property
    def cache_root(self) -> str | None:
        """The folder for what is compiled, in the place of the user's cache folder."""
        if self.serialization_dir is None or self.model_token is None:
            return None
        return str(Path(self.serialization_dir) / self.model_token)

    # Under TFLite's other names

    @property
    def experimental_flags(self) -> ExperimentalFlags:
        """The options that are flags in TFLite, as such."""
        return flags_of(self.quantized_models_allowed, self.backend, self.cache_root is not None)

    @property
    def enable_quantization(self) -> bool:
        """`quantized_models_allowed` by the Metal delegate's name."""
        return self.quantized_models_allowed

    @property
    def allow_precision_loss(self) -> bool | None:
        """`is_precision_loss_allowed` by the Metal delegate's name."""
        return self.is_precision_loss_allowed

    @property
    def precision_loss_allowed(self) -> bool | None:
        """`is_precision_loss_allowed` by the Java delegate's name."""
        return self.is_precision_loss_allowed

    @property
    def force_backend(self) -> ForceBackend:
        """`backend` by the Java delegate's name; UNSET also for those that it does not have."""
        return forced(self.backend)

    @property
    def gpu_invoke_loop_times(self) -> int:
        """`invoke_loop_times` by the original's name."""
        return self.invoke_loop_times


def known_options() -> Mapping[str, Option]:
    """All options by name, in the order of docs/options.md."""
    return options_of(DelegateOptions)
