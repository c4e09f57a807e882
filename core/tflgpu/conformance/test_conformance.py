"""What ``pytest --pyargs tflgpu.conformance`` collects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tflgpu.conformance.plugin import keep_report
from tflgpu.conformance.report import Report
from tflgpu.conformance.requirements import missing_package
from tflgpu.conformance.suite import Suite
from tflgpu.conformance.target import LEVELS, Check, DeviceUnderTest
from tflgpu.errors import TflgpuError
from tflgpu.plugins.registry import registry

_SUITE: pytest.StashKey[Suite] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a check of the named backend; without a name, one a backend that says how."""
    _check_requirements(metafunc.config)
    backend = metafunc.config.getoption("--tflgpu-backend")
    if "listed" in metafunc.fixturenames:
        metafunc.parametrize("listed", [] if backend else list(registry().backends))
    if "check" in metafunc.fixturenames:
        checks = _checks(metafunc.config) if backend else []
        metafunc.parametrize("check", checks, ids=[c.id for c in checks])


def _suite(config: pytest.Config) -> Suite:
    """The named backend's, which is the same when tests are collected and when they run."""
    if _SUITE not in config.stash:
        config.stash[_SUITE] = Suite.of(registry(), config.getoption("--tflgpu-backend"))
    return config.stash[_SUITE]


def _checks(config: pytest.Config) -> list[Check]:
    levels = config.getoption("--tflgpu-level")
    unknown = [n for n in levels if not 0 <= n < len(LEVELS)]
    if unknown:
        raise pytest.UsageError(f"--tflgpu-level {unknown[0]}: 0 to {len(LEVELS) - 1}")
    try:
        return list(_suite(config).select(levels))
    except TflgpuError as error:
        raise pytest.UsageError(str(error)) from error


def _check_requirements(config: pytest.Config) -> None:
    """What the suite needs is not the backend's to bring."""
    missing = missing_package(config.getoption("--tflgpu-level"))
    if missing:
        raise pytest.UsageError(missing)


@pytest.fixture(scope="module")
def target(pytestconfig: pytest.Config) -> Iterator[DeviceUnderTest]:
    """The opened device. One that was asked for by name and cannot be opened ends the run."""
    backend = pytestconfig.getoption("--tflgpu-backend")
    index = pytestconfig.getoption("--tflgpu-device")
    examples = pytestconfig.getoption("--tflgpu-examples")
    try:
        opened = DeviceUnderTest.open(registry(), backend, index, examples=examples)
    except TflgpuError as error:
        pytest.exit(f"backend {backend}, device {index} cannot be tested: {error}", returncode=1)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def suite(pytestconfig: pytest.Config) -> Suite:
    """The checks with what is expected of them."""
    return _suite(pytestconfig)


@pytest.fixture(scope="module")
def report(pytestconfig: pytest.Config, target: DeviceUnderTest, suite: Suite) -> Report:
    """Verdicts, shown and written at the end of the session."""
    made = Report(target.device.info, target.tolerance_scale, suite.ops, declared=target.declared)
    keep_report(pytestconfig, made)
    return made


def test_conformance(check: Check, suite: Suite, target: DeviceUnderTest, report: Report) -> None:
    """A check passes, or is refused with a reason, or fails as its backend expects."""
    verdict = suite.judge(check, target)
    report.add(check, verdict)
    if verdict.status in ("refused", "inapplicable"):
        pytest.skip(verdict.detail)
    if verdict.status == "expected":
        pytest.xfail(verdict.detail)
    assert verdict.status == "passed", verdict.detail


def test_name_a_backend(listed: str) -> None:
    """Skipped for every backend, with what to do about it."""
    probe = registry().probe(listed)
    what = f"pass --tflgpu-backend {listed}" if probe.available else probe.reason
    pytest.skip(f"{listed}: {what}")
