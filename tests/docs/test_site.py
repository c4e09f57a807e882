"""The site is built without a warning, and every public name and page is in it."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
import tflgpu
from tflgpu.cli.app import COMMANDS

from tests.cli.browser import Browser, chromium
from tests.docs.pages import ROOT

pytest.importorskip("myst_nb", reason="needs tflgpu[docs]")
pytest.importorskip("furo", reason="needs tflgpu[docs]")


def built(root: Path) -> Path:
    """The built pages. Links that lead nowhere and programs that fail are warnings, so errors.

    Sphinx writes pages and pictures beside its sources, so each build has a copy of these.
    """
    for entry in ROOT.iterdir():
        if entry.name != "docs":
            (root / entry.name).symlink_to(entry)
    made_before = shutil.ignore_patterns("_build", "generated", "jupyter_execute", "__pycache__")
    shutil.copytree(ROOT / "docs", root / "docs", ignore=made_before)
    folder = root / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    command += ["docs", str(folder)]
    made = subprocess.run(
        command, check=False, cwd=root, capture_output=True, text=True, timeout=500
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return folder


def every_public_name_is_described(site: Path) -> None:
    page = (site / "generated" / "api.html").read_text(encoding="utf-8")
    missing = [
        name
        for name in tflgpu.__all__
        if f'id="tflgpu.{name}"' not in page
        and f'id="module-{getattr(tflgpu, name).__name__}"' not in page
    ]
    assert not missing


def every_page_is_listed_for_programs(site: Path) -> None:
    listed = (site / "llms.txt").read_text(encoding="utf-8")
    pages = [page.stem for page in (ROOT / "docs").glob("*.md")]
    assert pages
    assert not [page for page in pages if f"]({page}.html): " not in listed]


def the_notebook_was_run(site: Path) -> None:
    page = (site / "first-model.html").read_text(encoding="utf-8")
    assert "looks like a" in page
    assert "cpu_ref" in page


def commands_have_their_options(site: Path) -> None:
    page = (site / "generated" / "command.html").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f">tflgpu {name}<" in page.replace('</span> <span class="pre">', " ")
    assert "--backend" in page


class Links(HTMLParser):
    """What a page names: where its links and pictures lead, and what links may lead to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value is not None:
                self.targets.append(value)
            elif name == "id" and value is not None:
                self.anchors.add(value)


def every_link_leads_somewhere(site: Path) -> None:
    pages = {page: Links(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}
    assert len(pages) > 30
    dead = set()
    for page, links in pages.items():
        for target in links.targets:
            if re.match(r"[a-z]+:|//", target):
                continue
            path, anchor = urldefrag(target.partition("?")[0])
            file = (page.parent / unquote(path)).resolve() if path else page
            known = pages[file].anchors if file in pages else {"", anchor}
            if not file.exists() or unquote(anchor) not in known:
                dead.add((page.relative_to(site).as_posix(), target))
    assert not dead


def the_race_has_plots_and_says_how_it_was_measured(site: Path) -> None:
    race = json.loads((ROOT / "benchmarks/results/all_h200.json").read_text(encoding="utf-8"))
    page = (site / "generated" / "race.html").read_text(encoding="utf-8")
    plots = re.findall(r'<svg xmlns="[^"]*" width=.*?</svg>', page, re.DOTALL)
    assert len(plots) == len(race["models"])
    for plot, contestants in zip(plots, race["models"].values(), strict=True):
        assert plot.count("<rect") >= 3
        assert f"{contestants[0]['median_ms']:.3f} ms" in plot
    assert race["started"][:10] in page
    assert all(version in page for version in race["versions"].values())


def reports_and_pictures_are_shown(site: Path) -> None:
    page = (site / "generated" / "shown.html").read_text(encoding="utf-8")
    frames = re.findall(r'<iframe src="([^"]*)"', page)
    texts = [(site / "generated" / frame).read_text(encoding="utf-8") for frame in frames]
    assert len(texts) == 3
    assert "Where the time goes" in texts[0]
    assert "<svg" in texts[0]
    assert "agrees with" in texts[1]
    assert "Adreno 740" in texts[2]
    names = re.findall(r'<img[^>]*src="([^"]*)"', page)
    pictures = [site / "generated" / name for name in names if "/_images/" in name]
    assert len(pictures) == 3
    assert all(picture.stat().st_size > 500 for picture in pictures)


def a_browser_finds_a_page(site: Path) -> None:
    with contextlib.suppress(pytest.skip.Exception):
        chromium()
        _search(site, Browser(site.parent / "chromium"))


def _search(site: Path, browser: Browser) -> None:
    try:
        browser.open(f"{site.as_uri()}/search.html?q=accuracy_guard")
        first = browser.wait_for("document.querySelector('ul.search li a')?.href")
        assert first.startswith(site.as_uri())
        browser.open(first)  # a click leaves what is asked next to a page that is on its way out
        assert browser.wait_for("document.querySelector('article h1')?.innerText")
        assert browser.wait_for("document.body.innerText.includes('accuracy_guard')")
    finally:
        browser.close()


#: One test's, since processes that share the tests of a file would build the site each, which takes
#: 20 seconds.
CHECKS = (
    every_public_name_is_described,
    every_page_is_listed_for_programs,
    the_notebook_was_run,
    commands_have_their_options,
    every_link_leads_somewhere,
    the_race_has_plots_and_says_how_it_was_measured,
    reports_and_pictures_are_shown,
    a_browser_finds_a_page,
)


def test_the_site(tmp_path: Path) -> None:
    site, wrong = built(tmp_path), []
    for check in CHECKS:
        try:
            check(site)
        except AssertionError as error:
            wrong.append(f"{check.__name__}: {error}")
    assert not wrong, "\n".join(wrong)
