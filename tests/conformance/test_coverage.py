"""What a run of the suite says of itself: how much it covered, what it lacks, what it demands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tflgpu.conformance.expectations import Expectation, match_expectations, read_expectations
from tflgpu.conformance.ops_table import defined_page, main, measured_page
from tflgpu.conformance.report import Report
from tflgpu.conformance.suite import CheckFinding, Suite
from tflgpu.conformance.summary import summary
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable
from tflgpu.contract.device import Allowances, DeviceInfo
from tflgpu.errors import DeviceError, OptionError
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.registry import registry

ROOT = Path(__file__).parents[2]


def _report(*verdicts: tuple[str, str, str, str]) -> Report:
    """Of checks given as (id, op, status, detail)."""
    found = Report(
        DeviceInfo("toy", 0, "Toy"), ops=frozenset(("RELU", "NEG", "ABS")),
        declared=frozenset(("RELU", "ABS")),
    )  # fmt: skip
    for name, op, status, detail in verdicts:
        found.add(Check(name, lambda target: None, op), CheckFinding(status, detail))
    return found


REPORT = _report(
    ("0/a", "", "passed", ""),
    ("1/a", "", "inapplicable", "it runs nodes"),
    ("1/b", "", "inapplicable", "it runs nodes"),
    ("2/RELU/a", "RELU", "passed", ""),
    ("2/NEG/a", "NEG", "refused", "it has no NEG"),
    ("2/ABS/a", "ABS", "refused", "too large"),
    ("3/ABS", "ABS", "refused", "all refused"),
)


def test_the_summary_says_the_coverage_first() -> None:
    lines = list(summary(REPORT))
    assert lines[0] == ("coverage: 1 of 3 ops ran, in 2 of 7 (28.6 %) cases", True)
    text = "\n".join(line for line, _ in lines)
    assert "level nodes: NOTHING RAN of 2 cases (2 inapplicable)" in text
    assert "level generated: NOTHING RAN of 1 cases (1 refused)" in text
    assert "level ops: 1 of 3 cases ran (2 refused)" in text
    assert "not run, level nodes, 2 cases: it runs nodes" in text


def test_an_op_that_is_declared_and_refused_is_named() -> None:
    hollow = [line for line, matters in summary(REPORT) if "every case" in line and matters]
    assert hollow == ["ABS has kernels here, and every case of it was refused: too large"]


def test_what_several_processes_found_is_one_report() -> None:
    halves = [_report(("0/a", "", "passed", "")), _report(("2/RELU/a", "RELU", "passed", ""))]
    sent = json.loads(json.dumps([each.as_message() for each in halves]))
    whole = _report(("0/a", "", "passed", ""), ("2/RELU/a", "RELU", "passed", ""))
    assert Report.of_messages(sent) == whole


def test_nothing_at_all() -> None:
    assert list(summary(_report())) == [("nothing ran", True)]


def test_the_file_has_it_too() -> None:
    found = REPORT.as_json()["coverage"]
    assert found["ops"] == {"ran": 1, "of": 3}
    assert found["cases"] == {"ran": 2, "of": 7}
    assert found["nothing_ran_of"] == ["nodes", "generated"]
    assert found["declared_and_refused"] == {"ABS": "too large"}
    assert found["levels"]["ops"]["not_run"] == {"it has no NEG": 1, "too large": 1}


def _pytest(site: Path, *arguments: str, hide: str = "") -> subprocess.CompletedProcess[str]:
    paths = [str(site), os.environ.get("PYTHONPATH", ""), *sys.path]
    environment = {
        **os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(paths),
        # Hypothesis has a plugin too, and it is to be as if that were not installed.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.modules[{hide!r}] = None\n" if hide else "", encoding="utf-8"
    )
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
        "tflgpu.conformance.plugin",
         "-c", os.devnull, "--rootdir", str(site), *arguments],
        cwd=site, env=environment, text=True, check=False, capture_output=True, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("processes", [(), ("-p", "xdist", "-n", "2")], ids=["one", "two"])
def test_a_run_says_it_and_demands_it(tmp_path: Path, processes: tuple[str, ...]) -> None:
    # A few cases of level 0 are quick; they are not about ops.
    report = tmp_path / "made" / "support.json"  # a folder that is not there yet
    done = _pytest(
        tmp_path, *processes, "--pyargs", "tflgpu.conformance", "--tflgpu-backend", "cpu_ref",
        "--tflgpu-level", "0", "-k", "nodes or closes",
        "--tflgpu-require-ops", "RELU,NEG", "--tflgpu-report", str(report),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    last = done.stdout.split("cpu_ref device 0")[-1]
    assert "none of them an op's" in last
    assert "--tflgpu-require-ops: no case ran of RELU, NEG" in last
    coverage: Any = json.loads(report.read_text())["backends"]["cpu_ref"]["coverage"]
    assert coverage["ops"]["ran"] == 0
    # Every case is counted once, whichever process judged it.
    cases = coverage["cases"]
    assert (cases["ran"], cases["of"]) == (5, 8)


@pytest.mark.parametrize("arguments", [(), ("--tflgpu-backend", "cpu_ref")], ids=str)
def test_without_hypothesis_it_says_what_to_install(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = _pytest(
        tmp_path, "--pyargs", "tflgpu.conformance", *arguments,
        hide="hypothesis",
    )  # fmt: skip
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = [n for n in (done.stdout + done.stderr).splitlines() if n.strip()]
    assert line.startswith("ERROR: ")
    assert "pip install 'tflgpu[conformance]'" in line


def test_other_sessions_do_not_notice_the_plugin(tmp_path: Path) -> None:
    """It is loaded wherever tflgpu is installed: without what the suite needs, and lightly."""
    (tmp_path / "test_users_own.py").write_text(
        "import sys\n\n\ndef test_it():\n"
        "    assert 'tflgpu.conformance.plugin' in sys.modules\n"
        "    heavy = ('numpy', 'tflgpu.plugins.registry', 'tflgpu.ir')\n"
        "    assert [n for n in heavy if n in sys.modules] == []\n",
        encoding="utf-8",
    )
    done = _pytest(
        tmp_path, "test_users_own.py", hide="hypothesis"
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_extra_is_there() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "\nconformance = [" in text


# Expectation files are strict: every line is well-formed, names a case, and stays true.


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


CASES: list[tuple[Any, bool, CheckFinding]] = [
    (lambda t: None, False, CheckFinding("passed")),
    (lambda t: None, True, CheckFinding("failed", "passes, but was expected to fail (never: why)")),
    (_fails, False, CheckFinding("failed", "the card is gone")),
    (_fails, True, CheckFinding("expected", "never: why")),
    (_defect, False, CheckFinding("failed", "KeyError: 'w'")),
    (lambda t: Unsupported("too big"), False, CheckFinding("refused", "too big")),
    (lambda t: Unsupported("too big"), True, CheckFinding("refused", "too big")),
    (lambda t: NotApplicable("no f16"), False, CheckFinding("inapplicable", "no f16")),
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
def test_verdicts(target: DeviceUnderTest, run: Any, known: bool, verdict: CheckFinding) -> None:
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
            report.add(check, CheckFinding(status, f"{op} says so" if status != "passed" else ""))
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


# The page of operators is what the definitions say, and a measured one what a report says.


PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


def test_the_page_is_up_to_date() -> None:
    hint = "run: python -m tflgpu.conformance.ops_table docs/ops.md"
    assert PAGE.read_text(encoding="utf-8") == defined_page(), hint


def test_an_op_without_kernels_is_listed_as_such() -> None:
    lines = defined_page([builtin_ops()["RANK"], builtin_ops()["RELU"]]).splitlines()
    assert lines[-1].startswith("| RELU | 1") and lines[-1].endswith("| full | full |  |")
    assert "| none | full | there is no GPU kernel for RANK |" in lines[-2]


@pytest.mark.parametrize("text", ["{", "[]", '{"ops": {}}'])
def test_a_file_that_is_no_report_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "support.json").write_text(text)
    with pytest.raises(SystemExit, match="2"):
        main(["--measured", str(tmp_path / "support.json")])
    assert "support.json is no report of the suite" in capsys.readouterr().err


def test_a_measured_page_has_a_column_a_backend() -> None:
    device = {"device": {"name": "a card", "driver": "1.2"}}
    report = {
        "backends": {"b": device, "a": device},
        "ops": {
            "ADD": {
                "a": {"support": "full", "reasons": []},
                "b": {"support": "partial", "reasons": ["x | y"]},
            }
        },
    }
    page = measured_page(report).splitlines()
    assert "| Operator | a | b | Reasons |" in page
    assert page[-1] == "| ADD | full | partial | x \\| y |"
