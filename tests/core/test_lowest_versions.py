"""The pins of `.ci/lowest.py`, and the packages' type markers."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_every_package_is_typed() -> None:
    packages = [p.parent for p in ROOT.glob("backends/*/tflgpu_*/__init__.py")]
    assert len(packages) >= 4
    for package in [*packages, ROOT / "core" / "tflgpu"]:
        assert (package / "py.typed").is_file(), f"{package.name} has no py.typed"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_every_requirement_has_a_lowest_version() -> None:
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    pins = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"](project, ["all"])
    wanted = set(project["dependencies"])
    for extra in ("opencl", "vulkan", "wgpu", "litert", "image"):
        wanted |= set(project["optional-dependencies"][extra])
    assert {pin.replace("==", ">=") for pin in pins} == wanted


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_a_requirement_without_a_bound_is_told() -> None:
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    project = {"name": "x", "dependencies": ["attrs"], "optional-dependencies": {}}
    with pytest.raises(SystemExit, match="attrs: no lower bound"):
        lowest(project, [])


def test_the_wheels_check_finds_what_lacks_its_marker() -> None:
    untyped = runpy.run_path(str(ROOT / ".ci" / "typed.py"))["untyped"]
    names = ["a/__init__.py", "a/py.typed", "b/__init__.py", "b/c/__init__.py"]
    assert untyped(names) == ["b"]
