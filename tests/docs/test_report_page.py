"""docs/report.md: its programs run and print what it says, and its tables list what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import OperatorReport, PartitionReport
from tflgpu.lowering.reason import ReasonCode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_print_what_the_page_says(number: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, after = PAGE.split(BLOCKS[number])
    promised = re.match(r"```\n\nprints `([^`]*)`", after)
    assert promised is not None
    assert done.stdout.strip() == promised.group(1)


def test_the_page_has_programs() -> None:
    assert len(BLOCKS) == 2


def named(heading: str) -> list[str]:
    """What the first column of the table below a line lists, in its order."""
    _, _, after = PAGE.partition(heading)
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
    line = next(text for text in PAGE.splitlines() if text.startswith("| `partitions` |"))
    (part,) = fields["partitions"]
    assert re.findall(r"`(\w+)`", line.split("|")[2]) == list(part)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
