"""The pins of `.ci/lowest.py`, and the packages' type markers."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_every_package_is_typed() -> None:
    packages = [p.parent for p in ROOT.glob("backends/*/tflgpu_*/__init__.py")]
    assert len(packages) >= 4
    for package in [*packages, ROOT / "core" / "tflgpu"]:
        assert (package / "py.typed").is_file(), f"{package.name} has no py.typed"


def lowest(requirements: Sequence[str], extras: Sequence[str]) -> list[str]:
    """What `.ci/lowest.py` makes of them."""
    made: list[str] = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"](
        requirements, extras
    )
    return made


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_every_requirement_has_a_lowest_version() -> None:
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    lines = [f"{r}; extra == '{extra}'" for extra, listed in extras.items() for r in listed]
    pins = lowest([*project["dependencies"], *lines], ["all"])
    wanted = {line.partition(";")[0] for line in project["dependencies"]}
    for extra in ("opencl", "vulkan", "wgpu", "litert", "image"):
        wanted |= {line.partition(",")[0] for line in extras[extra]}
    assert {pin.replace("==", ">=") for pin in pins} == wanted


def test_pins_of_requirements_as_pip_sees_them() -> None:
    requirements = [
        "numpy>=1.26.0",
        "attrs<26,>=23.1",
        'typing-extensions>=4.0; python_version < "3.11"',
        'tflgpu[two,three]; extra == "one"',
        "scipy [fast] >=1.1 ; extra == 'two'",
        'pillow>=10.0; (python_version < "4") and extra == "three"',
        "unbound; extra == 'four'",
    ]
    always = ["attrs==23.1", "numpy==1.26.0", "typing-extensions==4.0"]
    assert lowest(requirements, []) == always
    assert lowest(requirements, ["two"]) == sorted([*always, "scipy==1.1"])
    assert lowest(requirements, ["one"]) == sorted([*always, "scipy==1.1", "pillow==10.0"])
    with pytest.raises(SystemExit, match="unbound; extra == 'four': no lower bound"):
        lowest(requirements, ["four"])
    with pytest.raises(SystemExit, match="no extra five"):
        lowest(requirements, ["five"])


def test_it_runs_where_the_package_is_installed() -> None:
    """On every version of Python that the project supports."""
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "lowest.py"), "all"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr
    pins = dict(line.split("==") for line in done.stdout.splitlines())
    assert {"numpy", "attrs", "pyopencl", "vulkan", "wgpu"} <= pins.keys()


def test_the_wheels_check_finds_what_lacks_its_marker() -> None:
    untyped = runpy.run_path(str(ROOT / ".ci" / "typed.py"))["untyped"]
    names = ["a/__init__.py", "a/py.typed", "b/__init__.py", "b/c/__init__.py"]
    assert untyped(names) == ["b"]
