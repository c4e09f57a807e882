"""docs/report.md: its programs run and print what it says, and its tables list what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import Page, printed
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import OperatorReport, PartitionReport
from tflgpu.lowering.reason import ReasonCode

PAGE = Page("report")


@pytest.mark.parametrize("number", range(len(PAGE.programs)))
def test_the_programs_print_what_the_page_says(number: int, tmp_path: Path) -> None:
    program = PAGE.programs[number]
    assert printed(program, tmp_path) == PAGE.promised(program)


def test_the_page_has_programs() -> None:
    assert len(PAGE.programs) == 2


def named(heading: str) -> list[str]:
    """What the first column of the table below a line lists, in its order."""
    _, _, after = PAGE.text.partition(heading)
    assert after, heading
    rows = []
    for line in after.lstrip("\n").splitlines():
        if not line.startswith("|"):
            break
        rows += re.findall(r"`(\w+)`", line.split("|")[1])
    return rows


def test_all_codes_are_explained() -> None:
    assert named("for programs:\n\n| code | what it means | what helps |\n|---|---|---|") == [
        code.value for code in ReasonCode
    ]


def test_all_fields_are_explained() -> None:
    report = DelegationReport(
        1, 1, operators=(OperatorReport(0, "ADD"),), parts=(PartitionReport(0, (0,), 1, 0.0, 0.0),)
    )
    fields = report.to_dict()
    assert named("There is no NaN and no infinity.\n\n| field | |\n|---|---|") == list(fields)
    (row,) = fields["operators"]
    assert named("| field of an operator | |\n|---|---|") == list(row)
    line = next(text for text in PAGE.text.splitlines() if text.startswith("| `partitions` |"))
    (part,) = fields["partitions"]
    assert re.findall(r"`(\w+)`", line.split("|")[2]) == list(part)
