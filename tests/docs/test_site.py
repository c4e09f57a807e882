"""The site is built without a warning, and every public name and page is in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tflgpu
from tflgpu.cli.app import COMMANDS

from tests.docs.pages import ROOT

pytest.importorskip("myst_nb", reason="needs tflgpu[docs]")
pytest.importorskip("furo", reason="needs tflgpu[docs]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. Links that lead nowhere and programs that fail are warnings, so errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["docs", str(folder)]
    made = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


def test_every_public_name_is_described(site: Path) -> None:
    page = (site / "generated" / "api.html").read_text(encoding="utf-8")
    missing = [
        name
        for name in tflgpu.__all__
        if f'id="tflgpu.{name}"' not in page
        and f'id="module-{getattr(tflgpu, name).__name__}"' not in page
    ]
    assert not missing


def test_every_page_is_listed_for_programs(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    pages = [page.stem for page in (ROOT / "docs").glob("*.md")]
    assert pages
    assert not [page for page in pages if f"]({page}.html): " not in listed]


def test_the_notebook_was_run(site: Path) -> None:
    page = (site / "first-model.html").read_text(encoding="utf-8")
    assert "looks like a" in page
    assert "cpu_ref" in page


def test_commands_have_their_options(site: Path) -> None:
    page = (site / "generated" / "command.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f">tflgpu {name}<" in page.replace('</span> <span class="pre">', " ")
    assert "--backend" in page
