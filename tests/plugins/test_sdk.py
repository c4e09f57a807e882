"""`tflgpu.sdk`: all that plugins import, and the versions of it that they state."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from tflgpu import sdk
from tflgpu.plugins.registry import Registry

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "examples/custom_op",
    "examples/backend",
    "examples/kernels",
    "tests/plugins/tflgpu-example-op",
    "tests/plugins/tflgpu-example-backend",
)
PAGES = ("docs/hooks.md", "docs/tutorial-op.md", "docs/tutorial-backend.md", "CONTRIBUTING.md")
PARTS = ("plugin", "ops", "kernels", "passes", "printers", "backend")


def code_for_authors() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        yield from ((f"{page} {i}", block) for i, block in enumerate(blocks))


CODE = dict(code_for_authors())


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Modules of tflgpu and names that are imported from them."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tflgpu":
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((a.name, "") for a in node.names if a.name.split(".")[0] == "tflgpu")


@pytest.mark.parametrize("place", CODE)
def test_authors_import_from_the_sdk_only(place: str) -> None:
    for module, name in imported(CODE[place]):
        assert module in {f"tflgpu.sdk.{part}" for part in PARTS}, f"{place} imports {module}"
        assert name in importlib.import_module(module).__all__, f"{module} does not offer {name}"


def test_authors_code_is_found() -> None:
    assert sum(bool(list(imported(code))) for code in CODE.values()) > 20


@pytest.mark.parametrize("part", PARTS)
def test_all_is_offered_and_nothing_else(part: str) -> None:
    module = importlib.import_module(f"tflgpu.sdk.{part}")
    offered = {n for n in vars(module) if n.isidentifier() and n[0] != "_"}
    assert offered - {"annotations"} == set(module.__all__)


def test_hooks_bring_no_kernels() -> None:
    code = (
        "import sys, tflgpu.sdk.plugin\n"
        "heavy = ('tflgpu.kernels', 'tflgpu.ops.base', 'tflgpu.language.builder', "
        "'tflgpu.passes')\nassert not [m for m in sys.modules if m.startswith(heavy)], "
        "sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def plugin(stated: object) -> types.ModuleType:
    """The plugin of examples/backend's hooks, with a range of versions."""
    module = types.ModuleType("stating")
    code = (ROOT / "examples/backend/tflgpu_minimal/plugin.py").read_text(encoding="utf-8")
    exec(compile(code, "plugin.py", "exec"), vars(module))
    module.TFLGPU_SDK = stated
    return module


def failure(stated: object) -> str:
    (found,) = Registry.of({"stating": plugin(stated)}, distribution="outsider").failures
    return str(found)


@pytest.mark.parametrize("stated", [None, ">=1.0,<2", "~=1.0", f"=={sdk.VERSION}", "<99"])
def test_a_plugin_for_this_sdk_is_used(stated: object) -> None:
    found = Registry.of({"stating": plugin(stated)})
    assert found.failures == ()
    assert "minimal" in found.backends


@pytest.mark.parametrize("stated", ["<1.0", ">=2,<3", "==0.9"])
def test_a_plugin_for_another_sdk_is_left_out(stated: str) -> None:
    text = failure(stated)
    assert f"it was written for tflgpu.sdk {stated}, and this tflgpu has {sdk.VERSION}" in text
    assert "install a version of outsider for" in text


@pytest.mark.parametrize("stated", ["one", "", "  ", "1.0", 1.0, b">=1", [">=1.0"], object()])
def test_a_range_that_is_none_is_named(stated: object) -> None:
    text = failure(stated)
    assert "TFLGPU_SDK is " in text
    assert "which is no range of versions; write it as" in text


# The tutorials show the example packages as they are: every file, word for word.


TUTORIALS_PAGES = {
    "tutorial-backend.md": "tflgpu-example-backend",
    "tutorial-op.md": "tflgpu-example-op",
}
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)


@pytest.mark.parametrize("page", TUTORIALS_PAGES)
def test_files_are_shown_as_they_are(page: str) -> None:
    shown = dict(_FILE.findall((ROOT / "docs" / page).read_text(encoding="utf-8")))
    for path, text in shown.items():
        assert text == (ROOT / path).read_text(encoding="utf-8"), f"{page} shows an old {path}"
    package = ROOT / "tests" / "plugins" / TUTORIALS_PAGES[page]
    files = {
        p.relative_to(ROOT).as_posix()
        for p in package.rglob("*")
        if p.suffix in (".py", ".toml", ".txt") and p.name != "__init__.py"
    }
    assert files == set(shown), f"{page} shows every file of the package"


@pytest.mark.parametrize("page", TUTORIALS_PAGES)
def test_the_commands_install_what_they_use(page: str) -> None:
    """The suite needs pytest and hypothesis, which are in an extra."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (block,) = [b for b in text.split("```") if "pytest --pyargs tflgpu.conformance" in b]
    assert block.split("\n")[1] == f'pip install ./{TUTORIALS_PAGES[page]} "tflgpu[conformance]"'
