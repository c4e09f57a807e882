"""`tflgpu compile` and `tflgpu cache`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tflgpu
from tflgpu import GpuDelegate, Interpreter
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.options import DelegateOptions
from tflgpu.runtime.opening import compiled_on
from tflgpu.runtime.provider import device_provider
from tflgpu.saved.location import SavedLocation, default_folder, entries
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.cli.cli_helpers import Tflgpu

REF = ("--backend", "cpu_ref", "--device", 1)


def test_a_model_is_compiled_into_a_file(tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tflgpu"
    ran = tflgpu("compile", scale, "-o", out, *REF)
    assert ran.exit_code == 0, ran.stderr
    assert "operators run on cpu_ref" in ran.stdout
    assert f"{out.stat().st_size:,} bytes" in ran.stdout
    _allocate(scale, out)


def _allocate(model: Path, saved: Path) -> None:
    with (
        tflgpu.GpuDelegate(saved=saved, backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()


def test_flags_reach_the_delegate(tflgpu: Tflgpu, scale: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tflgpu"
    ran = tflgpu("compile", scale, "-o", out, *REF, "--min-nodes-per-partition", 2)
    assert ran.exit_code == 0, ran.stderr
    assert "fewer than 2" in ran.stdout


def test_without_a_name_it_has_the_model_s(
    tflgpu: Tflgpu, scale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tflgpu("compile", scale, *REF).exit_code == 0
    assert (tmp_path / f"{scale.stem}.tflgpu").is_file()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--backend", "cpu"), "nothing to compile"),
        (("--backend", "cpu_ref", "--device", 0), "runs kernels"),
        ((*REF, "-o", "/nowhere/at/all"), "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    tflgpu: Tflgpu, scale: Path, options: tuple[object, ...], says: str
) -> None:
    ran = tflgpu("compile", scale, *options)
    assert ran.exit_code == 2
    assert says in ran.stderr


@pytest.fixture
def kept(scale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with one model in it."""
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    options = DelegateOptions(backend="cpu_ref", device=1)
    provider = device_provider(options, keeping=SavedLocation(folder=default_folder()))
    compiled_on(build_graph(read_model(str(scale)), 0, provider.ops), provider)
    assert provider.opened is not None
    provider.opened.close()
    (entry,) = entries(default_folder())
    yield entry.path


def test_the_cache_is_listed(tflgpu: Tflgpu, kept: Path) -> None:
    ran = tflgpu("cache", "ls")
    assert ran.exit_code == 0, ran.stderr
    assert kept.name[:12] in ran.stdout
    assert "cpu_ref: NumPy kernel interpreter" in ran.stdout
    assert "1 models, " in ran.stdout
    kept.write_bytes(b"hello")
    assert "not usable" in tflgpu("cache", "ls").stdout


def test_what_is_kept_of_a_file_has_its_name(
    tflgpu: Tflgpu, scale: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And another name of the same bytes finds it."""
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    copied = tmp_path / "other.tflite"
    copied.write_bytes(scale.read_bytes())
    where = {"serialization_dir": tmp_path / "cache", "model_token": "a"}
    for path in (scale, copied):
        with (
            GpuDelegate(backend="cpu_ref", device=1, **where) as delegate,
            Interpreter(str(path), experimental_delegates=[delegate]) as interpreter,
        ):
            interpreter.allocate_tensors()
    folder = tmp_path / "cache" / "a" / "models"
    (row,) = [
        r for r in tflgpu("cache", "ls", "--folder", folder).stdout.splitlines() if "cpu_ref: " in r
    ]
    assert row.split()[0] == "scale.tflite"


def test_the_cache_is_verified(tflgpu: Tflgpu, kept: Path) -> None:
    ran = tflgpu("cache", "verify")
    assert ran.exit_code == 0
    assert re.search(
        "^1 models(| and . other entries), 0 of them faulty$", ran.stdout, re.MULTILINE
    )
    data = bytearray(kept.read_bytes())
    data[-1] ^= 1
    kept.write_bytes(data)
    ran = tflgpu("cache", "verify")
    assert ran.exit_code == 1
    assert f"{kept}: " in ran.stdout
    assert "damaged" in ran.stdout


def test_the_cache_is_pruned_and_cleared(tflgpu: Tflgpu, kept: Path) -> None:
    assert "0 models removed" in tflgpu("cache", "prune", "--limit", "1G").stdout
    assert kept.exists()
    assert "1 models removed" in tflgpu("cache", "prune", "--limit", "1k").stdout
    assert not kept.exists()
    assert "0 models removed" in tflgpu("cache", "clear").stdout
    kept.write_bytes(b"whatever it is")
    os.utime(kept)
    assert "1 models removed" in tflgpu("cache", "clear").stdout
    assert not kept.exists()


def test_what_drivers_and_measurements_left_is_in_the_same_cache(
    tflgpu: Tflgpu, kept: Path
) -> None:
    """A store of any backend is seen by the form of its files, and others' files are left alone."""
    store = DiskCache(default_folder().parent / "opencl")
    for key in ("one", "two"):
        store.store(key, key.encode())
    foreign = default_folder().parent / "opencl" / "notes.bin"
    foreign.write_text("not ours")
    assert "2 entries of opencl, 0.0 MiB" in tflgpu("cache", "ls").stdout
    assert "opencl" not in tflgpu("cache", "ls", "--folder", default_folder()).stdout
    path = store.path("two")
    path.write_bytes(path.read_bytes() + b"!")
    ran = tflgpu("cache", "verify")
    assert (ran.exit_code, f"{path}: it is damaged" in ran.stdout) == (1, True)
    store.path("one").rename(path)  # under another's name
    assert tflgpu("cache", "verify").exit_code == 1
    assert "other entries removed" in tflgpu("cache", "clear").stdout
    assert not path.exists()
    assert foreign.exists()


def test_what_is_read_is_young_again(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(0o700)
    store = DiskCache(tmp_path / "store")
    store.store("key", b"content")
    os.utime(store.path("key"), (0, 0))
    assert store.load("key") == b"content"
    assert store.path("key").stat().st_mtime > 0


@pytest.mark.parametrize("limit", ["10x", "-1", "", "1e9"])
def test_a_limit_is_a_size(tflgpu: Tflgpu, limit: str) -> None:
    ran = tflgpu("cache", "prune", "--limit", limit)
    assert ran.exit_code == 2
    assert "no size" in ran.stderr


@pytest.mark.parametrize("command", ["ls", "verify", "prune", "clear"])
def test_a_mistyped_folder_is_not_one_in_order(
    tflgpu: Tflgpu, tmp_path: Path, command: str
) -> None:
    ran = tflgpu("cache", command, "--folder", tmp_path / "absent")
    assert ran.exit_code == 2
    assert "absent: there is no such folder" in ran.stderr
    assert ran.stdout == ""


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wrote the variable or option, no shell looked at it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("TFLGPU_CACHE_DIR", "~/cache")
    assert default_folder() == tmp_path / "home" / "cache" / "models"
    options = DelegateOptions(serialization_dir="~/models", model_token="digits")
    kept = SavedLocation().asked(options).folder
    assert kept == tmp_path / "home" / "models" / "digits" / "models"
