"""`DelegateOptions`: the values of all options (`tflgpu.options.option_list`), and the ways to give
them."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from tflgpu.compiler.numerics import Numerics
from tflgpu.errors import OptionError
from tflgpu.lowering.precision import Precision
from tflgpu.options import sources
from tflgpu.options.checks import check_options
from tflgpu.options.definition import variable
from tflgpu.options.enums import ExperimentalFlags, ForceBackend, InferencePriority
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.options.option_list import OPTIONS, OptionList
from tflgpu.options.other_names import canonical, flags_of, forced
from tflgpu.values import frozen

_P = InferencePriority
#: What follows a first priority where nothing else is said: TFLite's rules (`api.cc`).
_COMPLETIONS = {
    _P.MIN_LATENCY: (_P.MIN_MEMORY_USAGE, _P.MAX_PRECISION),
    _P.MIN_MEMORY_USAGE: (_P.MAX_PRECISION, _P.MIN_LATENCY),
    _P.MAX_PRECISION: (_P.MIN_LATENCY, _P.MIN_MEMORY_USAGE),
}


@frozen(kw_only=True, init=False)
class DelegateOptions(OptionList):
    """Options of `GpuDelegate`, the counterpart of TFLite's `TfLiteGpuDelegateOptionsV2` and of the
    options of its Metal and Java delegates. docs/options.md has them in a table.

    Members of enumerations may be given by name, with TFLite's prefix or without
    (``"TFLITE_GPU_INFERENCE_PRIORITY_MIN_LATENCY"``, ``"min_latency"``), or by TFLite's code;
    truth values also as 0 and 1, and as the words "true", "false", "yes", "no", "on" and "off" in
    any case.

    Raises:
        OptionError: an unknown option, a value out of range, or a clash, naming both.
    """

    def __init__(self, **options: Unpack[OptionKeywords]) -> None:
        values: dict[str, Any] = canonical(options)
        self.__attrs_init__(**values)

    def __repr__(self) -> str:
        given = {n: getattr(self, n) for n in OPTIONS}
        told = (
            f"{n}={v.name if isinstance(v, enum.Enum) else v!r}"
            for n, v in given.items()
            if v != OPTIONS[n].default
        )
        return f"DelegateOptions({', '.join(told)})"

    @classmethod
    def from_dict(cls, options: Mapping[str, object]) -> DelegateOptions:
        """Options by name, with the values that keywords have.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**sources.from_dict(options))

    @classmethod
    def from_text(cls, options: Mapping[str, object]) -> DelegateOptions:
        """Options whose values are text: numbers in digits, truth values as words, lists between
        commas, and "none" for what picks by itself. Other values are taken as they are.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**canonical(options, text=True))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], table: str = "") -> DelegateOptions:
        """Options that a TOML file has, in the table of that name ("tool.tflgpu") or at its top.

        Raises:
            OptionError: the file cannot be read, or as `DelegateOptions`; names the file.
        """
        values = sources.from_toml(path, table)
        try:
            return cls(**values)
        except OptionError as error:
            raise OptionError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> DelegateOptions:
        """Options that variables have: ``TFLGPU_PRECISION`` is `precision`. A variable whose
        name begins with ``TFLGPU_`` and that nothing reads is warned of, once.

        Raises:
            OptionError: as `DelegateOptions`; names the variables.
        """
        values = sources.environment_options(environ)
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
        own = canonical(options, text=text, called=called)
        found = sources.gathered(own, environ)
        try:
            return cls(**found.values)
        except OptionError as error:
            raise found.explain(error) from None

    @classmethod
    def from_v2(cls, **options: Unpack[OptionKeywords]) -> DelegateOptions:
        """``TfLiteGpuDelegateOptionsV2Default()`` with the given options: what is not given has
        TFLite's default, also where ours is another. That is ``max_delegated_partitions``, which is
        1 there (docs/options.md says why not here).

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return cls(**{"max_delegated_partitions": 1, **canonical(options)})

    def changed(self, **changes: Unpack[OptionKeywords]) -> DelegateOptions:
        """A copy with some options changed: `attrs.evolve`, but typed, and with other names of
        options, too.

        Raises:
            OptionError: as `DelegateOptions`.
        """
        return attrs.evolve(self, **canonical(changes))

    def __attrs_post_init__(self) -> None:
        """Check the options against each other."""
        _ = self.priorities
        check_options(self)

    @property
    def priorities(self) -> tuple[InferencePriority, InferencePriority, InferencePriority]:
        """The three priorities, AUTO ones completed by TFLite's rules.

        Raises:
            OptionError: the first is AUTO, the second is AUTO but the third is not, or one is
                given twice.
        """
        first, second = self.inference_priority1, self.inference_priority2
        third = self.inference_priority3
        if first is _P.AUTO:
            raise OptionError("inference_priority1 must not be AUTO; give what matters most")
        if second is _P.AUTO:
            if third is not _P.AUTO:
                raise OptionError("inference_priority3 is set but inference_priority2 is AUTO")
            second, third = _COMPLETIONS[first]
        given = [first, second] + ([] if third is _P.AUTO else [third])
        if len(set(given)) != len(given):
            raise OptionError("inference priorities repeat: " + ", ".join(p.name for p in given))
        if third is _P.AUTO:
            (third,) = set(_COMPLETIONS) - {first, second}
        return first, second, third

    @property
    def wanted_precision(self) -> Precision:
        """The precision asked for, or that TFLite's OpenCL API would take: by the place of
        MAX_PRECISION. A device may have to fall back to one with more bits."""
        if self.precision is not None:
            return self.precision
        if self.is_precision_loss_allowed is not None:
            return Precision.F16 if self.is_precision_loss_allowed else Precision.F32
        position = self.priorities.index(_P.MAX_PRECISION)
        return (Precision.F32, Precision.F32_F16, Precision.F16)[position]

    @property
    def wanted_numerics(self) -> Numerics:
        """The numerics of quantized operators, asked for or by the priorities."""
        if self.quantized_numerics is not None:
            return self.quantized_numerics
        return Numerics.INTEGER if self.saves_memory else Numerics.FLOAT

    @property
    def saves_memory(self) -> bool:
        """Whether memory matters more than latency."""
        order = self.priorities
        return order.index(_P.MIN_MEMORY_USAGE) < order.index(_P.MIN_LATENCY)

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
