"""What is installed is what `importlib.metadata` says, found without importing it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tflgpu.plugins import installed


def distribution(folder: Path, name: str, version: str, points: str = "") -> Path:
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: of the text\n"
    (place / "METADATA").write_text(head, encoding="utf-8")
    if points:
        (place / "entry_points.txt").write_text(points, encoding="utf-8")
    return place


def told(points: Any) -> list[tuple[str, str, str]]:
    return sorted((each.name, each.value, each.dist.name) for each in points)


@pytest.mark.parametrize("group", ["tflgpu", "console_scripts", "pytest11", "there is none"])
def test_the_entry_points_here(group: str) -> None:
    assert told(installed.entry_points(group)) == told(metadata.entry_points(group=group))


def test_the_versions_here() -> None:
    for each in metadata.distributions():
        assert installed.version(each.name) == metadata.version(each.name)
    assert installed.version("tflgpu-never-heard-of") is None


def test_of_two_with_one_name_the_first_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (
        "[other]\na = os\n[tflgpu.toy]\n# one\nb = os.path : join [more]\nc = "
        "json\n[last]\nd = os\n"
    )
    for number, place in enumerate(("one", "two")):
        (tmp_path / place).mkdir()
        distribution(tmp_path / place, "Toy-Package", f"{number}.5", points)
        monkeypatch.syspath_prepend(tmp_path / place)
    assert installed.version("toy_package") == metadata.version("toy_package") == "1.5"
    found = installed.entry_points("tflgpu.toy")
    assert told(found) == told(metadata.entry_points(group="tflgpu.toy"))
    assert [(each.name, each.dist.version) for each in found] == [("b", "1.5"), ("c", "1.5")]
    import json
    import os.path

    assert [each.load() for each in found] == [os.path.join, json]


def test_what_names_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "toy", "1", "[tflgpu.toy]\na = not a module\nb = os:no_such\n")
    monkeypatch.syspath_prepend(tmp_path)
    first, second = installed.entry_points("tflgpu.toy")
    with pytest.raises(ValueError, match="'not a module' is no module"):
        first.load()
    with pytest.raises(AttributeError, match="no_such"):
        second.load()


def test_others_that_know_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = distribution(tmp_path, "toy", "1", "[tflgpu.toy]\na = os\n")

    class Finder:
        @staticmethod
        def find_spec(*_: Any) -> None: ...

        @staticmethod
        def find_distributions(context: metadata.DistributionFinder.Context) -> Any:
            if context.name in (None, "toy"):
                yield metadata.PathDistribution(place)

    assert installed.version("toy") is None
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert installed.version("toy") == "1"
    assert told(installed.entry_points("tflgpu.toy")) == [("a", "os", "toy")]


def test_a_file_in_the_place_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "old.egg-info").write_text("Name: old\nVersion: 7\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed.version("old") == "7"


def test_the_e_mail_package_is_not_imported() -> None:
    code = (
        "import sys; from tflgpu.plugins import installed; installed.entry_points('tflgpu'); "
        "installed.version('numpy'); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"email", "importlib.metadata"}.isdisjoint(done.stdout.split())
    assert "tflgpu.plugins.installed" in done.stdout.split()
