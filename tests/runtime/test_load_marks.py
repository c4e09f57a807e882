"""What a driver was reading when its process died is dropped; what a living one reads is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tflgpu.cache import load_marks
from tflgpu.cache.disk_cache import DiskCache

KEYS = ["a", "b", "c"]
Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    made = DiskCache(tmp_path / "cache")
    for key in KEYS:
        made.store(key, key.encode())
    return made


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(code)`` runs Python in another process, with the cache as ``cache``; returns when it
    has printed a line."""
    started: list[subprocess.Popen[str]] = []
    head = f"""
        import os, sys, time
        from pathlib import Path
        from tflgpu.cache.disk_cache import DiskCache
        cache = DiskCache(Path({str(tmp_path / "cache")!r}))
        def ready():
            print("ready", flush=True)
            time.sleep(60)
    """

    def run(code: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


def kept(cache: DiskCache) -> list[str]:
    """The keys that are left when a new process comes."""
    fresh = DiskCache(cache.path("a").parent)
    fresh.sweep()
    return [key for key in KEYS if fresh.load(key) == key.encode()]


def marks(cache: DiskCache) -> list[str]:
    return [p.name for p in (cache.path("a").parent / "marks").glob("*")]


def test_a_process_that_is_killed(cache: DiskCache, start: Start) -> None:
    process = start("with cache.reading(['a', 'c']): ready()")
    assert kept(cache) == KEYS  # it lives
    process.kill()
    process.wait()
    assert kept(cache) == ["b"]
    assert marks(cache) == []
    cache.store("a", b"a")
    assert kept(cache) == ["a", "b"]
    assert not cache.is_unsafe("a")


@pytest.mark.parametrize("how", ["os.abort()", "os._exit(0)"])
def test_a_process_that_ends(cache: DiskCache, start: Start, how: str) -> None:
    start(f"with cache.reading(['a']): print('x', flush=True); {how}").wait()
    assert kept(cache) == ["b", "c"]


@pytest.mark.parametrize("how", ["pass", "raise KeyboardInterrupt", "sys.exit(1)"])
def test_a_process_that_is_done(cache: DiskCache, start: Start, how: str) -> None:
    code = f"""
        with cache.reading(['a']):
            print('x', flush=True)
            {how}
    """
    start(f"sys.stderr.close()\n{textwrap.dedent(code)}").wait()
    assert kept(cache) == KEYS
    assert marks(cache) == []


def test_several_processes(cache: DiskCache, start: Start) -> None:
    living = start("with cache.reading(['a', 'b']): ready()")
    dead = start("with cache.reading(['b', 'c']): ready()")
    dead.kill()
    dead.wait()
    assert kept(cache) == ["a"]
    cache.store("b", b"b")
    assert kept(cache) == ["a", "b"]
    living.kill()
    living.wait()
    assert kept(cache) == []


def test_a_process_whose_id_comes_again(cache: DiskCache, start: Start) -> None:
    """A mark does not say which process made it, so no other one can be taken for it."""
    process = start("with cache.reading(['a']): ready()")
    (mark,) = (cache.path("a").parent / "marks").iterdir()
    assert str(process.pid) not in mark.read_text()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_keep_its_parent_s_mark_alive(cache: DiskCache, start: Start) -> None:
    process = start("""
        with cache.reading(['a']):
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                time.sleep(60)
            time.sleep(60)
    """)
    try:
        assert kept(cache) == KEYS
        process.kill()
        process.wait()
        assert kept(cache) == ["b", "c"]
    finally:
        for child in Path("/proc").glob("[0-9]*"):
            if f"{cache.path('a').parent}".encode() in _command(child):
                os.kill(int(child.name), signal.SIGKILL)


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_exits_does_not_end_its_parent_s_mark(cache: DiskCache, start: Start) -> None:
    process = start("""
        with cache.reading(['a']):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            ready()
    """)
    assert kept(cache) == KEYS
    process.kill()
    process.wait()
    assert kept(cache) == ["b", "c"]


def test_a_process_that_dies_of_a_proof(cache: DiskCache, start: Start) -> None:
    start("with cache.reading(['a'], 'proof'): print('x', flush=True); os.abort()").wait()
    assert kept(cache) == KEYS  # what was kept has been read before
    assert cache.is_unsafe("a")
    assert not cache.is_unsafe("b")


@pytest.mark.parametrize(
    "text",
    [
        "", "[", "[" * 100_000, "3", "{}", '{"kind": "load"}', '{"kind": 3, "keys": ["a"]}',
        '{"kind": "load", "keys": "abc"}', '{"kind": "load", "keys": [3, null, ["a"]]}',
        '{"kind": "load", "keys": ["../outside", "/etc/passwd", "", ".", "..", "a\\u0000b"]}',
    ],
)  # fmt: skip
def test_marks_that_are_none(cache: DiskCache, tmp_path: Path, text: str) -> None:
    (tmp_path / "outside.bin").write_text("not ours")
    folder = cache.path("a").parent / "marks"
    folder.mkdir(0o700)
    (folder / "0.mark").write_text(text)
    os.utime(folder / "0.mark", (1e9, 1e9))
    (folder / "1.mark").mkdir()
    (folder / "notes.txt").write_text("no mark")
    assert kept(cache) == KEYS
    assert (tmp_path / "outside.bin").exists()
    assert sorted(marks(cache)) == ["1.mark", "notes.txt"]


def test_a_mark_that_is_being_made(cache: DiskCache) -> None:
    folder = cache.path("a").parent / "marks"
    folder.mkdir(0o700)
    (folder / "0.mark").write_text("")
    assert kept(cache) == KEYS
    assert marks(cache) == ["0.mark"]


def test_where_there_are_no_locks(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems: a mark counts as a living process's until it is old."""

    def none(handle: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("tflgpu.cache.file_lock._try", none)
    with cache.building("a") as waited:
        assert not waited
    with cache.reading(["a"]) as is_safe:
        assert is_safe
        assert kept(cache) == KEYS
        (mark,) = (cache.path("a").parent / "marks").iterdir()
        os.utime(mark, (1e9, 1e9))
        assert kept(cache) == ["b", "c"]


def test_nothing_is_read_without_a_mark(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(load_marks.os, "write", full)
        with cache.reading(["a"]) as is_safe:
            assert not is_safe
    assert marks(cache) == []
    (cache.path("a").parent / "marks").rmdir()
    (cache.path("a").parent / "marks").write_text("in the way")
    with cache.reading(["a"]) as is_safe:
        assert not is_safe
    assert kept(cache) == KEYS


class TestBuilding:
    CODE = "with cache.building('a'): ready()"

    def test_another_process_waits(self, cache: DiskCache, start: Start) -> None:
        process = start("with cache.building('a'): print('x', flush=True); time.sleep(1)")
        begin = time.monotonic()
        with cache.building("a") as waited:
            assert waited
        assert time.monotonic() - begin > 0.5
        process.wait()
        with cache.building("a") as waited:
            assert not waited

    def test_not_for_ever(self, cache: DiskCache, start: Start) -> None:
        start(self.CODE)
        begin = time.monotonic()
        with cache.building("a", limit=0.3) as waited:
            assert waited
        assert 0.3 <= time.monotonic() - begin < 60  # a machine may be busy; for ever is longer

    def test_other_keys_do_not_wait(self, cache: DiskCache, start: Start) -> None:
        start(self.CODE)
        with cache.building("another") as waited:
            assert not waited

    def test_a_dead_process_keeps_nobody_waiting(self, cache: DiskCache, start: Start) -> None:
        process = start(self.CODE)
        process.kill()
        process.wait()
        with cache.building("a") as waited:
            assert not waited

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    def test_a_child_keeps_nobody_waiting(self, cache: DiskCache, start: Start) -> None:
        start("""
            with cache.building('a'):
                child = os.fork()
                if child == 0:
                    time.sleep(5)
                    os._exit(0)
            ready()
        """)
        with cache.building("a") as waited:
            assert not waited


def test_a_mark_costs_little(cache: DiskCache) -> None:
    """A mark is made once for all programs of a model; the bound is for slow machines."""
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        cache.sweep()
        with cache.reading([str(i) * 64 for i in range(100)]):
            pass
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.02
    assert marks(cache) == []
