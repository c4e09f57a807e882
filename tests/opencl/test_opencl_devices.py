"""Finding devices: any mix of platforms, broken ones among them; and no pyopencl at all."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

cl = pytest.importorskip("pyopencl", reason='pip install "tflgpu[opencl]"')
from tflgpu_opencl import devices  # noqa: E402
from tflgpu_opencl.native import native  # noqa: E402

from tests.running import raising  # noqa: E402

CPU, GPU = cl.device_type.CPU, cl.device_type.GPU


class Platform:
    """A platform that has the given devices, or fails to list them."""

    def __init__(self, name: str, *found: Any, vendor: str = "", fails: bool = False) -> None:
        self.name, self.vendor = name, vendor
        self._found, self._fails = found, fails
        for device in found:
            device.platform = self

    def get_devices(self) -> list[Any]:
        if self._fails:
            raise cl.LogicError("clGetDeviceIDs failed: DEVICE_NOT_FOUND")
        return list(self._found)


def a_device(name: str, kind: int, vendor: str = "", unified: bool = False) -> Any:
    return SimpleNamespace(
        name=name, type=kind, vendor=vendor, driver_version="1.2", host_unified_memory=unified
    )


def show(monkeypatch: pytest.MonkeyPatch, *platforms: Platform) -> None:
    monkeypatch.setattr(cl, "get_platforms", lambda: list(platforms))


def test_gpus_come_first_and_own_memory_before_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Platform("Portable Computing Language", a_device("cpu", CPU, "GenuineIntel", True))
    intel = Platform("Intel(R) OpenCL", a_device("arc", GPU, "Intel(R) Corporation", True))
    nvidia = Platform(
        "NVIDIA CUDA",
        a_device("h2", GPU, "NVIDIA Corporation"),
        a_device("h1", GPU, "NVIDIA Corporation"),
    )
    for order in ((cpu, intel, nvidia), (nvidia, cpu, intel)):
        show(monkeypatch, *order)
        probe = devices.find_devices().probe()
        assert probe.available
        assert [(d.index, d.name, d.vendor, d.is_gpu) for d in probe.devices] == [
            (0, "h1", "nvidia", True),
            (1, "h2", "nvidia", True),
            (2, "arc", "intel", True),
            (3, "cpu", "pocl", False),
        ]
        assert probe.devices[0].driver == "NVIDIA CUDA 1.2"


@pytest.mark.parametrize(
    ("platform", "vendor", "expected"),
    [
        ("NVIDIA CUDA", "NVIDIA Corporation", "nvidia"),
        ("AMD Accelerated Parallel Processing", "Advanced Micro Devices, Inc.", "amd"),
        ("rusticl", "AMD", "amd"),
        ("rusticl", "Intel", "intel"),
        ("Intel(R) OpenCL Graphics", "Intel(R) Corporation", "intel"),
        ("ARM Platform", "ARM", "arm"),
        ("QUALCOMM Snapdragon(TM)", "QUALCOMM", "qualcomm"),
        ("Apple", "Apple", "apple"),
        ("rusticl", "Mesa", "mesa"),
        ("Portable Computing Language", "AuthenticAMD", "pocl"),
        ("Portable Computing Language", "NVIDIA Corporation", "pocl"),
        ("Charmed", "Pharma Inc", ""),
    ],
)
def test_vendors(
    monkeypatch: pytest.MonkeyPatch, platform: str, vendor: str, expected: str
) -> None:
    show(monkeypatch, Platform(platform, a_device("d", GPU, vendor)))
    assert devices.find_devices().probe().devices[0].vendor == expected


def test_a_broken_platform_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Platform("Broken", fails=True)
    show(monkeypatch, broken, Platform("Good", a_device("d", GPU)))
    assert [d.name for d in devices.find_devices().probe().devices] == ["d"]
    show(monkeypatch, broken, Platform("Empty"))
    probe = devices.find_devices().probe()
    assert not probe.available
    assert "Broken: clGetDeviceIDs failed" in probe.reason
    assert "Empty: it has no devices" in probe.reason


def test_no_platform_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cl,
        "get_platforms",
        raising(cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")),
    )
    probe = devices.find_devices().probe()
    assert not probe.available
    assert "PLATFORM_NOT_FOUND_KHR" in probe.reason


def test_without_pyopencl_the_reason_has_the_command() -> None:
    script = (
        "import sys; sys.modules['pyopencl'] = None\n"
        "from tflgpu.plugins.registry import registry\n"
        "assert not [f for f in registry().failures if f.name == 'opencl']\n"
        "print(registry().probe('opencl').reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith('run: pip install "tflgpu[opencl]"')


def test_uuids_where_the_driver_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = bytes(range(1, 17))
    plain, told, zero, fails = (a_device(name, GPU) for name in ("a", "b", "c", "d"))
    for device, found in ((told, raw), (zero, bytes(16)), (fails, None)):
        device.extensions, device.found = "cl_khr_fp16 cl_khr_device_uuid", found

    def device_info(handle: Any, what: int, nbytes: int) -> bytes:
        assert (what, nbytes) == (0x106A, 16)
        if handle.found is None:
            raise cl.RuntimeError("clGetDeviceInfo failed: INVALID_VALUE")
        return bytes(handle.found)

    monkeypatch.setattr(devices, "native", lambda: SimpleNamespace(device_info=device_info))
    show(monkeypatch, Platform("NVIDIA CUDA", plain, told, zero, fails))
    uuids = [d.uuid for d in devices.find_devices().probe().devices]
    assert uuids == [None, "01020304-0506-0708-090a-0b0c0d0e0f10", None, None]


def test_a_driver_is_asked_for_what_pyopencl_does_not_know() -> None:
    for found in devices.find_devices().found:
        raw = native().device_info(found.handle, int(cl.device_info.VENDOR_ID), 4)
        assert int.from_bytes(raw, sys.byteorder) == found.handle.vendor_id
        with pytest.raises(cl.RuntimeError, match="clGetDeviceInfo"):
            native().device_info(found.handle, 0x7FFF, 16)
