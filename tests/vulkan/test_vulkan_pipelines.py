"""Compiling: what is shared, what is kept on disk, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.conformance.plans import affine, biased, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.runtime.disk_cache import DiskCache
from tflgpu.runtime.protocols import InputRef, OutputRef, Plan


def two_bodies() -> Plan:
    """Four dispatches: two kernels, each of them made twice over, by names that differ."""
    kernels = [affine(8, 2), affine(8, 3), affine(8, 2, name="again"), affine(8, 3)]
    return plan(
        [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(4)],
    )


def check(device: Any) -> None:
    """Run `two_bodies`."""
    recording = device.load(two_bodies())
    recording.inputs[0][...] = np.arange(8)
    recording.run()
    for output, factor in zip(recording.outputs, (2, 3, 2, 3), strict=True):
        assert (output == np.arange(8) * factor + 1).all()


def test_equal_modules_are_made_once(open_device: Callable[..., Any]) -> None:
    device = open_device()
    check(device)
    assert device.compiled == 2
    check(device)
    assert device.compiled == 2


def test_the_driver_s_cache_is_kept_and_handed_back(
    open_device: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan.pipelines import Pipelines

    given: list[bytes] = []
    original = Pipelines._driver_cache
    monkeypatch.setattr(
        Pipelines, "_driver_cache", lambda self, c: (given.append(c), original(self, c))[1]
    )
    check(open_device())
    (file,) = (tmp_path / "cache").glob("*.bin")
    kept = DiskCache(tmp_path / "cache").load(file.stem)
    assert kept
    check(open_device())
    assert given[0] == b""
    assert kept in given[1:]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign", "not the driver's"])
def test_damaged_files_do_no_harm(
    open_device: Callable[..., Any], tmp_path: Path, damage: str
) -> None:
    check(open_device())
    (file,) = (tmp_path / "cache").glob("*.bin")
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    if damage == "not the driver's":
        DiskCache(tmp_path / "cache").store(file.stem, b"once was a cache" * 40)
    else:
        file.write_bytes(
            {
                "truncated": good[:-7],
                "flipped": bytes(flipped),
                "empty": b"",
                "foreign": b"not ours at all" * 20,
            }[damage]
        )
    check(open_device())
    assert DiskCache(tmp_path / "cache").load(file.stem)


def test_a_cache_that_cannot_be_written(open_device: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    check(open_device(cache=DiskCache(tmp_path / "file" / "cache")))


def test_the_folder_is_the_environment_s(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_backend("vulkan")
    from tflgpu_vulkan.device import VulkanDevice

    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "mine"))
    device = VulkanDevice(0)
    check(device)
    device.close()
    assert len(list((tmp_path / "mine" / "vulkan").glob("*.bin"))) == 1


def test_a_refusal_has_the_assembly(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan import pipelines
    from tflgpu_vulkan.api import lib, vk

    class Refusing:
        """The library, with a driver that compiles nothing."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        vkCreateComputePipelines = staticmethod(  # noqa: N815
            lambda *args: vk.VK_ERROR_INVALID_SHADER_NV
        )

    device = open_device()
    monkeypatch.setattr(pipelines, "lib", Refusing())
    with pytest.raises(CompileError) as caught:
        device.load(biased(8))
    message = str(caught.value)
    assert "refused kernel add: VK_ERROR_INVALID_SHADER_NV" in message
    assert "OpEntryPoint" in message.split("--- source\n")[1]
    monkeypatch.undo()
    check(device)


def test_source_is_what_is_compiled(open_device: Callable[..., Any]) -> None:
    text = open_device().source(affine(8))
    assert "OpEntryPoint GLCompute %affine" in text
    assert "LocalSize 32 1 1" in text
