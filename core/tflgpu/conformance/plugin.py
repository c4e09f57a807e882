"""Options of ``pytest --pyargs tflgpu.conformance``; loaded by pytest wherever tflgpu is installed.

Imports nothing heavy: every pytest session loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tflgpu.conformance.requirements import missing_package

if TYPE_CHECKING:
    from tflgpu.conformance.report import Report

_REPORT: pytest.StashKey[Report] = pytest.StashKey()
#: What the processes of pytest-xdist (``-n``) found, each of its share of the checks.
_MESSAGES: pytest.StashKey[list[dict[str, Any]]] = pytest.StashKey()
_MESSAGE = "tflgpu_report"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("tflgpu", "conformance of a tflgpu backend")
    group.addoption("--tflgpu-backend", metavar="NAME", help="backend to test")
    group.addoption("--tflgpu-device", metavar="N", type=int, default=0, help="its device (0)")
    group.addoption(
        "--tflgpu-level",
        metavar="L",
        type=int,
        action="append",
        default=[],
        help="level to run: 0 device, 1 nodes, 2 ops, 3 generated, 4 graphs, 5 guards; may be "
        "given several times; all by default",
    )
    group.addoption(
        "--tflgpu-examples",
        metavar="N",
        type=int,
        help="random cases an op in level 3; by default a few that are always the same",
    )
    group.addoption(
        "--tflgpu-require-ops",
        metavar="N|NAMES",
        default="",
        help="fail unless the device ran cases of so many ops, or of these (RELU,CONV_2D)",
    )
    group.addoption("--tflgpu-report", metavar="FILE", help="write what is supported as JSON")


def keep_report(config: pytest.Config, report: Report) -> None:
    """Show a report at the end of the session."""
    config.stash[_REPORT] = report


def pytest_configure(config: pytest.Config) -> None:
    """Where the suite is asked for by its name, say in a sentence what it lacks."""
    if any(str(arg).startswith("tflgpu.conformance") for arg in config.args):
        missing = missing_package(config.getoption("--tflgpu-level"))
        if missing:
            raise pytest.UsageError(missing)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object | None) -> None:
    """A process of pytest-xdist is done: take over what it found."""
    message = getattr(node, "workeroutput", {}).get(_MESSAGE)
    if message is not None:
        node.config.stash.setdefault(_MESSAGES, []).append(message)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report. A run that covers less than was demanded has failed."""
    config = session.config
    messages = config.stash.get(_MESSAGES, None)
    if messages:
        from tflgpu.conformance.report import Report

        keep_report(config, Report.of_messages(messages))
    report = config.stash.get(_REPORT, None)
    if report is None:
        return
    if hasattr(config, "workeroutput"):  # one process of several, which has only a share
        config.workeroutput[_MESSAGE] = report.as_message()
        return
    path = config.getoption("--tflgpu-report")
    if path:
        report.write(Path(path))
    if _lacking(report, config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Say how much was covered, and why not more: last of all, below what pytest lists."""
    yield
    report = config.stash.get(_REPORT, None)
    if report is None:
        return
    from tflgpu.conformance.summary import summary

    device = report.device
    terminalreporter.section(f"{device.backend} device {device.index}: {device.name}")
    for line, matters in summary(report):
        terminalreporter.write_line(line, yellow=matters, bold=matters)
    lacking = _lacking(report, config)
    if lacking:
        terminalreporter.write_line(f"FAILED --tflgpu-require-ops: {lacking}", red=True, bold=True)


def _lacking(report: Report, config: pytest.Config) -> str:
    """What --tflgpu-require-ops demands and was not run, "" where nothing is."""
    wanted = config.getoption("--tflgpu-require-ops")
    if not wanted:
        return ""
    if wanted.isdigit():
        there = len(report.ran)
        return f"{there} ops ran, {wanted} are demanded" if there < int(wanted) else ""
    names = [name for name in wanted.split(",") if name not in report.ran]
    return f"no case ran of {', '.join(names)}" if names else ""
