"""What modules may use of a device."""

from __future__ import annotations

import attrs
from tflgpu.language.caps import Features

#: What the function of every module is called.
ENTRY_POINT = "main"


@attrs.frozen(kw_only=True)
class Target(Features):
    """What changes the printed code. Capabilities tell of the features only; a device's own says
    also how its driver treats special numbers.

    Attributes:
        int8_dot: A dot product of four bytes is one instruction.
        keeps_special: Float widths with shaderSignedZeroInfNanPreserve; without it a driver may
            compute as if there were no infinities.
        rounds_to_even: Widths with shaderRoundingModeRTE.
        keeps_denormals: Widths with shaderDenormPreserve.
    """

    int8_dot: bool = False
    keeps_special: frozenset[int] = frozenset()
    rounds_to_even: frozenset[int] = frozenset()
    keeps_denormals: frozenset[int] = frozenset()
