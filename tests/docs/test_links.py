"""Links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(((?!http)[^)#]*)(?:#([^)]*))?\)", text):
        file = path.parent / target if target else path
        assert file.exists(), target
        if heading:
            lines = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
            assert heading in slugs, f"{target}#{heading}"
