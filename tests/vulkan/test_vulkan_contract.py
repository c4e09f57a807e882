"""Level 0 of the conformance suite in the ways of moving data that no option asks for. How the
device moves it by itself is tested with all backends (`tests/conformance/test_suite.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tflgpu.conformance.check import Check, NotApplicable
from tflgpu.conformance.contract import device_checks
from tflgpu.conformance.target import Target
from tflgpu.plugins import registry

WAYS: dict[str, dict[str, bool]] = {"copied": {"share_memory": False}}


@pytest.fixture(scope="module", params=WAYS)
def target(
    request: pytest.FixtureRequest,
    require_backend: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Target]:
    require_backend("vulkan")
    from tflgpu.runtime.disk_cache import DiskCache
    from tflgpu_vulkan.device import VulkanDevice

    cache = DiskCache(tmp_path_factory.mktemp("cache"))

    def opener() -> VulkanDevice:
        return VulkanDevice(0, cache=cache, **WAYS[request.param])

    opened = Target(registry(), "vulkan", 0, opener(), opener=opener)
    yield opened
    opened.close()


@pytest.mark.parametrize("check", device_checks(), ids=lambda check: check.id)
def test_contract(check: Check, target: Target) -> None:
    outcome = check.run(target)
    if isinstance(outcome, NotApplicable):
        pytest.skip(outcome.reason)
    assert outcome is None
