"""Compiling: what is shared, what is kept on disk, and what a refusal says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.plans import affine, biased, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel


def two_bodies() -> Plan:
    """Four dispatches: two kernels of one name, one of them made twice over."""
    kernels = [affine(8, 2), affine(8, 3), affine(8, 2), affine(8, 3)]
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


@pytest.fixture
def keeping(open_device: Callable[..., Any]) -> Callable[..., Any]:
    """``open_device``, for a device whose binaries are kept whatever its driver does."""
    return lambda **arguments: open_device(keep_binaries=True, **arguments)


@pytest.fixture
def cache_files(open_device: Any, tmp_path: Path) -> Callable[[], list[Path]]:
    """The files of the compile cache."""
    return lambda: sorted((tmp_path / "cache").glob("*.bin"))


def test_equal_sources_are_compiled_once(open_device: Callable[..., Any]) -> None:
    device = open_device()
    before = device.compiled
    check(device)
    assert device.compiled - before == 2
    check(device)
    assert device.compiled - before == 2


def test_a_second_device_finds_the_binaries(
    keeping: Callable[..., Any], cache_files: Callable[[], list[Path]]
) -> None:
    first = keeping()
    check(first)
    files = cache_files()
    assert len(files) == first.compiled
    assert [f.suffix for f in files] == [".bin"] * len(files)
    second = keeping()
    check(second)
    assert second.compiled == 0


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_damaged_files_are_compiled_anew(
    keeping: Callable[..., Any], cache_files: Callable[[], list[Path]], damage: str
) -> None:
    first = keeping()
    check(first)
    good = {file: file.read_bytes() for file in cache_files()}
    for file, data in good.items():
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        file.write_bytes(
            {
                "truncated": data[:-7],
                "flipped": bytes(flipped),
                "empty": b"",
                "foreign": b"not ours at all" * 20,
            }[damage]
        )
    second = keeping()
    check(second)
    assert second.compiled == first.compiled
    third = keeping()
    check(third)
    assert third.compiled == 0


def test_an_intact_file_that_the_driver_refuses(
    keeping: Callable[..., Any], cache_files: Callable[[], list[Path]], tmp_path: Path
) -> None:
    from tflgpu.cache.disk_cache import DiskCache

    first = keeping()
    check(first)
    cache = DiskCache(tmp_path / "cache")
    for file in cache_files():
        cache.store(file.stem, b"once was a program")
    second = keeping()
    check(second)
    assert second.compiled == first.compiled


def test_a_cache_that_cannot_be_written(keeping: Callable[..., Any], tmp_path: Path) -> None:
    from tflgpu.cache.disk_cache import DiskCache

    (tmp_path / "file").write_text("in the way")
    check(keeping(cache=DiskCache(tmp_path / "file" / "cache")))


def test_the_folder_is_the_environment_s(
    require_backend: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_backend("opencl")
    from tflgpu_opencl.device import OpenCLDevice

    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "mine"))
    device = OpenCLDevice(0, keep_binaries=True)
    check(device)
    device.close()
    assert len(list((tmp_path / "mine" / "opencl").glob("*.bin"))) >= 2


def test_a_refusal_has_the_source_and_the_log(open_device: Callable[..., Any]) -> None:
    class Broken:
        def source(self, kernel: Kernel) -> str:
            return f"__kernel void {kernel.name}(__global float* p) {{ undeclared_thing(p) }}"

    with pytest.raises(CompileError) as caught:
        open_device(dialect=Broken()).load(biased(8))
    message = str(caught.value)
    assert "refused kernel add" in message
    log, source = message.split("--- source\n")
    assert "undeclared_thing" in source
    assert "error" in log.split("--- log\n")[1]


def test_a_workgroup_that_is_too_large(open_device: Callable[..., Any]) -> None:
    device = open_device()
    wide = attrs.evolve(affine(8), name="wide", workgroup=(2 * device.caps.max_workgroup, 1, 1))
    refs: list[Ref] = [InputRef(0), OutputRef(0)]
    made = plan([dispatch(wide, 1, refs, "conv 3")], [io("x", (8,))], [io("y", (8,))])
    with pytest.raises(CompileError, match="wide"):
        device.load(made)


def test_source_is_what_is_compiled(open_device: Callable[..., Any]) -> None:
    text = open_device().source(affine(8))
    assert "__kernel" in text
    assert "affine" in text
