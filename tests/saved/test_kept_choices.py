"""Measured choices among kernels: whose they are, how they are kept, and a release's tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import tflgpu_cpu_ref.device
from tflgpu.cache.disk_cache import DiskCache
from tflgpu.contract.device import DeviceInfo
from tflgpu.kernels import matrix_tiles, matrix_window, tiles
from tflgpu.lowering.choices import name_of
from tflgpu.saved import kept_choices
from tflgpu.saved.kept_choices import KeptChoice, KeptChoices, table_name

CAPS = tflgpu_cpu_ref.device.CAPS


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))


def kept_on(index: int = 1, driver: str = "", **caps: Any) -> KeptChoices:
    info = DeviceInfo("cpu_ref", index, "toy GPU", driver=driver)
    return KeptChoices(info, attrs.evolve(CAPS, **caps), [])


ONE = {"a problem": KeptChoice("fast one", "usual one", 6, 2.0, 1.0)}


def test_choices_are_those_of_a_device_and_its_driver() -> None:
    kept_on().add(ONE)
    assert kept_on().known == kept_on(index=2).known == ONE
    assert kept_on().choices().names == {"a problem": "fast one"}
    assert kept_on().digest == kept_on().choices().digest != ""
    for other in (kept_on(driver="2"), kept_on(compute_units=5)):
        assert (other.known, other.digest) == ({}, "")


def test_choices_of_two_processes_come_together() -> None:
    first, second = kept_on(), kept_on()
    first.add(ONE)
    second.add({"another": ONE["a problem"]})
    assert set(kept_on().known) == {"a problem", "another"}


_NO_NAME = {"name": 1, "predicted": "usual one", "timed": 6, "before": 2.0, "after": 1.0}
_NO_TIME = {"name": "fast one", "predicted": "usual one", "timed": 6, "before": "long", "after": 1}


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"choices": {"a": {"name": "one"}}}', '{"choices": {"a": [1]}}'),
        *(json.dumps({"choices": {"a": row}}) for row in (_NO_NAME, _NO_TIME)),
    ],
)
def test_a_file_without_choices_is_dropped(
    content: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tflgpu.cache.private_folder._warned", set(), raising=False)
    kept_on().add(ONE)
    (path,) = Path(kept_choices.cache_folder("choices")).glob("*.json")
    disk = DiskCache(path.parent, ".json")
    disk.store(path.stem, content.encode())
    assert kept_on().known == {}
    assert not path.exists()
    assert "it has no choices" in caplog.text


def test_a_damaged_file_is_dropped() -> None:
    kept_on().add(ONE)
    (path,) = Path(kept_choices.cache_folder("choices")).glob("*.json")
    path.write_bytes(path.read_bytes()[:-3])
    assert kept_on().known == {}


def test_tables_of_the_release_are_in_order() -> None:
    known = {name_of(tile) for tile in tiles.TILES}
    ways = (matrix_tiles.MatrixTile, matrix_window.WindowTile)
    fields = {len(attrs.fields(way)) for way in ways}
    for path in kept_choices._TABLES.glob("*.json"):
        table = json.loads(path.read_text(encoding="utf-8"))
        device = DeviceInfo(table["backend"], 0, table["device"])
        assert path.name == f"{table_name(device)}.json"
        for key, row in table["choices"].items():
            kind, ((predicted, name),) = key.partition(" ")[0], row.items()
            assert name != predicted
            assert kind != "blocked" or name in known, key
            assert kind != "matrix" or len(name.split("x")) in fields, key
