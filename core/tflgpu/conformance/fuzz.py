"""Level 3: generated cases.

They are drawn first and run together, since a device compiles many kernels at once faster than
one by one. Only where one fails is it searched again, by Hypothesis, for its smallest form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import attrs

from tflgpu.conformance.op_checks import Question, ask, judge
from tflgpu.conformance.requirements import missing_package
from tflgpu.conformance.run import Tensors
from tflgpu.conformance.samples import generate, source_of
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import NodeDevice
from tflgpu.errors import TflgpuError
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import OpDef

#: Cases an op where the user names no number: of its resized samples, and of its own generator,
#: which has more to vary.
RESIZED, OWN = 6, 16
_SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 17, 19, 20, 23)
_T = TypeVar("_T")
#: Draws a whole number, both ends included.
_Integer = Callable[[int, int], int]


@attrs.frozen
class HypothesisDraw:
    """`tflgpu.ops.base.Draw` over Hypothesis, which makes what it draws smaller."""

    draw: _Integer

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return self.draw(low, high)

    def choice(self, options: Sequence[_T]) -> _T:
        """One of several."""
        return options[self.integer(0, len(options) - 1)]

    def size(self, most: int = 17) -> int:
        """A dimension up to ``most``."""
        return self.choice([n for n in _SIZES if n <= most])


def generated_checks(ops: Iterable[OpDef]) -> list[Check]:
    """One check an op."""
    return [Check(f"3/{op.name}", partial(_check, op), op.name) for op in ops]


def _check(op: OpDef, target: DeviceUnderTest) -> Outcome:
    missing = missing_package()
    if missing is not None:
        return NotApplicable(missing)
    if not op.generate and not op.samples():
        return NotApplicable(f"{op.name} has no samples")
    precisions = [p for p in Precision if target.lacks(p) is None]
    ways = [Tensors.EDGE] if isinstance(target.device, NodeDevice) else list(Tensors)

    def question(draw: _Integer) -> Question:
        drawn = HypothesisDraw(draw)
        precision, tensors = drawn.choice(precisions), drawn.choice(ways)
        return Question(op, generate(op, drawn), precision, tensors)

    questions: list[Question] = []
    fixed = OWN if op.generate else RESIZED
    _explore(question, questions.append, target.examples or fixed, random=bool(target.examples))
    refused = 0
    for asked, (case, answer) in zip(questions, ask(target, questions), strict=True):
        try:
            outcome = judge(target, case, answer, half=asked.half)
        except (TflgpuError, AssertionError) as error:
            smallest = _smallest(question, target) or (asked, error)
            raise AssertionError(_report(*smallest)) from error
        refused += isinstance(outcome, Unsupported)
    if refused and refused == len(questions):
        return Unsupported(f"all {refused} generated cases were refused")
    return None


def _explore(
    question: Callable[[_Integer], Question],
    use: Callable[[Question], None],
    examples: int,
    *,
    random: bool = False,
    shrink: bool = False,
) -> None:
    from hypothesis import HealthCheck, Phase, given, settings, strategies

    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        derandomize=not random,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @given(strategies.data())
    def explore(data: Any) -> None:
        use(question(lambda low, high: data.draw(strategies.integers(low, high))))

    explore()


def _smallest(
    question: Callable[[_Integer], Question], target: DeviceUnderTest
) -> tuple[Question, BaseException] | None:
    """The smallest failing case that a fresh search finds, None where it finds none."""
    last: list[tuple[Question, BaseException]] = []

    def try_one(asked: Question) -> None:
        ((case, answer),) = ask(target, [asked])
        try:
            judge(target, case, answer, half=asked.half)
        except (TflgpuError, AssertionError) as error:
            last.append((asked, error))
            raise AssertionError("wrong") from error

    try:
        _explore(question, try_one, max(target.examples or 0, 50), shrink=True)
    except Exception:  # noqa: BLE001
        # Hypothesis's own where the device does not fail every time: the last one will do.
        return last[-1] if last else None
    return None


def _report(asked: Question, error: BaseException) -> str:
    return (
        f"{asked.op.name} in {asked.precision.value}, tensors {asked.tensors.value}: {error}\n"
        f"to paste into its samples:\n    {source_of(asked.sample)}"
    )
