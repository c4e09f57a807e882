"""The conformance suite on every backend that is here, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.conformance.check import Check
from tflgpu.conformance.suite import Suite
from tflgpu.conformance.target import Target
from tflgpu.plugins import registry

#: cpu_ref is there always; its two devices are nothing alike.
DEVICES = [("cpu_ref", 0), ("cpu_ref", 1)] + [
    (name, 0) for name in registry().backends if name != "cpu_ref"
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" not in metafunc.fixturenames:
        return
    pairs = [(d, c) for d in DEVICES for c in Suite.of(registry(), d[0]).checks]
    ids = [f"{d[0]}:{d[1]}/{c.id}" for d, c in pairs]
    metafunc.parametrize(("target", "check"), pairs, ids=ids, indirect=["target"], scope="module")


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    return {name: Suite.of(registry(), name) for name, _ in DEVICES}


@pytest.fixture(scope="module")
def target(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[Target]:
    backend, index = request.param
    require_backend(backend)
    opened = Target.open(registry(), backend, index)
    yield opened
    opened.close()


def test_conformance(check: Check, target: Target, suites: dict[str, Suite]) -> None:
    verdict = suites[target.backend].judge(check, target)
    if verdict.status in ("refused", "inapplicable"):
        pytest.skip(verdict.detail)
    if verdict.status == "expected":
        pytest.xfail(verdict.detail)
    assert verdict.status == "passed", verdict.detail
