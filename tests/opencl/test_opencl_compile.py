"""Compiling: what is shared, what is kept on disk, and what a refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.compiler.plan import InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.plans import affine, biased, dispatch, io, plan
from tflgpu.errors import CompileError
from tflgpu.language.kernel import Kernel

from tests.api_devices import runs_two_bodies
from tests.opencl.compile_child import compiled


def two_bodies() -> Plan:
    """Four dispatches: two kernels of one name, one of them made twice over."""
    kernels = [affine(8, 2), affine(8, 3), affine(8, 2), affine(8, 3)]
    return plan(
        [dispatch(k, 8, [InputRef(0), OutputRef(i)]) for i, k in enumerate(kernels)],
        [io("x", (8,))],
        [io(f"y{i}", (8,)) for i in range(4)],
    )


def check(device: Any) -> None:
    runs_two_bodies(device, two_bodies())


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


def test_a_cache_that_cannot_be_written(keeping: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    check(keeping(cache=DiskCache(tmp_path / "file" / "cache")))


@pytest.mark.needs("opencl")
def test_the_folder_is_the_environment_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


# Bad binaries on disk: at most one process dies of one, and the next has it compiled anew.
# Drivers run in child processes here, as bad binaries may end the process.


#: A process that prints how many programs it compiled.
USE = """
    import os, time
    from pathlib import Path
    from tflgpu.cache.disk_cache import DiskCache
    from tflgpu_opencl.device import OpenCLDevice
    from tests.opencl.compile_child import compiled
    {before}
    device = OpenCLDevice(0, cache=DiskCache(Path({folder!r})), **{options!r})
    print(compiled(device, {count}))
"""
KEEP = {"keep_binaries": True}
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(require_backend: Callable[[str], Any], tmp_path: Path) -> Path:
    require_backend("opencl")
    return tmp_path / "cache"


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Start]:
    """``start(options, count, before)`` runs USE, with a PoCL cache of the test's own."""
    (tmp_path / "pocl").mkdir()
    started: list[subprocess.Popen[str]] = []

    def run(options: Any = KEEP, count: int = 2, before: str = "") -> subprocess.Popen[str]:
        code = textwrap.dedent(USE).format(
            folder=str(folder), options=dict(options), count=count, before=before
        )
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        }
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def use(start: Start) -> Callable[..., int | None]:
    """How many programs a process compiled; None if it died. Its results are right."""

    def run(*arguments: Any, **options: Any) -> int | None:
        process = start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        if process.returncode < 0:
            return None
        assert process.returncode == 0, err
        return int(out)

    return run


def split(content: bytes) -> tuple[bytes, bytes]:
    """An entry's description of the program, and the driver's binary."""
    end = 4 + int.from_bytes(content[:4], "little")
    return content[:end], content[end:]


def entries(folder: Path) -> dict[str, bytes]:
    cache = DiskCache(folder)
    found = {path.stem: cache.load(path.stem) for path in sorted(folder.glob("*.bin"))}
    return {key: content for key, content in found.items() if content is not None}


def dead(folder: Path) -> None:
    """The processes that died did so a while ago."""
    for mark in (folder / "marks").glob("*.mark"):
        os.utime(mark, (1e9, 1e9))


def aborting(good: bytes, kind: str, models_dir: Path) -> bytes:
    """A binary that PoCL 3.1 does not survive: one that it made itself, with this machine's id of
    the device; or ``good`` without the program, which is what that one lacks."""
    if kind == "sample":
        sample = models_dir.parent / "faults" / "pocl-aborts-on-load.bin"
        if not sample.is_file():
            pytest.skip(f"no {sample.name} in a folder `faults` beside the models")
        return good[:16] + sample.read_bytes()[16:]
    start = good.index(b"/program.bc") - 12  # bytes of the file's entry, then name and content
    if not good.startswith(b"poclbin") or start < 0:
        pytest.skip("the binaries of this driver are not PoCL's")
    size = int.from_bytes(good[start : start + 8], "little")
    return good[:start] + bytes(8) + good[start + 8 + size :]


