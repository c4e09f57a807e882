"""The cache on disk: an entry is what was stored under its key, or it is dropped and made anew."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tflgpu.cache import disk_cache
from tflgpu.cache.disk_cache import DiskCache

from tests.running import raising

CONTENT = bytes(range(256)) * 3
POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other access rules")
AS_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to others"
)


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]


class TestEntries:
    def test_what_was_stored_is_loaded(self, cache: DiskCache) -> None:
        for content in (b"", b"x", CONTENT):
            cache.store("key", content)
            assert cache.load("key") == content
        assert cache.load("other") is None

    def test_several_at_once(self, cache: DiskCache) -> None:
        """Those that there are, as if each was asked for."""
        assert cache.load_all(["a"]) == {}
        for key in ("a", "b", "c"):
            cache.store(key, key.encode())
        cache.path("b").write_bytes(cache.path("a").read_bytes())
        assert cache.load_all(["c", "b", "none", "a"]) == {"c": b"c", "a": b"a"}
        assert not cache.path("b").exists()

    @pytest.mark.parametrize("same", [False, True], ids=["other content", "same content"])
    def test_valid_files_under_each_other_s_names(self, cache: DiskCache, *, same: bool) -> None:
        keys = ["a", "b", "ab", "b" * 64, "c" * 64]
        for wrong, right in itertools.permutations(keys, 2):
            for key in keys:
                cache.store(key, CONTENT if same else key.encode())
            cache.path(right).replace(cache.path(wrong))
            assert cache.load(wrong) is None, (wrong, right)
            assert not cache.path(wrong).exists()
            cache.store(wrong, b"anew")
            assert cache.load(wrong) == b"anew"

    def test_every_byte_counts(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        good = cache.path("key").read_bytes()
        for at in range(len(good)):
            for mask in (1, 0xFF):
                bad = bytearray(good)
                bad[at] ^= mask
                cache.path("key").write_bytes(bad)
                assert cache.load("key") is None, (at, mask)
                assert not cache.path("key").exists()

    def test_every_length_counts(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        good = cache.path("key").read_bytes()
        for bad in (*(good[:n] for n in range(len(good))), good + b"\0", good + good, b"\0" * 4096):
            cache.path("key").write_bytes(bad)
            assert cache.load("key") is None, len(bad)
            assert not cache.path("key").exists()

    def test_the_version_before(self, cache: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
        cache.store("key", CONTENT)
        cache.path("key").write_bytes(b"tflgpu cache 1\n" + bytes(32) + CONTENT)
        assert cache.load("key") is None
        assert not cache.path("key").exists()
        assert warnings(caplog) == []

    def test_many_bad_entries_are_one_warning(
        self, cache: DiskCache, caplog: pytest.LogCaptureFixture
    ) -> None:
        for i in range(5):
            cache.store(str(i), CONTENT)
            cache.path(str(i)).write_bytes(b"damaged")
            assert cache.load(str(i)) is None
        (text,) = warnings(caplog)
        assert "made anew" in text
        assert "0.bin: it is damaged" in text

    def test_a_huge_file_is_not_read(
        self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache.store("key", CONTENT)
        with cache.path("key").open("r+b") as file:
            file.truncate(10 << 30)  # a hole: it takes no space
        assert cache.load("key") is None
        assert not cache.path("key").exists()
        monkeypatch.setattr(disk_cache, "MAX_BYTES", 1000)
        cache.store("key", bytes(1000))
        assert not cache.path("key").exists()

    @POSIX
    @pytest.mark.parametrize("kind", ["folder", "full folder", "pipe", "link", "dangling link"])
    def test_something_else_in_its_place(self, cache: DiskCache, tmp_path: Path, kind: str) -> None:
        cache.store("key", CONTENT)
        path = cache.path("key")
        path.replace(tmp_path / "moved")
        if "folder" in kind:
            path.mkdir()
            if kind == "full folder":
                (path / "inside").write_text("")
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path / ("moved" if kind == "link" else "nothing"))
        assert cache.load("key") is None
        cache.store("key", CONTENT)
        assert cache.load("key") == (None if "folder" in kind else CONTENT)
        assert not list(cache.path("key").parent.glob("*.tmp"))

    @pytest.mark.parametrize("error", [errno.ENOMEM, errno.EMFILE])
    def test_what_cannot_be_read_now_stays(
        self, error: int, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache.store("key", CONTENT)

        with monkeypatch.context() as patch:
            patch.setattr(
                disk_cache.whole_file, "content", raising(OSError(error, os.strerror(error)))
            )
            assert cache.load("key") is None
        assert cache.load("key") == CONTENT

    @POSIX
    def test_an_unreadable_file(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        cache.path("key").chmod(0)
        assert cache.load("key") == (CONTENT if os.geteuid() == 0 else None)
        cache.store("key", CONTENT)
        assert cache.load("key") == CONTENT


class TestDisk:
    def test_full(
        self, cache: DiskCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cache.store("key", CONTENT)
        real = os.fdopen

        def full(handle: int, *args: object, **options: object) -> object:
            file = real(handle, *args, **options)  # type: ignore[call-overload]

            class Full:
                def __enter__(self) -> Full:
                    return self

                def __exit__(self, *error: object) -> None:
                    file.close()

                def write(self, data: bytes) -> None:
                    file.write(data[: len(data) // 2])
                    raise OSError(28, "No space left on device")

            return Full()

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdopen", full)
            cache.store("key", b"other")
            cache.store("third", b"other")
        assert cache.load("key") == CONTENT
        assert cache.load("third") is None
        assert [p.name for p in cache.path("key").parent.iterdir()] == ["key.bin"]
        (text,) = warnings(caplog)
        assert "No space left on device" in text

    def test_the_folder_goes_away(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        cache.path("key").unlink()
        cache.path("key").parent.rmdir()
        assert cache.load("key") is None
        cache.store("key", CONTENT)
        assert cache.load("key") == CONTENT

    def test_a_file_where_the_folder_should_be(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        for folder in (tmp_path / "file", tmp_path / "file" / "cache"):
            cache = DiskCache(folder)
            cache.store("key", CONTENT)
            assert cache.load("key") is None
            with cache.building("key") as waited, cache.reading(["key"]) as is_safe:
                assert not waited
                assert not is_safe
        assert 1 <= len(warnings(caplog)) <= 4

    def test_what_was_left_half_written_goes_away(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        old, young = (cache.path("key").with_name(f"{n}.tmp") for n in ("old", "young"))
        for path in (old, young):
            path.write_bytes(b"half")
        os.utime(old, (1e9, 1e9))
        cache.sweep()
        assert not old.exists()
        assert young.exists()


#: Larger than any process' number.
NO_PROCESS = (1 << 22) + 1


@POSIX
class TestDrivers:
    """What a driver was reading when its process died is dropped, half a minute later."""

    @pytest.fixture
    def kept(self, cache: DiskCache) -> Callable[[], list[str]]:
        """The keys that are left when a new process comes."""
        for key in "abc":
            cache.store(key, key.encode())

        def look() -> list[str]:
            fresh = DiskCache(cache.path("a").parent)
            fresh.sweep()
            return [key for key in "abc" if fresh.load(key) == key.encode()]

        return look

    def dead(self, cache: DiskCache) -> None:
        """The processes that left marks died a while ago."""
        for mark in self.marks(cache):
            os.utime(mark, (1e9, 1e9))
            mark.rename(mark.with_name(f"{NO_PROCESS}-{mark.name.partition('-')[2]}"))

    def marks(self, cache: DiskCache) -> list[Path]:
        return list((cache.path("a").parent / "marks").glob("*.mark"))

    @pytest.mark.parametrize("error", [None, KeyboardInterrupt])
    def test_a_reading_that_ends_leaves_nothing(
        self, cache: DiskCache, kept: Callable[[], list[str]], error: Any
    ) -> None:
        with contextlib.suppress(KeyboardInterrupt), cache.reading(["a", "c"]) as is_safe:
            assert is_safe
            assert kept() == ["a", "b", "c"]  # it lives
            if error is not None:
                raise error
        assert kept() == ["a", "b", "c"]
        assert self.marks(cache) == []

    def test_a_process_that_takes_long_and_lives(
        self, cache: DiskCache, kept: Callable[[], list[str]]
    ) -> None:
        with cache.reading(["a", "c"]):
            for mark in self.marks(cache):
                os.utime(mark, (1e9, 1e9))
            assert kept() == ["a", "b", "c"]

    @pytest.mark.parametrize("kind", ["load", "proof"])
    def test_a_process_that_dies(
        self, cache: DiskCache, kept: Callable[[], list[str]], kind: Any
    ) -> None:
        with cache.reading(["a", "c"], kind):
            assert kept() == ["a", "b", "c"]
            self.dead(cache)
            assert kept() == (["b"] if kind == "load" else ["a", "b", "c"])
        assert self.marks(cache) == []
        assert cache.is_unsafe("a") is (kind == "proof")
        assert not cache.is_unsafe("b")

    @pytest.mark.parametrize(
        "text", ["", "load", "what\n", "load\n../outside\n/etc\n.\n..", "\xff"]
    )
    def test_marks_that_are_none(
        self, cache: DiskCache, kept: Callable[[], list[str]], text: str
    ) -> None:
        outside = cache.path("a").parent.parent / "outside.bin"
        outside.write_text("not ours")
        with cache.reading(["a"]):
            self.marks(cache)[0].write_bytes(text.encode("latin-1"))
            self.dead(cache)
            assert kept() == ["a", "b", "c"]
        assert outside.exists()

    def test_nothing_is_read_without_a_mark(
        self, cache: DiskCache, kept: Callable[[], list[str]]
    ) -> None:
        (cache.path("a").parent / "marks").write_text("in the way")
        with cache.reading(["a"]) as is_safe:
            assert not is_safe
        assert kept() == ["a", "b", "c"]

    def test_processes_that_build_the_same_wait(self, cache: DiskCache) -> None:
        code = (
            "from tflgpu.cache.disk_cache import DiskCache; from pathlib import Path; import time\n"
        )
        code += f"with DiskCache(Path({str(cache.path('a').parent)!r})).building('a'):\n"
        code += "    print('x', flush=True); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None and process.stdout.readline()
            with cache.building("a", limit=0.05) as waited:  # not for ever
                assert waited
            with cache.building("another") as waited:
                assert not waited
        finally:
            process.kill()
            process.communicate()
        with cache.building("a") as waited:  # a dead process holds nothing up
            assert not waited


class TestOwners:
    @pytest.mark.parametrize("mask", [0, 0o002, 0o022])
    def test_what_is_made_is_private(self, tmp_path: Path, mask: int) -> None:
        before = os.umask(mask)
        try:
            cache = DiskCache(tmp_path / "a" / "b")
            cache.store("key", CONTENT)
            with cache.building("key"), cache.reading(["key"]):
                modes = {
                    p.relative_to(tmp_path).as_posix(): stat.S_IMODE(p.lstat().st_mode)
                    for p in tmp_path.rglob("*")
                }
        finally:
            os.umask(before)
        assert {"a", "a/b", "a/b/key.bin", "a/b/marks", "a/b/locks"} < set(modes)
        assert len(modes) == 7  # a mark and a lock
        for name, mode in modes.items():
            assert mode == (0o600 if "." in name else 0o700), name

    @pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
    @pytest.mark.parametrize("which", ["folder", "parent"])
    def test_folders_that_others_can_write_to(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str, mode: int
    ) -> None:
        folder = tmp_path / "parent" / "cache"
        cache = DiskCache(folder)
        cache.store("key", CONTENT)
        (folder if which == "folder" else folder.parent).chmod(mode)
        # Sticky, as the folder for temporary files is: others cannot touch what is ours in it.
        fine = which == "parent" and mode == 0o1777
        for _ in range(3):
            assert cache.load("key") == (CONTENT if fine else None)
            cache.store("other", CONTENT)
            assert cache.path("other").exists() == fine
            with cache.building("key"), cache.reading(["key"]) as is_safe:
                assert is_safe == fine
        if not fine:
            assert len(warnings(caplog)) == 1
            assert "other users can write to it; `chmod go-w`" in warnings(caplog)[0]
            assert [p.name for p in folder.iterdir()] == ["key.bin"]

    @AS_ROOT
    @pytest.mark.parametrize("which", ["folder", "parent", "file"])
    def test_what_belongs_to_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str
    ) -> None:
        folder = tmp_path / "parent" / "cache"
        cache = DiskCache(folder)
        cache.store("key", CONTENT)
        os.chown(
            {"folder": folder, "parent": folder.parent, "file": cache.path("key")}[which], 4, 4
        )
        assert cache.load("key") is None
        (text,) = warnings(caplog)
        assert "belongs to user 4" in text
        cache.store("key", CONTENT)
        assert cache.load("key") == (CONTENT if which == "file" else None)

    def test_a_file_that_others_can_write_to(self, cache: DiskCache) -> None:
        cache.store("key", CONTENT)
        cache.path("key").chmod(0o666)
        assert cache.load("key") is None
        assert not cache.path("key").exists()

    @pytest.mark.parametrize("which", ["folder", "parent"])
    def test_a_link_of_one_s_own(self, tmp_path: Path, which: str) -> None:
        (tmp_path / "disk").mkdir(0o700)
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        folder = tmp_path / "link"
        cache = DiskCache(folder if which == "folder" else folder / "cache")
        cache.store("key", CONTENT)
        assert cache.load("key") == CONTENT

    def test_a_link_to_what_others_can_write_to(self, tmp_path: Path) -> None:
        (tmp_path / "disk").mkdir()
        (tmp_path / "disk").chmod(0o777)
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        cache = DiskCache(tmp_path / "link")
        cache.store("key", CONTENT)
        assert list((tmp_path / "disk").iterdir()) == []

    @AS_ROOT
    def test_a_link_that_somebody_else_made(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "disk").mkdir(0o700)
        (tmp_path / "link").symlink_to(tmp_path / "disk")
        os.lchown(tmp_path / "link", 4, 4)
        cache = DiskCache(tmp_path / "link")
        cache.store("key", CONTENT)
        assert cache.load("key") is None
        assert list((tmp_path / "disk").iterdir()) == []
        (text,) = warnings(caplog)
        assert "is a link, and it belongs to user 4" in text

    def test_systems_without_owners(
        self, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "geteuid")
        monkeypatch.delattr(os, "O_NOFOLLOW")
        monkeypatch.delattr(os, "O_NONBLOCK")
        cache.store("key", CONTENT)
        cache.path("key").parent.chmod(0o777)
        assert cache.load("key") == CONTENT


def test_a_folder_that_cannot_be_used_says_what_can_be_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "programs")
    cache.store("k", b"v")
    assert cache.load("k") is None
    (said,) = caplog.messages
    assert said.startswith("tflgpu: the cache folder ")
    assert said.endswith("file is no folder; TFLGPU_CACHE_DIR can name another")
