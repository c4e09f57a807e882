"""Pages of the site that come from the code: names, the command line, results of benchmarks."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import shutil
from pathlib import Path
from typing import Any

import click
import pictures
import tflgpu
import tflgpu.sdk
import typer
from tflgpu.cli.app import make_app

ROOT = Path(__file__).parents[1]
#: A link to a file of the repository that is no page of this folder.
_OUTSIDE = re.compile(r"\[([^]]*)\]\((?:\.\./)+([^)#]+)(#[^)]*)?\)")
_ERRORS = "errors"


def write(folder: Path) -> None:
    """Write all pages into a folder, which is theirs alone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "api.md").write_text(_api(), encoding="utf-8")
    (folder / "sdk.md").write_text(_sdk(), encoding="utf-8")
    (folder / "command.md").write_text(_command(), encoding="utf-8")
    (folder / "race.md").write_text(pictures.race_page(), encoding="utf-8")
    shown = pictures.write_shown(folder / "shown", folder / "static")
    (folder / "shown.md").write_text(shown, encoding="utf-8")
    results = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
    for page in results:
        shutil.copy(page, folder / page.name)
    for page in ("CHANGELOG", "CONTRIBUTING", "SECURITY"):
        shutil.copy(ROOT / f"{page}.md", folder / f"{page.lower()}.md")
    listed = "\n".join(page.stem for page in results)
    (folder / "results.md").write_text(
        "# Measurements\n\nEach page says which command made it, on which machine, with which "
        "versions and when.\n\n" + _tree(listed),
        encoding="utf-8",
    )


def redirect(_app: Any, docname: str, source: list[str]) -> None:
    """Links to files of the repository lead to their copies among the pages, or to the files."""
    up = "../" * docname.count("/")

    def target(found: re.Match[str]) -> str:
        text, path, anchor = found[1], Path(found[2]), found[3] or ""
        if path.parts[0] == "docs":
            return f"[{text}]({up}{Path(*path.parts[1:]).as_posix()}{anchor})"
        name = path.name if "results" in path.parts else path.name.lower()
        if path.suffix == ".md" and (ROOT / "docs" / "generated" / name).exists():
            return f"[{text}]({up}generated/{name}{anchor})"
        return f"[{text}]({up}../{path.as_posix()})" if (ROOT / path).is_file() else text

    text = source[0]
    if docname.startswith("generated/"):  # copies of pages that lie elsewhere
        text = re.sub(r"\]\((?=[A-Za-z./]*(?:/|LICENSE|CHANGELOG))(?!\.\.)", "](../", text)
    source[0] = _OUTSIDE.sub(target, text).replace("```mermaid", "```text")


def mark_code(
    _app: Any, _kind: str, _name: str, _value: Any, _options: Any, lines: list[str]
) -> None:
    """Indented lines of a docstring are code, but for those under a heading like ``Args:``."""
    made: list[str] = []
    before = ""
    for line in lines:
        starts = line.startswith("    ") and made and not made[-1].strip()
        if starts and before and not before.startswith(" "):
            made += [".. code-block:: text", ""]
        made.append(line)
        before = line if line.strip() else before
    lines[:] = made


def write_llms(app: Any, error: Exception | None) -> None:
    """`llms.txt`: every page with its title and what it is about, for programs that read."""
    if error is not None or app.builder.format != "html":
        return
    lines = ["# tflgpu", "", "> Run TensorFlow Lite models on any GPU, from Python.", ""]
    for name in sorted(app.env.found_docs):
        title = app.env.titles[name].astext()
        text = Path(app.env.doc2path(name)).read_text(encoding="utf-8")
        lines.append(f"- [{title}]({name}.html): {_first_sentence(text)}")
    Path(app.outdir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _first_sentence(text: str) -> str:
    """The first sentence of a page's first paragraph."""
    prose = re.sub(r"^(```|    ).*?(^```$|\n(?=\S))", "", text, flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", prose):
        plain = " ".join(paragraph.split())
        if plain and plain[0].isalpha():
            return re.split(r"(?<=[.:]) ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", plain))[0]
    return ""


def _tree(pages: str) -> str:
    return f"```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"


def _directive(kind: str, name: str, *options: str) -> str:
    lines = [f".. {kind}:: {name}", *(f"   :{option}:" for option in options)]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```\n"


def _described(module: str, name: str) -> str:
    """The directive for a public name."""
    value = getattr(importlib.import_module(module), name)
    full = f"{module}.{name}"
    if inspect.ismodule(value):
        members = () if name == _ERRORS else ("members",)
        return _directive("automodule", value.__name__, *members)
    if inspect.isclass(value):
        members = () if issubclass(value, Exception) else ("members",)
        return _directive("autoclass", full, *members)
    if callable(value) and not isinstance(value, type):
        return _directive("autofunction", full)
    return _directive("autodata", full, "no-value")


def _api() -> str:
    """Every name of `tflgpu.__all__`: errors last."""
    names = [n for n in tflgpu.__all__ if n != _ERRORS]
    errors = [n for n in names if n.endswith("Error")]
    found = ["# Reference: `import tflgpu`\n", (tflgpu.__doc__ or "").split("\n\n", 1)[0] + "\n"]
    ordered = (*(n for n in names if n not in errors), _ERRORS, *errors)
    found += [f"## `{name}`\n\n{_described('tflgpu', name)}" for name in ordered]
    return "\n".join(found)


def _sdk() -> str:
    """What authors of plugins import."""
    found = ["# Reference: `tflgpu.sdk`\n", f"{(tflgpu.sdk.__doc__ or '').strip()}\n"]
    for module in pkgutil.iter_modules(tflgpu.sdk.__path__):
        name = f"tflgpu.sdk.{module.name}"
        made = importlib.import_module(name)
        found.append(f"## `{name}`\n\n{(made.__doc__ or '').strip()}\n")
        for public in made.__all__:
            value = getattr(made, public)
            line = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
            plain = inspect.isclass(value) or callable(value)
            found.append(f"* `{public}`" + (f": {line}" if plain and line else ""))
        found.append("")
    return "\n".join(found)


def _command() -> str:
    """The help of every command, as a terminal of 100 columns shows it without boxes."""
    found = ["# Reference: the command `tflgpu`\n"]
    _add_command(found, typer.main.get_command(make_app()), "tflgpu", 2)
    return "\n".join(found)


def _add_command(found: list[str], command: Any, path: str, level: int) -> None:
    context = click.Context(command, info_name=path)
    found.append(f"{'#' * level} `{path}`\n\n{(command.help or '').strip()}\n")
    rows = [p.get_help_record(context) for p in command.params]
    shown = [row for row in rows if row is not None and row[0] != "--help"]
    if shown:
        found.append("| | |\n|---|---|")
        found += [f"| `{_cell(a)}` | {_cell(b).replace('<', '&lt;')} |" for a, b in shown]
        found.append("")
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            _add_command(found, command.get_command(context, name), f"{path} {name}", level + 1)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
