"""Level 0 of the conformance suite in the ways of moving data that no option asks for. How the
devices move it by themselves is tested with all backends (`test_suite.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.conformance.contract import device_checks
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable
from tflgpu.contract.device import Device
from tflgpu.plugins.registry import registry


def opencl(cache: Path, **options: bool) -> Device:
    from tflgpu_opencl.device import OpenCLDevice

    return OpenCLDevice(0, cache=DiskCache(cache), **options)


def vulkan(cache: Path, **options: bool) -> Device:
    from tflgpu_vulkan.device import VulkanDevice

    return VulkanDevice(0, cache=DiskCache(cache), **options)


WAYS: dict[str, tuple[Callable[..., Device], dict[str, bool]]] = {
    "opencl, copied": (opencl, {"share_memory": False}),
    "vulkan, copied": (vulkan, {"share_memory": False}),
}


@pytest.fixture(scope="module", params=WAYS)
def target(
    request: pytest.FixtureRequest,
    require_backend: Callable[[str], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[DeviceUnderTest]:
    opener, options = WAYS[request.param]
    require_backend(opener.__name__)
    cache = tmp_path_factory.mktemp("cache")
    opened = DeviceUnderTest(
        registry(), opener.__name__, 0, opener(cache, **options),
        opener=lambda: opener(cache, **options),
    )  # fmt: skip
    yield opened
    opened.close()


#: Runs of half a second until a signal comes, which no way of moving data makes shorter: of one
#: way each.
SIGNALS = {"0/submit/interrupted_run": "opencl", "0/submit/interrupted_wait": "vulkan"}


@pytest.mark.parametrize("check", device_checks(), ids=lambda check: check.id)
def test_contract(check: Check, target: DeviceUnderTest) -> None:
    if SIGNALS.get(check.id, target.backend) != target.backend:
        pytest.skip(f"asked of {SIGNALS[check.id]}")
    outcome = check.run(target)
    if isinstance(outcome, NotApplicable):
        pytest.skip(outcome.reason)
    assert outcome is None
