"""Compiling: what is shared, what is kept on disk, and what a refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.compiler.plan import InputRef, OutputRef, Plan
from tflgpu.conformance.plans import add, affine, biased, dispatch, io, plan
from tflgpu.errors import CompileError, DeviceError

from tests.api_devices import runs_two_bodies


def two_bodies() -> Plan:
    """Four dispatches: two kernels, each of them made twice over, by names that differ."""
    kernels = [affine(8, 2), affine(8, 3), affine(8, 2, name="again"), affine(8, 3)]
    return plan(
        [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(4)],
    )


def check(device: Any) -> None:
    runs_two_bodies(device, two_bodies())


def test_equal_modules_are_made_once(open_device: Callable[..., Any]) -> None:
    device = open_device()
    check(device)
    assert device.compiled == 2
    check(device)
    assert device.compiled == 2


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_a_gpu_compiles_ahead(open_device: Callable[..., Any], is_asked_for: bool) -> None:
    device, asked = open_device(), two_bodies()
    kernel = asked.dispatches[0].kernel
    device.begin(kernel)
    assert device.compiled == 0  # a processor does not
    device.caps = attrs.evolve(device.caps, is_gpu=True)
    for _ in range(2):
        device.begin(kernel)
    if is_asked_for:
        check(device)
        assert device.compiled == 2
    device.close()
    assert device.compiled == 1 + is_asked_for


def test_kept_modules_make_a_layout_once(
    open_device: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not printed, so that threads that make pipelines are the first to ask for it."""
    from tflgpu_vulkan import pipelines

    kernels = [add(count) for count in (5, 6, 7, 8)]
    printer = open_device()
    codes = [printer.code_of(kernel) for kernel in kernels]
    create, made = pipelines.create, []

    def slowly(function: Any, kind: str, *rest: Any) -> Any:
        made.append(kind)
        time.sleep(0.02)
        return create(function, kind, *rest)

    device = open_device()
    monkeypatch.setattr(pipelines, "create", slowly)
    for kernel, code in zip(kernels, codes, strict=True):
        device.use_code(kernel, code)
    places = [InputRef(0), InputRef(0)]
    device.load(
        plan(
            [dispatch(k, 8, [*places, OutputRef(i)]) for i, k in enumerate(kernels)],
            [io("x", (8,))],
            [io(f"y{i}", (8,)) for i in range(4)],
        )
    )
    assert made.count("VkDescriptorSetLayout") == 1


