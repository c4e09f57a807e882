"""`DelegateOptions`: what a user may ask of the GPU delegate. A new option is a line here, and one in
`tflgpu.options.keywords` for type checkers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from tflgpu.compiler.numerics import Numerics
from tflgpu.errors import OptionError
from tflgpu.lowering.lowering import Precision
from tflgpu.options import priorities
from tflgpu.options.definition import Option, option, options_of
from tflgpu.options.enums import (
    ExperimentalFlags,
    InferencePreference,
    InferencePriority,
    OpResolverType,
)
from tflgpu.options.kinds import (
    Count,
    Device,
    Loss,
    Member,
    Name,
    OrNone,
    Truth,
)
from tflgpu.options.other_names import canonical, flags_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tflgpu.options.keywords import OptionKeywords

_PRIORITY = Member(InferencePriority, "TFLITE_GPU_INFERENCE_PRIORITY_")


@attrs.frozen(kw_only=True)
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
    quantized_numerics: Numerics = option(
        Member(Numerics), Numerics.FLOAT,
        "What operators on quantized tensors are computed on: FLOAT, real numbers that are rounded "
        "behind each operator, or INTEGER, the stored numbers, bit for bit as TFLite's reference "
        "kernels, where there is a kernel that does so; the report says of which operators that "
        "is true, and of the others why not.",
    )  # fmt: skip

    # What matters

    inference_preference: InferencePreference = option(
        Member(InferencePreference, "TFLITE_GPU_INFERENCE_PREFERENCE_"),
        InferencePreference.FAST_SINGLE_ANSWER,
        "Without effect so far.",
        origin="V2",
    )
    inference_priority1: InferencePriority = option(
        _PRIORITY, InferencePriority.MAX_PRECISION,
        "What matters most. MAX_PRECISION in the first place means F32, in the second F32_F16, in "
        "the third F16.",
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
        "is no limit.",
        origin="V2, default 1",
    )  # fmt: skip
    min_nodes_per_partition: int = option(
        Count(), 1, "Smaller parts stay on the CPU.", origin="benchmark_model"
    )

    # For measuring and tests

    guard_bands: bool = option(
        Truth(), False, "Check every buffer for writes outside (slow; for tests)."
    )

    def __init__(self, **options: Unpack[OptionKeywords]) -> None:
        values: dict[str, Any] = canonical(options, options_of(type(self)))
        self.__attrs_init__(**values)  # type: ignore[attr-defined]

    def __attrs_post_init__(self) -> None:
        """Check the options against each other."""
        if self.is_precision_loss_allowed is False and self.precision in (
            Precision.F16,
            Precision.F32_F16,
        ):
            raise OptionError(
                f"precision={self.precision.name} needs 16-bit floats, which "
                "is_precision_loss_allowed=False forbids; drop one of the two"
            )
        _ = self.priorities

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

    # Under TFLite's other names

    @property
    def experimental_flags(self) -> ExperimentalFlags:
        """The options that are flags in TFLite, as such."""
        return flags_of(self.quantized_models_allowed, self.backend, False)

    @property
    def enable_quantization(self) -> bool:
        """`quantized_models_allowed` by the Metal delegate's name."""
        return self.quantized_models_allowed


def known_options() -> Mapping[str, Option]:
    """All options by name, in the order of docs/options.md."""
    return options_of(DelegateOptions)
