"""Which of Vulkan's devices an adapter is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("wgpu", reason='needs pip install "tflgpu[wgpu]"')

from tflgpu_wgpu.adapters import find_adapters
from tflgpu_wgpu.identity import VulkanDevice, uuids_of

from tests.running import raising

H200, H100, SOFT = (0x10DE, 0x2335, "H200"), (0x10DE, 0x2330, "H100"), (0x10005, 0, "llvmpipe")


def adapter(kind: tuple[int, int, str], api: str = "Vulkan") -> dict[str, Any]:
    return {"vendor_id": kind[0], "device_id": kind[1], "device": kind[2], "backend_type": api}


def devices(*kinds: tuple[int, int, str]) -> list[VulkanDevice]:
    """Vulkan's list: UUIDs are their places."""
    return [VulkanDevice(kind, str(at)) for at, kind in enumerate(kinds)]


def test_by_pci_numbers_and_equal_ones_by_their_order() -> None:
    listed = devices(SOFT, H200, H100, H200)
    found = uuids_of([adapter(k) for k in (H200, H100, H200, SOFT)], lambda: listed)
    assert found == ["1", "2", "3", "0"]


def test_what_cannot_be_told() -> None:
    listed = devices(H200, H200, H100)
    assert uuids_of([adapter(H200), adapter(H100)], lambda: listed) == [None, "2"]
    assert uuids_of([adapter(SOFT)], lambda: listed) == [None]
    assert uuids_of([adapter(H100, "D3D12")], lambda: listed) == [None]


def test_without_vulkan() -> None:
    assert uuids_of([adapter(H200)], raising(OSError)) == [None]


def test_the_adapters_that_are_here() -> None:
    """They are those of the Vulkan backend, by name and UUID."""
    pytest.importorskip("vulkan", reason='needs pip install "tflgpu[vulkan]"')
    from tflgpu_vulkan.devices import probe

    found = {(f.info.name, f.info.uuid) for f in find_adapters().found if f.info.uuid}
    there = {(info.name, info.uuid) for info in probe().devices}
    if not there:
        pytest.skip("Vulkan has no device")
    assert found
    assert found <= there