def test_the_driver_s_cache_is_kept_and_handed_back(
    open_device: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_vulkan.pipeline_cache import PipelineCache

    given: list[bytes] = []
    original = PipelineCache._new
    monkeypatch.setattr(
        PipelineCache, "_new", lambda self, c: (given.append(c), original(self, c))[1]
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


@pytest.mark.needs("vulkan")
def test_the_folder_is_the_environment_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


class TestFaults:
    """What is on disk has the right digest here; the driver is what it does not suit."""

    @pytest.fixture
    def kept(self, open_device: Callable[..., Any], tmp_path: Path) -> tuple[DiskCache, str, bytes]:
        """The cache, the only key in it, and the driver's data."""
        check(open_device())
        cache = DiskCache(tmp_path / "cache")
        (file,) = (tmp_path / "cache").glob("*.bin")
        content = cache.load(file.stem)
        assert content
        return cache, file.stem, content

    @pytest.fixture
    def given(self, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
        """What drivers are handed from now on."""
        from tflgpu_vulkan.pipeline_cache import PipelineCache

        found: list[bytes] = []
        original = PipelineCache._new
        monkeypatch.setattr(
            PipelineCache, "_new", lambda self, c: (found.append(c), original(self, c))[1]
        )
        return found

    @pytest.mark.parametrize("at", [0, 4, 8, 12, 16, 31])
    def test_the_header_of_another_device_or_driver(
        self, open_device: Callable[..., Any], kept: Any, given: list[bytes], at: int
    ) -> None:
        cache, key, content = kept
        other = bytearray(content)
        other[at] ^= 0x80
        cache.store(key, bytes(other))
        check(open_device())
        assert bytes(other) not in given
        # NVIDIA's driver does not write the same bytes each time.
        assert cache.load(key)[:32] == content[:32]

    @pytest.mark.parametrize("length", [0, 1, 16, 31])
    def test_data_without_a_header(
        self, open_device: Callable[..., Any], kept: Any, given: list[bytes], length: int
    ) -> None:
        cache, key, content = kept
        cache.store(key, content[:length])
        check(open_device())
        assert content[:length] not in [g for g in given if g]
        assert cache.load(key) == content

    def test_another_key_s_file(
        self, open_device: Callable[..., Any], kept: Any, given: list[bytes]
    ) -> None:
        cache, key, content = kept
        cache.store("another", content + b"of another driver version")
        cache.path("another").replace(cache.path(key))
        check(open_device())
        assert content + b"of another driver version" not in given

    @pytest.mark.parametrize("when", ["opening", "compiling"])
    def test_a_driver_that_dies_of_it(
        self, kept: Any, open_device: Callable[..., Any], given: list[bytes], when: str
    ) -> None:
        """One process dies, in the driver's function; the next does not hand it over again."""
        cache, key, content = kept
        name = {"opening": "vkCreatePipelineCache", "compiling": "vkCreateComputePipelines"}[when]
        code = f"""
            import os
            from pathlib import Path
            from tflgpu.conformance.plans import affine, dispatch, io, plan
            from tflgpu.cache.disk_cache import DiskCache
            from tflgpu.compiler.plan import InputRef, OutputRef
            from tflgpu_vulkan import pipeline_cache, pipelines
            from tflgpu_vulkan.device import VulkanDevice
            real = pipelines.lib
            class Dying:
                def __getattr__(self, name):
                    return getattr(real, name)
                def {name}(self, *arguments):
                    os.abort()
            pipelines.lib = pipeline_cache.lib = Dying()
            device = VulkanDevice(0, cache=DiskCache(Path({str(cache.path(key).parent)!r})))
            device.load(plan([dispatch(affine(8), 8, [InputRef(0), OutputRef(0)])],
                             [io("x", (8,))], [io("y", (8,))]))
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=environment, check=False
        )
        assert done.returncode < 0
        for mark in cache.path(key).parent.glob("marks/*.mark"):
            os.utime(mark, (1e9, 1e9))  # it died a while ago
        check(open_device())
        assert content not in given[:1]
        assert cache.load(key) == content
        check(open_device())
        assert content in given

    def test_a_driver_that_cannot_read_its_own(
        self, open_device: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tflgpu_vulkan.pipeline_cache import PipelineCache

        original = PipelineCache._new

        def refusing(self: Any, content: bytes) -> Any:
            if content:
                raise DeviceError("no")
            return original(self, content)

        monkeypatch.setattr(PipelineCache, "_new", refusing)
        check(open_device())
        assert not list((tmp_path / "cache").glob("*.bin"))

    def test_processes_that_start_together(
        self, open_device: Callable[..., Any], tmp_path: Path
    ) -> None:
        """All of them write the one file, which is whole at every moment."""
        folder = tmp_path / "cache"
        code = f"""
            from pathlib import Path
            from tflgpu.conformance.plans import affine, dispatch, io, plan
            from tflgpu.cache.disk_cache import DiskCache
            from tflgpu.compiler.plan import InputRef, OutputRef
            from tflgpu_vulkan.device import VulkanDevice
            device = VulkanDevice(0, cache=DiskCache(Path({str(folder)!r})))
            for factor in range(2, 6):
                device.load(plan([dispatch(affine(8, factor), 8, [InputRef(0), OutputRef(0)])],
                                 [io("x", (8,))], [io("y", (8,))]))
            device.close()
        """
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        arguments = [sys.executable, "-c", textwrap.dedent(code)]
        processes = [
            subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        for process in processes:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0
            assert "tflgpu" not in err  # no warning of an entry that was damaged
        check(open_device())
        (file,) = folder.glob("*.bin")
        assert DiskCache(folder).load(file.stem)
        assert not list(folder.glob("*.tmp"))
        assert not list((folder / "marks").iterdir())
