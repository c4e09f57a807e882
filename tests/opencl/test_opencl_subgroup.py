"""Shuffles of an OpenCL device: what its driver allows, and who is asked at all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.kernel import Kernel
from tflgpu.language.types import Scalar

cl = pytest.importorskip("pyopencl", reason="pip install tflgpu[opencl]")
from tflgpu_opencl.devices import widest_shuffle  # noqa: E402

CPU, GPU = cl.device_type.CPU, cl.device_type.GPU
SHUFFLE = "cl_khr_fp16 cl_khr_subgroups cl_khr_subgroup_shuffle"


def a_device(vendor: str, kind: int = GPU, extensions: str = "", **widths: int) -> Any:
    return SimpleNamespace(
        type=kind, vendor=vendor, extensions=extensions,
        platform=SimpleNamespace(name=vendor, vendor=vendor), **widths,
    )  # fmt: skip


@pytest.mark.parametrize(("device", "widest"), [
    (a_device("NVIDIA Corporation", warp_size_nv=32), 32),  # by an instruction
    (a_device("AMD", extensions=SHUFFLE, wavefront_width_amd=64), 32),
    (a_device("AMD", wavefront_width_amd=64), 0),
    (a_device("Intel(R) Corporation", extensions=SHUFFLE), 8),  # chooses a width for each kernel
    (a_device("Intel(R) Corporation", extensions="cl_khr_subgroup_shuffle_relative"), 0),
    (a_device("Intel(R) Corporation", CPU, SHUFFLE), 0),
    (a_device("AuthenticAMD", CPU), 0),
])  # fmt: skip
def test_what_a_driver_allows(device: Any, widest: int) -> None:
    assert widest_shuffle(device) == widest


def exchange(mask: int) -> Kernel:
    k = Builder("exchange", (64, 1, 1))
    src, dst = (k.buffer(n, Scalar.F32, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.global_id(0), "i")
    k.store(dst, i, k.subgroup_shuffle_xor(k.load(src, i), mask))
    return k.build()


def test_an_opened_device_exchanges_what_it_says(device: Any) -> None:
    from tflgpu.conformance.node_checks import run_kernel

    size = device.caps.subgroup_shuffle
    if device.caps.vendor == "nvidia":  # otherwise a wrong printer would look like no shuffles
        assert size == 32
    data = np.arange(512, dtype=np.float32)
    for mask in range(1, size):
        got = run_kernel(device, exchange(mask), (2, 1, 1), [data, np.zeros_like(data)])
        want = data.reshape(128, 4)[np.arange(128) ^ mask]
        np.testing.assert_array_equal(got[1].reshape(128, 4), want)
    if size < 32:
        with pytest.raises(KernelError, match=r"kernel exchange: a shuffle.*subgroup_shuffle"):
            device.source(exchange(max(1, size)))


def test_the_device_has_what_the_probe_finds(
    device: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tflgpu_opencl import device as module

    asked = []

    def probe(opened: Any, widest: int) -> int:
        asked.append(widest)
        assert "subgroup_xor_float4" in opened.source(exchange(8))
        return 4

    monkeypatch.setattr(module.devices, "widest_shuffle", lambda handle: 16)
    monkeypatch.setattr("tflgpu.backend_kit.subgroup_probe.probe_shuffle", probe)
    opened, again = (
        module.OpenCLDevice(device.info.index, cache=DiskCache(tmp_path / "found"))
        for _ in range(2)
    )
    try:
        assert asked == [16]  # once
        assert again.caps == opened.caps
        assert opened.caps.subgroup_shuffle == 4
        assert "subgroup_xor_float4" in opened.source(exchange(3))
        with pytest.raises(KernelError, match="a shuffle among 8 neighbours"):
            opened.source(exchange(4))
    finally:
        opened.close()
        again.close()


def test_a_driver_that_refuses_the_probe_s_kernels(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lists the extension and does not compile it; PoCL, here, does not know it."""
    if device.caps.vendor != "pocl" or "subgroup_shuffle" in device._handle.extensions:
        pytest.skip(f"{device.info.name} may know what it is asked for")
    from tflgpu_opencl import device as module

    monkeypatch.setattr(module.devices, "widest_shuffle", lambda handle: 32)
    opened = module.OpenCLDevice(device.info.index)
    assert opened.caps.subgroup_shuffle == 0
    opened.close()
