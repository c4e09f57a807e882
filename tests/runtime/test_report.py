"""What a report says in words."""

from __future__ import annotations

from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import Refusal


def refusals(*reasons: str) -> tuple[Refusal, ...]:
    return tuple(Refusal(i, "ADD", reason) for i, reason in enumerate(reasons))


def test_one_reason_for_everything_is_said_once() -> None:
    report = DelegationReport(3, 0, refusals("no driver", "no driver", "no driver"))
    assert str(report) == "3 of 3 operators run on the CPU: no driver"


def test_reasons_that_differ_are_listed() -> None:
    report = DelegationReport(2, 0, refusals("too large", "no kernel"))
    assert str(report).splitlines() == [
        "2 of 2 operators run on the CPU", "  #0 ADD: too large", "  #1 ADD: no kernel",
    ]  # fmt: skip
    assert report.common_reason is None


def test_a_reason_for_some_is_not_one_for_all() -> None:
    report = DelegationReport(
        3, 1, refusals("no kernel", "no kernel"), backend="vulkan", device="a GPU", precision="f32"
    )
    assert report.common_reason is None
    assert str(report).splitlines()[0] == "1 of 3 operators run on vulkan (a GPU, f32)"
    assert len(str(report).splitlines()) == 3
