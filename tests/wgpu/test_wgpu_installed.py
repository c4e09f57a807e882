"""A wgpu-py that lacks what a run needs of it is a reason, not a traceback."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tflgpu.plugins.registry import registry


def _installed(monkeypatch: pytest.MonkeyPatch, lib: Any, **inside: Any) -> None:
    import importlib

    found: dict[str, Any] = {
        "wgpu": SimpleNamespace(__version__="9.9"),
        "wgpu.backends.wgpu_native": SimpleNamespace(lib=lib, ffi=object()),
        "wgpu.backends.wgpu_native._api": SimpleNamespace(**inside),
        "wgpu.backends.wgpu_native._helpers": SimpleNamespace(),
    }

    def import_module(name: str) -> ModuleType:
        if name not in found:
            raise ImportError(f"no {name}")
        return found[name]

    monkeypatch.setattr(importlib, "import_module", import_module)


@pytest.mark.needs("wgpu")
def test_what_is_installed_here_lacks_nothing() -> None:
    from tflgpu_wgpu.installed import lacking

    assert lacking() == ""


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu_wgpu.installed import lacking

    _installed(monkeypatch, SimpleNamespace(wgpuQueueSubmit=1))
    reason = lacking()
    assert reason.startswith("wgpu 9.9 lacks libf, GPUShaderModule, _the_instance, ")
    assert "wgpuDevicePoll" in reason
    assert "wgpuQueueSubmit" not in reason
    assert "versions 0.31 to 0.32 were tried" in reason


def test_the_probe_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import tflgpu_wgpu.installed

    monkeypatch.setattr(tflgpu_wgpu.installed, "lacking", lambda: "wgpu 9.9 lacks libf")
    probe = registry().probe("wgpu", refresh=True)
    monkeypatch.undo()
    registry().probe("wgpu", refresh=True)
    assert not probe.available
    assert "wgpu 9.9 lacks libf" in probe.reason
