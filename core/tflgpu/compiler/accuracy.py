"""The findings of an accuracy guard, for a report."""

from __future__ import annotations

import enum

from tflgpu.values import frozen


@frozen
class Inaccurate:
    """An operator whose result was off on the device, given the right operands.

    Attributes:
        node: Operator index in the model file.
        op: Its name.
        error: By how much: the largest difference as a share of the result's largest magnitude;
            None where values were NaN or infinite that should not be.
        reason: A sentence: by how much, and what made it so.
    """

    node: int
    op: str
    error: float | None
    reason: str


class AccuracyOutcome(enum.Enum):
    """The end of an accuracy guard's work on a graph.

    PENDING: nothing was compared yet. ACCURATE: nothing had to be done. REDONE: some operators, or
    all, were moved to f32. ON_CPU, KEPT, FAILED: f32 does not mend it, and the whole runs on the
    CPU, stays as it is, or is an error. UNCHECKED: there is nothing to compare with.
    """

    PENDING = "pending"
    ACCURATE = "accurate"
    REDONE = "redone"
    ON_CPU = "on_cpu"
    KEPT = "kept"
    FAILED = "failed"
    UNCHECKED = "unchecked"


@frozen
class AccuracyCheck:
    """The findings of an accuracy guard, and what it changed.

    Attributes:
        outcome: In a word.
        runs: Invocations that were compared.
        error: The largest error of an output in them, as it is now, a share of the output's largest
            magnitude; None where values are NaN or infinite, or nothing was compared.
        inaccurate: The operators that were off. Empty where the errors of many add up and none of
            them is to blame.
        redone: The operators that run in f32 now, by index: those, and what makes their operands
            where these need more than 16 bits; or all.
        story: What happened, in a sentence.
    """

    outcome: AccuracyOutcome
    runs: int = 0
    error: float | None = None
    inaccurate: tuple[Inaccurate, ...] = ()
    redone: tuple[int, ...] = ()
    story: str = "no invocation was compared yet"
