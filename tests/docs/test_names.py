"""Names of files, modules and identifiers that pages put into code are those of the source."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from pages import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Where a page's `folder/file.py` may begin: the checkout, the core, a backend's package.
_ROOTS = (ROOT, ROOT / "core", ROOT / "core/tflgpu", *(ROOT / "backends").glob("*/tflgpu_*"))
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)*(?:\.py|/)")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
#: Names of other libraries.
_OTHERS = frozenset({"DeprecationWarning", "tf.lookup.StaticHashTable", "tf.map_fn"})


@cache
def words() -> frozenset[str]:
    """Every word in the repository's sources, this file aside."""
    folders = ("core", "backends", "examples", "tests", "benchmarks")
    files = [p for f in folders for p in (ROOT / f).rglob("*.py") if p != Path(__file__)]
    files += [ROOT / "pyproject.toml", ROOT / ".ci/run", *(ROOT / "core").rglob("*.toml")]
    texts = (p.read_text(encoding="utf-8") for p in files)
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def missing(code: str) -> bool:
    """Whether a page's `code` names a file, a module or an identifier that there is not."""
    if _FILE.fullmatch(code) and "/" in code:
        return "softsign" not in code and not any((root / code).exists() for root in _ROOTS)
    if not _NAME.fullmatch(code) or code in _OTHERS:
        return False
    if re.fullmatch(r"[A-Z0-9_]+", code):
        return False  # an operator, a format or a variable of the environment
    return not words().issuperset(code.split("."))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_what_pages_name_is_there(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    codes = [code.removesuffix("()") for code in re.findall(r"`([^`\n]+)`", text)]
    assert codes or path.stem == "nan"
    assert not [code for code in codes if missing(code)]
