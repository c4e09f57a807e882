"""What a run of the suite says of itself: how much it covered, what it lacks, what it demands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tflgpu.conformance.report import Report
from tflgpu.conformance.suite import CheckResult
from tflgpu.conformance.summary import summary
from tflgpu.conformance.target import Check
from tflgpu.contract.device import DeviceInfo

ROOT = Path(__file__).parents[2]


def _report(*verdicts: tuple[str, str, str, str]) -> Report:
    """Of checks given as (id, op, status, detail)."""
    found = Report(
        DeviceInfo("toy", 0, "Toy"), ops=frozenset(("RELU", "NEG", "ABS")),
        declared=frozenset(("RELU", "ABS")),
    )  # fmt: skip
    for name, op, status, detail in verdicts:
        found.add(Check(name, lambda target: None, op), CheckResult(status, detail))
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
    report = tmp_path / "support.json"
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
