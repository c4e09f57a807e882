"""Options of ``pytest --pyargs tflgpu.conformance``; loaded by pytest wherever tflgpu is installed.

Imports nothing heavy: it is there in every pytest session, whatever that is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tflgpu.conformance.report import Report

_REPORT: pytest.StashKey[Report] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("tflgpu", "conformance of a tflgpu backend")
    group.addoption("--tflgpu-backend", metavar="NAME", help="backend to test")
    group.addoption("--tflgpu-device", metavar="N", type=int, default=0, help="its device (0)")
    group.addoption(
        "--tflgpu-level", metavar="L", type=int, action="append", default=[],
        help="level to run: 0 device, 1 nodes, 2 ops, 3 generated, 4 graphs, 5 guards; may be "
        "given several times; all by default",
    )  # fmt: skip
    group.addoption(
        "--tflgpu-examples",
        metavar="N",
        type=int,
        help="random cases an op in level 3; by default a few that are always the same",
    )
    group.addoption("--tflgpu-report", metavar="FILE", help="write what is supported as JSON")


def keep_report(config: pytest.Config, report: Report) -> None:
    """Show a report at the end of the session."""
    config.stash[_REPORT] = report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many cases were refused, and why."""
    report = config.stash.get(_REPORT, None)
    if report is None:
        return
    device = report.device
    terminalreporter.section(f"{device.backend} device {device.index}: {device.name}")
    counts = ", ".join(f"{n} {status}" for status, n in sorted(report.counts.items()))
    terminalreporter.line(counts or "nothing ran")
    if report.tolerance_scale != 1:
        terminalreporter.line(f"tolerances were widened by {report.tolerance_scale:g}")
    for reason, count in report.refusals.most_common():
        terminalreporter.line(f"refused {count}: {reason}")
