"""What a start takes of a Vulkan device: what was found out or compiled once is not again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tflgpu.cache.disk_cache import DiskCache

from tests.running import raising
from tests.vulkan.test_vulkan_pipelines import two_bodies

PROBE = "tflgpu.backend_kit.subgroup_probe.probe_shuffle"


def test_what_the_probe_finds_is_kept(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def probe(device: Any, widest: int) -> int:
        asked.append(widest)
        return answer

    monkeypatch.setattr(PROBE, probe)
    cache = DiskCache(tmp_path / "answers")
    answer = 0
    if open_device(cache=cache)._context.details.target.subgroup_shuffle or not asked:
        pytest.skip("this driver shuffles nothing")
    answer = 2  # 0 may be for lack of memory, and is asked for again
    assert [open_device(cache=cache).caps.subgroup_shuffle for _ in range(3)] == [2, 2, 2]
    assert len(asked) == 2
    (file,) = (tmp_path / "answers").glob("*.found")
    file.write_bytes(b"damaged")
    assert open_device(cache=cache).caps.subgroup_shuffle == 2
    assert len(asked) == 3


def test_another_driver_is_asked_again(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tflgpu_vulkan.device import VulkanDevice

    cache = DiskCache(tmp_path / "answers")
    if not open_device(cache=cache).caps.subgroup_shuffle:
        pytest.skip("this device shuffles nothing")
    monkeypatch.setattr(PROBE, raising(AssertionError("asked")))
    open_device(cache=cache)
    monkeypatch.setattr(VulkanDevice, "_fingerprint", lambda device: "a later driver")
    with pytest.raises(AssertionError, match="asked"):
        open_device(cache=cache)


def test_threads_find_every_type_made(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cffi ends the process where two threads are the first to ask for a type. (A printer's device
    is another one, so that this one's threads are the first to make pipelines.)"""
    from tflgpu_vulkan import api, pipelines

    plan = two_bodies()
    kernels = {d.kernel for d in plan.dispatches}
    printer = open_device()
    codes = [(kernel, printer.code_of(kernel)) for kernel in kernels]
    used: set[str] = set()

    class Seen:
        """Notes the names that are asked for."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            found = getattr(self._inner, name)
            if name not in {"new", "typeof"}:
                used.add(name)
                return found

            def noted(kind: Any, *rest: Any) -> Any:
                used.update([kind] if isinstance(kind, str) else [])
                return found(kind, *rest)

            return noted

    for module in (api, pipelines):
        monkeypatch.setattr(module, "ffi", Seen(api.ffi))
        monkeypatch.setattr(module, "lib", Seen(pipelines.lib))
    monkeypatch.setattr(PROBE, lambda device, widest: 0)
    device = open_device()
    at_first = set(used)
    used.clear()
    device._kernels.get((k, 0) for k in kernels if device.use_code(k, dict(codes)[k]) is None)
    assert "VkComputePipelineCreateInfo*" in used
    assert used - at_first <= {"memmove"}