def dies_of(binary: bytes, path: Path) -> bool:
    """Whether this machine's driver does."""
    path.write_bytes(binary)
    code = f"""
        import pyopencl as cl
        device = [d for p in cl.get_platforms() for d in p.get_devices()][0]
        binary = open({str(path)!r}, "rb").read()
        try:
            cl._cl._Program(cl.Context([device]), [device], [binary])._build(b"", [device])
        except cl.Error:
            pass
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=False, capture_output=True
    )
    return done.returncode < 0


@pytest.mark.parametrize("kind", ["sample", "synthetic"])
def test_a_planted_binary_ends_one_process(
    use: Callable[..., int | None], folder: Path, tmp_path: Path, models_dir: Path,
    keeping: Callable[..., Any], kind: str,
) -> None:  # fmt: skip
    assert compiled(keeping()) == 2
    bad = aborting(split(next(iter(entries(folder).values())))[1], kind, models_dir)
    if not dies_of(bad, tmp_path / "bad"):
        pytest.skip("this driver refuses the binary and lives")
    for key, content in entries(folder).items():
        DiskCache(folder).store(key, split(content)[0] + bad)
    assert use(KEEP) is None
    dead(folder)
    assert use(KEEP) == 2
    assert compiled(keeping()) == 0


@pytest.mark.parametrize("kind", ["no binary", "no entry", "refused", "other", "no description"])
def test_intact_entries_that_are_no_use(
    keeping: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    """The digest is right; the driver refuses the binary, or has other kernels in it."""
    assert compiled(keeping()) == 2
    cache = DiskCache(tmp_path / "cache")
    kept = list(entries(tmp_path / "cache").items())
    for i, (key, content) in enumerate(kept):
        about, binary = split(content)
        cache.store(
            key,
            {
                "no binary": about,
                "no entry": b"",
                "refused": about + b"once was a program",
                "other": about + split(kept[1 - i][1])[1],
                "no description": b"\xff\xff\xff\xff" + binary,
            }[kind],
        )
    assert [compiled(keeping()), compiled(keeping())] == [2, 0]


def test_binaries_under_each_other_s_names(
    keeping: Callable[..., Any], cache_files: Callable[[], list[Path]], tmp_path: Path
) -> None:
    assert compiled(keeping()) == 2
    first, second = cache_files()
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    assert [compiled(keeping()), compiled(keeping())] == [2, 0]


def test_what_the_driver_cannot_read_itself_is_not_kept(
    open_device: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tflgpu_opencl.program import Compiler

    descriptions = iter(range(1000))
    monkeypatch.setattr(Compiler, "_describe", lambda *a: str(next(descriptions)).encode())
    device = open_device(keep_binaries=True)
    device.load(plan([dispatch(affine(8), 8, [InputRef(0), OutputRef(0)])],
                     [io("x", (8,))], [io("y", (8,))]))  # fmt: skip
    assert device.compiled == 1
    assert not list((tmp_path / "cache").glob("*.bin"))


def test_a_driver_that_dies_of_its_own_binary(
    use: Callable[..., int | None], folder: Path, keeping: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """It does so once; what it makes is not tried again, until a week later."""
    from tflgpu_opencl.program import Compiler

    dying = "from tflgpu_opencl.program import Compiler; Compiler._from_binary = "
    dying += "lambda self, binary: os.abort()"
    assert use(KEEP, before=dying) is None
    dead(folder)
    tried: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(Compiler, "_from_binary", lambda self, binary: tried.append(binary))
        assert [compiled(keeping()) for _ in range(2)] == [2, 2]
    assert not tried
    assert not list(folder.glob("*.bin"))
    (unsafe,) = folder.glob("*.unsafe")
    os.utime(unsafe, (1e9, 1e9))  # the process may have been killed in that moment by chance
    assert [compiled(keeping()), compiled(keeping())] == [2, 0]


@pytest.mark.parametrize("options", [{}, KEEP], ids=["as in use", "binaries kept"])
def test_processes_that_start_together(
    start: Start, folder: Path, tmp_path: Path, options: dict[str, bool]
) -> None:
    """From cold caches, with the same programs."""
    go = tmp_path / "go"
    wait = f"print('ready', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.001)"
    processes = [start(options, 5, wait) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begin = time.monotonic()
    go.touch()
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert time.monotonic() - begin < 60
    assert len(list(folder.glob("*.bin"))) == (5 if options else 0)
