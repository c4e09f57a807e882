"""A folder of saved models: read where they are, made where not, dropped where bad, pruned."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tflgpu.cache import whole_file
from tflgpu.compiler import compile as compiling
from tflgpu.compiler.parts import Compiled
from tflgpu.errors import SavedModelError
from tflgpu.saved import location
from tflgpu.saved.location import entries, fault, open_or_compile, prune
from tflgpu.saved.model import SUFFIX

from tests.running import raising
from tests.saved.saved_models import FACTS, convolved, graph_of, target_of

POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has other access rules")
AS_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files to others"
)

Open = Callable[..., Compiled]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets a line for each graph that is compiled."""
    found: list[str] = []
    real = compiling.compile

    def counted(*given: Any) -> Compiled:
        found.append("compiled")
        return real(*given)

    monkeypatch.setattr(compiling, "compile", counted)
    return found


def opened(folder: Path, model: bytes | None = None, token: str = "", **more: Any) -> Compiled:
    graph = graph_of(model or convolved())
    return open_or_compile(graph, target_of(), lambda: FACTS, folder, token, **more)


def only(folder: Path) -> Path:
    (entry,) = entries(folder)
    return entry.path


def test_the_second_time_it_is_read(folder: Path, compiled: list[str]) -> None:
    first, second = opened(folder), opened(folder)
    assert compiled == ["compiled"]
    assert second.graph.dump() == first.graph.dump()
    assert fault(only(folder)) == ""


def test_another_model_or_token_is_another_entry(folder: Path, compiled: list[str]) -> None:
    opened(folder)
    opened(folder, convolved(scale=0.25))
    opened(folder, token="mine")
    assert len(compiled) == len(entries(folder)) == 3


def test_changed_facts_are_compiled_anew(folder: Path, compiled: list[str]) -> None:
    graph, target = graph_of(convolved()), target_of()
    for driver in ("1.0", "1.1", "1.0"):
        open_or_compile(graph, target, lambda d=driver: (("driver", d),), folder)
    assert len(compiled) == 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "foreign", "older", "a folder"])
