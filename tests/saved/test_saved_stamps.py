"""Digests of files and of the code in folders."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tflgpu.cache import digest
from tflgpu.cache.digest import digest_of
from tflgpu.saved import stamps
from tflgpu.saved.stamps import stamp

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    stamp.cache_clear()
    yield tmp_path / "cache"
    stamp.cache_clear()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A package whose files have not been changed for a while."""
    folder = tmp_path / "package"
    (folder / "inside").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name in ("a.py", "inside/b.py", "__pycache__/a.py", "table.txt"):
        (folder / name).write_text("A = 1\n")
    return folder


def again(place: Path) -> str:
    stamp.cache_clear()
    return stamp(place)


def test_a_digest_is_of_the_bytes_and_not_of_how_they_are_cut() -> None:
    data = os.urandom(5 * MIB + 17)
    whole = digest_of(data)
    assert digest_of(data[:MIB], data[MIB : MIB + 5], b"", data[MIB + 5 :]) == whole
    assert digest_of(memoryview(data)) == whole


@pytest.mark.parametrize("processors", [1, 2, 64])
@pytest.mark.parametrize("count", [5, 100, 701])
def test_a_digest_is_the_same_by_any_threads(
    count: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_PIECE", 100)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    data = os.urandom(100 * count - 7)
    each = [hashlib.sha256(data[at : at + 100]).digest() for at in range(0, len(data), 100)]
    whole = hashlib.sha256(b"tflgpu pieces of 1 MiB\n" + len(data).to_bytes(8, "little"))
    whole.update(b"".join(each))
    assert digest_of(data) == whole.digest()


@pytest.mark.parametrize("at", [0, MIB - 1, MIB, 3 * MIB])
def test_every_byte_counts(at: int) -> None:
    data = bytearray(3 * MIB + 1)
    plain = digest_of(bytes(data))
    data[at] ^= 1
    assert digest_of(bytes(data)) != plain
    assert digest_of(bytes(data[:-1])) != plain


def test_pieces_in_another_order_are_something_else() -> None:
    one, other = b"a" * MIB, b"b" * MIB
    assert digest_of(one, other) != digest_of(other, one)
    assert digest_of() != digest_of(b"\0")


@pytest.mark.parametrize(
    "name", ["a.py", "inside/b.py", "inside/c.py", "inside/d.pyc", "table.txt"]
)
def test_every_line_counts(code: Path, name: str) -> None:
    before = again(code)
    (code / name).write_text("A = 2\n")  # of the same size
    assert again(code) != before


def test_what_python_compiled_does_not_count(code: Path) -> None:
    before = again(code)
    (code / "__pycache__/a.py").write_text("A = 2\n")
    assert again(code) == before


def test_a_state_that_is_known_is_not_read_again(
    code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_SETTLED", -60.0)
    before = again(code)
    monkeypatch.setattr(stamps, "_digest", None)  # not callable
    assert again(code) == before


def test_setting_back_the_time_hides_no_change(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_SETTLED", -60.0)
    before, status = again(code), (code / "a.py").stat()
    time.sleep(0.02)
    with (code / "a.py").open("r+") as file:
        file.write("A = 3\n")
    os.utime(code / "a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert again(code) != before


def test_what_was_changed_just_now_is_not_kept(
    code: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stamps, "_SETTLED", 3600.0)
    again(code)
    assert not list(cache.rglob("*.stamp"))
