"""What a release takes: one version everywhere, workflows whose files are there, a policy."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = re.search(r"^## (\S+)", text, re.MULTILINE)
    assert heading is not None
    assert heading[1] == PROJECT["version"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_asks_for_extras_and_files_that_there_are(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    extras = {name for group in re.findall(r"\[([a-z,]+)\]\"", text) for name in group.split(",")}
    assert extras <= PROJECT["optional-dependencies"].keys()
    for file in re.findall(r"run: (\.\S+)", text):
        assert (ROOT / file).is_file()
    assert "permissions:\n  contents: read" in text


def test_only_publishing_may_ask_for_an_identity() -> None:
    assert len(WORKFLOWS) == 2
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    assert ["id-token" in text for text in texts] == [False, True]
    assert not any("secrets." in text or "password" in text for text in texts)


def test_pythons_that_are_tried_are_those_of_the_project() -> None:
    listed = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert f"[{', '.join(map(chr(34).__add__, (v + chr(34) for v in listed)))}]" in (
        WORKFLOWS[0].read_text(encoding="utf-8")
    )


def test_what_the_policy_calls_public_is_there() -> None:
    text = (ROOT / "docs/policy.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(tflgpu[\w.]*)`", text):
        module, _, last = name.rpartition(".")
        try:
            import_module(name)
        except ImportError:
            assert hasattr(import_module(module), last)
