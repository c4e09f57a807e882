"""The option ``accuracy_guard``: how many invocations are compared with the CPU, and what is
done."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import OptionError
from tflgpu.errors.blame import shown
from tflgpu.options.kinds import OptionKind, WholeNumber, is_count, truth, whole
from tflgpu.values import frozen

_OPTION = "accuracy_guard"
_ON = frozenset({"true", "yes", "on"})
_OFF = frozenset({"false", "no", "off", "none", ""})


class OnFailure(enum.Enum):
    """What happens where a device's results are off and f32 does not mend them.

    CPU: the whole graph runs on the CPU from then on; an error where ``allow_fallback`` is off.
    KEEP: it stays on the device as it is, after a warning.
    ERROR: `invoke` raises a `DeviceError`.
    """

    CPU = "cpu"
    KEEP = "keep"
    ERROR = "error"


def _to_runs(value: object) -> int:
    return WholeNumber().read(f"{_OPTION}: runs", value)


def _to_tolerance(value: object) -> float:
    number = value if isinstance(value, (int, float, np.integer, np.floating)) else math.nan
    if not isinstance(value, bool) and 0 < float(number) < math.inf:
        return float(number)
    raise OptionError(f"{_OPTION}: tolerance is a number above 0, not {shown(value)}")


def _to_on_failure(value: object) -> OnFailure:
    if isinstance(value, OnFailure):
        return value
    name = value.strip().upper() if isinstance(value, str) else ""
    if name not in OnFailure.__members__:
        names = ", ".join(m.value for m in OnFailure)
        raise OptionError(f"{_OPTION}: on_failure is one of {names}, not {shown(value)}")
    return OnFailure[name]


def _to_only_overflow(value: object) -> bool:
    return truth(f"{_OPTION}: only_overflow", value)


@frozen(kw_only=True)
class AccuracyGuard:
    """Compares the first invocations on a device with the CPU.

    Attributes:
        runs: How many invocations are compared, for each set of input shapes.
        tolerance: How far an output may be from the CPU's: the largest difference, as a share of
            the largest magnitude in the CPU's tensor. Of whole numbers and booleans it is the share
            of elements that may differ. One rounding to f16 is 0.0005 of the largest value; through
            the layers of a network, 0.01 to 0.02 are usual.
        on_failure: What is done where f32 does not mend it.
        only_overflow: Whether an invocation is compared only where its results have infinities or
            NaN: a look at the results, and no run on the CPU as long as they are finite.

    Raises:
        OptionError: a value out of its range.
    """

    runs: int = attrs.field(default=1, converter=_to_runs)
    tolerance: float = attrs.field(default=0.05, converter=_to_tolerance)
    on_failure: OnFailure = attrs.field(default=OnFailure.CPU, converter=_to_on_failure)
    only_overflow: bool = attrs.field(default=False, converter=_to_only_overflow)


@frozen
class GuardSetting(OptionKind):
    """An `AccuracyGuard`, a number of runs (0: none), True or False, a mapping of its fields, or as
    text: ``3``, ``on``, ``off``, ``overflow``, ``runs=3,tolerance=0.02,on_failure=keep``."""

    takes = "runs, true, false, overflow, or text such as runs=3,tolerance=0.02,on_failure=keep"

    def read(self, option: str, value: object) -> AccuracyGuard | None:
        """The guard; None where it is off."""
        try:
            return _read(value)
        except OptionError as error:
            raise OptionError(str(error).replace(_OPTION, option, 1)) from None

    def shown(self, value: Any) -> str:
        """The guard's fields as text, which `parse` reads back."""
        if value is None:
            return "off"
        more = ",only_overflow=true" if value.only_overflow else ""
        return (
            f"runs={value.runs},tolerance={value.tolerance:g},on_failure={value.on_failure.value}"
            f"{more}"
        )


def _read(value: object) -> AccuracyGuard | None:
    if value is None or isinstance(value, AccuracyGuard):
        return value
    if isinstance(value, (bool, np.bool_)):
        return AccuracyGuard() if value else None
    if isinstance(value, Mapping):
        return _of_fields(value)
    if isinstance(value, str):
        return _of_text(value.strip())
    return None if whole(value) == 0 else AccuracyGuard(runs=value)


def _of_text(text: str) -> AccuracyGuard | None:
    if text.lower() in _ON:
        return AccuracyGuard()
    if text.lower() in _OFF:
        return None
    if text.lower() == "overflow":
        return AccuracyGuard(only_overflow=True)
    if "=" not in text:
        return _read(_number("runs", text))
    fields: dict[str, Any] = {}
    for pair in text.split(","):
        name, separator, given = (piece.strip() for piece in pair.partition("="))
        if not separator:
            raise OptionError(
                f"{_OPTION} is a number of runs, or pairs as in runs=3,tolerance=0.02; "
                f"not {shown(text)}"
            )
        is_text = name in ("on_failure", "only_overflow")
        fields[name] = given if is_text else _number(name, given)
    return _of_fields(fields)


def _number(name: str, text: str) -> int | float:
    try:
        return int(text) if is_count(text) else float(text)
    except ValueError:
        raise OptionError(f"{_OPTION}: {name} is a number, not {shown(text)}") from None


def _of_fields(fields: Mapping[Any, Any]) -> AccuracyGuard:
    known = attrs.fields_dict(AccuracyGuard)
    for name in fields:
        if name not in known:
            raise OptionError(f"{_OPTION} has no {shown(name)}; it has {', '.join(known)}")
    return AccuracyGuard(**fields)
