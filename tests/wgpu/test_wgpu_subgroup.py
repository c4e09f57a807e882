"""Shuffles of an opened WebGPU device: as many neighbours as its adapter allows and the probe
finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar

NVIDIA, AMD, INTEL, APPLE, MESA = 0x10DE, 0x1002, 0x8086, 0x106B, 0x10005


def exchange(mask: int) -> Kernel:
    k = Builder("exchange", (32, 1, 1))
    dst = k.buffer("dst", Scalar.I32, 1, "write")
    k.store(dst, k.global_id(0), k.subgroup_shuffle_xor(k.local_id(0), mask))
    return k.build()


@pytest.mark.parametrize(("vendor", "least", "widest"), [
    (NVIDIA, {}, 32), (APPLE, {"subgroup_min_size": 4}, 32), (MESA, {"subgroup_min_size": 4}, 32),
    (INTEL, {"subgroup_min_size": 8}, 8), (AMD, {"stackgroup_min_size": 32}, 32),
    (AMD, {"subgroup_min_size": 64}, 32), (INTEL, {}, 0),
])  # fmt: skip
def test_what_an_adapter_allows(
    require_backend: Callable[[str], Any], vendor: int, least: dict[str, int], widest: int
) -> None:
    require_backend("wgpu")
    from tflgpu_wgpu.adapters import widest_shuffle

    info = {"vendor_id": vendor, **least}
    assert widest_shuffle(info, {"subgroup", "shader-f16"}) == widest
    assert widest_shuffle(info, {"shader-f16"}) == 0


def test_the_probe_finds_what_is_known(device: Any) -> None:
    """A printer that is wrong would only look like a device without shuffles."""
    if device.caps.vendor not in ("mesa", "nvidia"):
        pytest.skip(f"{device.info.name}: it is not known in which order it fills subgroups")
    assert device.caps.subgroup_shuffle >= (32 if device.caps.vendor == "nvidia" else 4)


def test_more_than_it_has_is_refused(device: Any) -> None:
    size = device.caps.subgroup_shuffle
    if size > 1:
        assert "subgroupShuffleXor" in device.source(exchange(size // 2))
    if size == 32:
        pytest.skip(f"{device.info.name} has as many as the language")
    with pytest.raises(KernelError, match=r"kernel exchange: a shuffle.*caps\.subgroup_shuffle"):
        device.source(exchange(max(1, size)))


def test_what_the_probe_does_not_find_the_device_has_not(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr("tflgpu.backend_kit.subgroup_probe.probe_shuffle", lambda device, widest: 0)
    opened = open_device()
    assert opened.caps.subgroup_shuffle == 0
    with pytest.raises(KernelError, match="a shuffle, which this device does not have"):
        opened.source(exchange(1))


def test_the_probe_s_kernels_are_not_counted(device: Any) -> None:
    assert device.compiled == 0


def test_a_dialect_of_the_caller_s_is_not_probed(open_device: Callable[..., Any]) -> None:
    from tflgpu_wgpu.dialect import WgslDialect

    assert open_device(dialect=WgslDialect()).caps.subgroup_shuffle == 0
