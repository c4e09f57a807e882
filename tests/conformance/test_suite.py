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


def _group(check: Check) -> str:
    """What belongs together: a level-2 group shares one load, so one test (and one worker of
    pytest-xdist) runs it; everything else is a group of its own."""
    level, *rest = check.id.split("/")
    if level != "2" or check.id.endswith("/facets"):
        return check.id
    op, *_, precision, tensors = rest  # between them the sample, and what was planted in it
    return f"2/{op}/{precision}/{tensors}"


def _worth_it(device: tuple[str, int], group: str) -> bool:
    """The whole suite is `pytest --pyargs tflgpu.conformance`; here some of level 2 is left out.

    Storage in f16 shows inside a partition, and a device without kernels has neither.
    """
    if group.endswith("/facets"):
        return device == ("cpu_ref", 0)  # no device is asked
    if not group.startswith("2/"):
        return True
    if device == ("cpu_ref", 0):
        return group.endswith("/f32/edge")
    if device[0] == "wgpu" and group.endswith("/f32_f16/internal"):
        return False  # what stores f16 shows in f16, and llvmpipe takes minutes for each precision
    return group.endswith(("/f32/edge", "/internal"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "checks" not in metafunc.fixturenames:
        return
    pairs: dict[str, tuple[tuple[str, int], list[Check]]] = {}
    for device in DEVICES:
        for check in Suite.of(registry(), device[0]).checks:
            group = _group(check)
            if _worth_it(device, group):
                name = f"{device[0]}:{device[1]}/{group}"
                pairs.setdefault(name, (device, []))[1].append(check)
    metafunc.parametrize(
        ("target", "checks"), pairs.values(), ids=pairs, indirect=["target"], scope="module"
    )


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


def test_conformance(checks: list[Check], target: Target, suites: dict[str, Suite]) -> None:
    verdicts = {c.id: suites[target.backend].judge(c, target) for c in checks}
    failed = {i: v.detail for i, v in verdicts.items() if v.status == "failed"}
    assert not failed, "\n".join(f"{i}: {detail}" for i, detail in failed.items())
    if all(v.status in ("refused", "inapplicable") for v in verdicts.values()):
        pytest.skip(next(iter(verdicts.values())).detail)
    if all(v.status == "expected" for v in verdicts.values()):
        pytest.xfail(next(iter(verdicts.values())).detail)
