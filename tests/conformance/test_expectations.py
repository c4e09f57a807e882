"""Expectation files are strict: every line is well-formed, names a case, and stays true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tflgpu.conformance.expectations import Expectation, match_expectations, read_expectations
from tflgpu.conformance.report import Report
from tflgpu.conformance.suite import CheckResult, Suite
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable
from tflgpu.contract.allowances import Allowances
from tflgpu.errors import DeviceError, OptionError
from tflgpu.lowering.rule import Unsupported
from tflgpu.plugins.registry import registry


def test_lines_are_read(tmp_path: Path) -> None:
    file = tmp_path / "e.txt"
    file.write_text("# a comment\n\nnotyet  2/POW/*  loses # signs\n  never 0/x  no bytes\n")
    assert read_expectations(file) == (
        Expectation("notyet", "2/POW/*", "loses # signs"),
        Expectation("never", "0/x", "no bytes"),
    )
    assert read_expectations(None) == ()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("notyet 2/POW/*", "line 1: it needs a kind, case ids and a reason"),
        ("flaky 2/POW/* now and then", "line 1: 'flaky' is no kind"),
    ],
)
def test_malformed_lines_are_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "e.txt"
    file.write_text(line)
    with pytest.raises(OptionError, match=message):
        read_expectations(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.txt"):
        read_expectations(tmp_path / "nowhere.txt")


def test_a_pattern_that_names_no_case_is_an_error() -> None:
    lines = (Expectation("never", "2/ADD/*", "why"), Expectation("never", "2/POVV/*", "why"))
    with pytest.raises(OptionError, match="2/POVV"):
        match_expectations(lines, ["2/ADD/a", "2/POW/b"])
    assert set(match_expectations(lines[:1], ["2/ADD/a", "2/POW/b"])) == {"2/ADD/a"}


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_a_tolerance_is_widened_within_limits(scale: float) -> None:
    with pytest.raises(OptionError, match="between 1 and 4"):
        Allowances(tolerance_scale=scale)


@pytest.fixture
def target() -> Iterator[DeviceUnderTest]:
    opened = DeviceUnderTest.open(registry(), "cpu_ref", 0)
    yield opened
    opened.close()


def _fails(target: DeviceUnderTest) -> None:
    raise DeviceError("the card is gone")


def _defect(target: DeviceUnderTest) -> None:
    raise KeyError("w")


CASES: list[tuple[Any, bool, CheckResult]] = [
    (lambda t: None, False, CheckResult("passed")),
    (lambda t: None, True, CheckResult("failed", "passes, but was expected to fail (never: why)")),
    (_fails, False, CheckResult("failed", "the card is gone")),
    (_fails, True, CheckResult("expected", "never: why")),
    (_defect, False, CheckResult("failed", "KeyError: 'w'")),
    (lambda t: Unsupported("too big"), False, CheckResult("refused", "too big")),
    (lambda t: Unsupported("too big"), True, CheckResult("refused", "too big")),
    (lambda t: NotApplicable("no f16"), False, CheckResult("inapplicable", "no f16")),
]


@pytest.mark.parametrize(
    ("run", "status"), [(lambda t: None, "passed"), (_fails, "expected"), (_defect, "expected")]
)
def test_what_only_some_versions_fail_may_pass(
    target: DeviceUnderTest, run: Any, status: str
) -> None:
    check = Check("2/ADD/x/f32/edge", run, "ADD")
    suite = Suite((check,), {check.id: Expectation("version", "*", "why")})
    assert suite.judge(check, target).status == status


@pytest.mark.parametrize(("run", "known", "verdict"), CASES)
def test_verdicts(target: DeviceUnderTest, run: Any, known: bool, verdict: CheckResult) -> None:
    check = Check("2/ADD/x/f32/edge", run, "ADD")
    expected = {check.id: Expectation("never", "*", "why")} if known else {}
    assert Suite((check,), expected).judge(check, target) == verdict


def test_a_report_counts_and_sums_up(target: DeviceUnderTest, tmp_path: Path) -> None:
    report = Report(target.device.info)
    verdicts = {
        "ADD": ["passed", "passed", "inapplicable"],
        "POW": ["passed", "refused"],
        "TOPK_V2": ["refused", "refused"],
        "SUB": ["passed", "failed"],
    }
    for op, statuses in verdicts.items():
        for i, status in enumerate(statuses):
            check = Check(f"2/{op}/{i}/f32/edge", lambda t: None, op)
            report.add(check, CheckResult(status, f"{op} says so" if status != "passed" else ""))
    found = report.as_json()
    levels = {op: entry["cpu_ref"]["support"] for op, entry in found["ops"].items()}
    assert levels == {"ADD": "full", "POW": "partial", "TOPK_V2": "none", "SUB": "partial"}
    assert found["ops"]["POW"]["cpu_ref"]["reasons"] == ["POW says so"]
    assert found["levels"]["ops"] == {"passed": 4, "refused": 3, "failed": 1, "inapplicable": 1}
    file = tmp_path / "support.json"
    file.write_text('{"backends": {"other": {}}, "ops": {"ADD": {"other": {}}}}')
    report.write(file)
    text = file.read_text()
    assert '"other"' in text, "another backend's results stay"
    assert '"cpu_ref"' in text