def test_a_bad_file_is_dropped_and_made_anew(
    folder: Path, compiled: list[str], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened(folder)
    path = only(folder)
    good = path.read_bytes()
    if damage == "a folder":
        path.unlink()
        path.mkdir()
    else:
        bad = {
            "flipped": good[:-1] + bytes([good[-1] ^ 1]), "cut": good[:1000], "empty": b"",
            "foreign": b"TFL3" * 100, "older": good.replace(b"saved 3", b"saved 2", 1),
        }  # fmt: skip
        path.write_bytes(bad[damage])
        assert fault(path)
    opened(folder)
    assert compiled == ["compiled", "compiled"]
    assert any("made anew" in r.getMessage() for r in caplog.records)
    if damage != "a folder":  # which is in the way, and stays
        assert path.read_bytes() == good
        opened(folder)
        assert len(compiled) == 2


def test_a_file_under_the_name_of_another_is_not_used(folder: Path, compiled: list[str]) -> None:
    opened(folder)
    mine = only(folder)
    opened(folder, convolved(scale=0.25))
    (other,) = (entry.path for entry in entries(folder) if entry.path != mine)
    other.write_bytes(mine.read_bytes())
    assert "not that of its key" in fault(other)
    opened(folder, convolved(scale=0.25))
    assert len(compiled) == 3
    assert fault(other) == ""


@POSIX
def test_it_is_open_to_its_owner_only(folder: Path) -> None:
    opened(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(only(folder).stat().st_mode) == 0o600


@POSIX
@pytest.mark.parametrize("mode", [0o622, 0o620])
def test_what_others_can_write_is_not_read(folder: Path, compiled: list[str], mode: int) -> None:
    opened(folder)
    only(folder).chmod(mode)
    opened(folder)
    assert len(compiled) == 2
    assert stat.S_IMODE(only(folder).stat().st_mode) == 0o600


@AS_ROOT
def test_a_file_of_another_user_is_not_read(folder: Path, compiled: list[str]) -> None:
    opened(folder)
    os.chown(only(folder), 12345, 12345)
    opened(folder)
    assert len(compiled) == 2


@POSIX
def test_a_folder_that_others_can_write_to_is_not_used(folder: Path, compiled: list[str]) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    opened(folder)
    opened(folder)
    assert len(compiled) == 2
    assert entries(folder) == []


def test_where_nothing_can_be_written_it_is_compiled(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(
        location, "write_saved", raising(SavedModelError("no space left on device"))
    )
    caplog.set_level(logging.WARNING)
    assert isinstance(opened(folder), Compiled)
    assert entries(folder) == []
    assert any("no space left" in r.getMessage() for r in caplog.records)


def test_a_disk_that_fills_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any, /) -> int:
            if self.tell() > 1000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(os, "fdopen", lambda handle, _: os.close(handle) or Full())
    assert isinstance(opened(folder), Compiled)
    assert [path for path in folder.iterdir() if path.is_file()] == []


def test_threads_that_want_the_same_compile_it_once(folder: Path, compiled: list[str]) -> None:
    found: list[Compiled] = []
    threads = [threading.Thread(target=lambda: found.append(opened(folder))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(compiled) == 1


def test_what_another_made_just_before_the_lock_is_read(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = location.one_at_a_time

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(location, "one_at_a_time", real)
        opened(folder)
        return real(*arguments)

    monkeypatch.setattr(location, "one_at_a_time", late)
    assert isinstance(opened(folder), Compiled)
    assert len(compiled) == 1


_CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_saved_store as tests
tests.opened(Path(sys.argv[2]))
"""


def test_processes_that_want_the_same_leave_one_good_file(folder: Path) -> None:
    here = str(Path(__file__).parent)
    call = [sys.executable, "-c", _CHILD, here, str(folder)]
    children = [subprocess.Popen(call) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    assert fault(only(folder)) == ""
    assert not list(folder.glob("*.tmp"))


def _entry(folder: Path, name: str, nbytes: int, age: float) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{hashlib.sha256(name.encode()).hexdigest()}{SUFFIX}"
    path.write_bytes(bytes(nbytes))
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))
    return path


def test_what_the_user_saved_in_the_same_folder_stays(folder: Path) -> None:
    kept, own = _entry(folder, "kept", 1000, 5e3), folder / f"mine{SUFFIX}"
    own.write_bytes(bytes(1000))
    os.utime(own, (1, 1))
    assert [entry.path for entry in entries(folder)] == [kept]
    assert [entry.path for entry in prune(folder, 0)] == [kept]
    done = subprocess.run(
        [sys.executable, "-m", "tflgpu", "cache", "clear", "--folder", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "0 models removed" in done.stdout
    assert own.exists()


def test_what_was_not_used_for_longest_goes_first(folder: Path) -> None:
    paths = [_entry(folder, name, 1000, age) for name, age in (("a", 5e3), ("b", 1e3), ("c", 9e3))]
    assert prune(folder, 3000) == []
    assert [entry.path for entry in prune(folder, 2500)] == [paths[2]]
    assert [entry.path for entry in prune(folder, 1999)] == [paths[0]]
    assert [entry.path for entry in entries(folder)] == [paths[1]]


def test_using_an_entry_makes_it_young(folder: Path) -> None:
    opened(folder)
    path = only(folder)
    old = path.stat().st_mtime - 1e5
    os.utime(path, (old, old))
    opened(folder)
    assert entries(folder)[0].age < 1e4


def test_storing_prunes(folder: Path) -> None:
    old = _entry(folder, "old", 1000, 1e4)
    opened(folder, limit=10 << 20)
    assert old.exists()
    opened(folder, convolved(scale=0.25), limit=1 << 10)
    assert not old.exists()


def test_what_dead_processes_left_goes_too(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    left, fresh = folder / "x.tmp", folder / "y.tmp"
    for path in (left, fresh):
        path.write_bytes(b"half")
    os.utime(left, (0, 0))
    prune(folder)
    assert [path.name for path in folder.iterdir()] == ["y.tmp"]


def test_a_clock_that_was_set_back_makes_nothing_young(folder: Path) -> None:
    to_come, past = _entry(folder, "to come", 1000, -1e6), _entry(folder, "past", 1000, 1e3)
    assert [entry.path for entry in entries(folder)] == [past, to_come]
    assert [entry.path for entry in prune(folder, 1500)] == [to_come]
    left = folder / "x.tmp"
    left.write_bytes(b"half")
    os.utime(left, (time.time() + 1e6,) * 2)
    prune(folder)
    assert not left.exists()


def test_what_another_process_has_removed_is_gone(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at a folder and what follows: that is no trouble, and nothing is said of
    it."""
    opened(folder)
    path = only(folder)
    path.unlink()
    with caplog.at_level(logging.DEBUG):
        assert location.drop(path)
    read = location.read_saved

    def late(path: Path, *rest: Any) -> Compiled:
        path.unlink(missing_ok=True)
        return read(path, *rest)

    opened(folder)
    with monkeypatch.context() as patch, caplog.at_level(logging.DEBUG):
        patch.setattr(location, "read_saved", late)
        opened(folder)
    assert only(folder) == path
    assert not [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EMFILE])
def test_what_cannot_be_read_now_stays(
    error: int, folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """No memory to map it, or no descriptor: the process lacks something, and the file nothing."""
    opened(folder)
    before = only(folder).read_bytes()

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(location, "drop", lambda path: pytest.fail("it was dropped"))
        patch.setattr(whole_file, "mapped", raising(OSError(error, os.strerror(error))))
        opened(folder)
    assert "dropped" not in caplog.text
    assert only(folder).read_bytes() == before
    assert len(compiled) == 2
    opened(folder)
    assert len(compiled) == 2


def test_a_folder_that_is_not_there_is_empty(folder: Path) -> None:
    assert entries(folder) == []
    assert prune(folder) == []


def test_what_cannot_be_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder is only there because somebody asked for it."""

    monkeypatch.setattr(location, "key_of", raising(SavedModelError("a plugin has no sources")))
    compiled = open_or_compile(graph_of(convolved()), target_of(), lambda: FACTS, tmp_path)
    assert compiled.plans
    assert "this model is not kept compiled: a plugin has no sources" in caplog.text
    assert not list(tmp_path.iterdir())
