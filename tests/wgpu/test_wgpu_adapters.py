"""Finding adapters: any mix of APIs, a library that fails, and no wgpu at all."""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

wgpu = pytest.importorskip("wgpu", reason='pip install "tflgpu[wgpu]"')
# Puts another object in place of ``wgpu.gpu`` when it is imported, so before that is patched.
with contextlib.suppress(Exception):
    importlib.import_module("wgpu.backends.wgpu_native")
from tflgpu_wgpu import adapters  # noqa: E402

from tests.running import raising  # noqa: E402

NVIDIA, AMD, MESA = 0x10DE, 0x1002, 0x10005


def an_adapter(name: str, kind: str, api: str, vendor: int = NVIDIA, device: int = 1) -> Any:
    info = {
        "device": name, "adapter_type": kind, "backend_type": api, "vendor_id": vendor,
        "device_id": device, "description": "1.2",
    }  # fmt: skip
    return SimpleNamespace(info=info)


def show(monkeypatch: pytest.MonkeyPatch, *found: Any) -> None:
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: list(found))


def test_gpus_come_first_and_opengl_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    show(
        monkeypatch,
        an_adapter("soft", "CPU", "Vulkan", MESA),
        an_adapter("soft", "CPU", "OpenGL", MESA),
        an_adapter("small", "IntegratedGPU", "Vulkan", AMD),
        an_adapter("big", "DiscreteGPU", "Vulkan"),
    )
    probe = adapters.find_adapters().probe()
    assert probe.available
    assert [(d.index, d.name, d.vendor, d.is_gpu) for d in probe.devices] == [
        (0, "big", "nvidia", True),
        (1, "small", "amd", True),
        (2, "soft", "mesa", False),
    ]
    assert probe.devices[0].driver == "Vulkan 1.2"


def test_a_vendor_without_a_number_is_known_by_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    show(
        monkeypatch,
        an_adapter("Apple M2", "IntegratedGPU", "Metal", vendor=0),
        an_adapter("Some GPU", "IntegratedGPU", "Metal", vendor=0, device=2),
    )
    assert [d.vendor for d in adapters.find_adapters().probe().devices] == ["apple", ""]


def test_a_gpu_of_two_apis_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    show(
        monkeypatch,
        an_adapter("card", "DiscreteGPU", "D3D12"),
        an_adapter("card", "DiscreteGPU", "Vulkan"),
        an_adapter("other", "DiscreteGPU", "D3D12", AMD),
    )
    assert [d.driver for d in adapters.find_adapters().probe().devices] == [
        "Vulkan 1.2",
        "D3D12 1.2",
    ]


def test_two_gpus_of_a_kind_are_listed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, *(an_adapter("card", "DiscreteGPU", "Vulkan") for _ in range(2)))
    assert [d.index for d in adapters.find_adapters().probe().devices] == [0, 1]


def test_no_adapter_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, an_adapter("soft", "CPU", "OpenGL", MESA))
    probe = adapters.find_adapters().probe()
    assert not probe.available
    assert probe.reason == "no Vulkan, Metal or Direct3D 12 driver was found"


def test_a_library_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wgpu.gpu, "enumerate_adapters_sync", raising(RuntimeError("the instance is broken"))
    )
    probe = adapters.find_adapters().probe()
    assert not probe.available
    assert "the instance is broken" in probe.reason


def test_without_wgpu_the_reason_has_the_command() -> None:
    script = (
        "import sys; sys.modules['wgpu'] = None\n"
        "from tflgpu.plugins.registry import registry\n"
        "assert not [f for f in registry().failures if f.name == 'wgpu']\n"
        "print(registry().probe('wgpu').reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith('run: pip install "tflgpu[wgpu]"')
