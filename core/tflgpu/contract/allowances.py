"""Deviations that a backend asks the conformance suite to allow it."""

from __future__ import annotations

from pathlib import Path

import attrs

from tflgpu.errors import OptionError
from tflgpu.values import frozen

_MOST = 4.0


def _scale(instance: object, attribute: object, value: float) -> None:
    if not 1 <= value <= _MOST:
        raise OptionError(f"tolerance_scale is {value}; it lies between 1 and {_MOST:g}")


@frozen
class Allowances:
    """Known failures and wider tolerances, as a backend asks for them.

    Attributes:
        expectations: File of cases that are known to fail, each with a kind and a reason
            (`tflgpu.conformance.expectations` has the format); None where there are none.
        tolerance_scale: Factor on every tolerance but the exact ones, 1 to 4; shown in the
            suite's report.

    Raises:
        OptionError: the scale is out of its range.
    """

    expectations: Path | None = None
    tolerance_scale: float = attrs.field(default=1.0, validator=_scale)
