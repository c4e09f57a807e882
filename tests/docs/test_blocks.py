"""Every block of every page is run, or it says here by which test, or why not."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tflgpu.cli.app import make_app
from tflgpu.errors import UnsupportedError
from tflgpu.ops.facets import Composed, FileForm, Reading

from tests.docs.pages import ROOT, Page, put_language_model, put_model
from tests.docs.test_pages import PATHS, PROGRAMS
from tests.docs.test_pages import (
    test_what_is_saved_is_there_for_the_next_program as saved_test,
)

#: Pages whose programs this file runs, or holds to the source that they show. Other tests name the
#: pages whose programs they run.
HERE = ("docs/composites.md", "docs/design.md")
#: Beginnings of lines in `sh` blocks that are not run here.
NOT_HERE = {
    "python3 -m venv": "README's are run by .ci/run, by the comment above them",
    ".venv/bin/": "parts of .ci/run",
    ".ci/run": "is what runs the tests",
    "pip install": "the extras are installed by .ci/run",
    "model-explorer": "tests/cli/test_model_explorer.py opens it with these arguments",
}
#: Blocks that are no program: what one prints, a sketch, a file that a tutorial shows.
NO_PROGRAM = {"", "text", "toml", "json", "mermaid"}
#: Blocks that are indented, and hold code.
_INDENTED = re.compile(r"\n\n((?:    \S.*\n)+)")

COMPOSITES, DESIGN = Page("docs/composites.md"), Page("docs/design.md")


@cache
def other_sources() -> list[str]:
    """The sources of tests that may run the programs of pages."""
    own = {"test_blocks.py", "test_pages.py"}
    files = [p for p in (ROOT / "tests").rglob("*.py") if p.name not in own]
    # Only this one of the file that is for all pages: its programs follow one another.
    saved = inspect.getsource(saved_test)
    return [*(p.read_text(encoding="utf-8") for p in files), saved.replace("SAVED", "saved.md")]


@pytest.mark.parametrize("path", PATHS)
def test_every_program_is_run_somewhere(path: str) -> None:
    page = (ROOT / path).read_text(encoding="utf-8")
    kinds = set(re.findall(r"^```(\S*)\n.*?^```$", page, re.DOTALL | re.MULTILINE))
    assert kinds <= NO_PROGRAM | {"python", "sh", "{code-cell}", "{toctree}"}, kinds
    if "```python\n" not in page and "{code-cell}" not in page:
        assert path not in PROGRAMS
    elif path not in PROGRAMS and path not in HERE:
        name = re.compile(rf"\b{Path(path).stem}\.(md|html)\b")
        assert any(name.search(text) for text in other_sources())


def test_what_is_indented_is_named() -> None:
    """Code in such blocks is run by nothing: there is one, for CUDA, which the page says."""
    code = {}
    for path in PATHS:
        text = (ROOT / path).read_text(encoding="utf-8")
        blocks = _INDENTED.findall(
            re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        )
        code[path] = [block for block in blocks if "(" in block and "=" in block]
    assert [path for path, blocks in code.items() if blocks] == ["docs/buffers.md"]
    (block,) = code["docs/buffers.md"]
    assert "allocate_cuda" in block
    assert "**Not yet measured on a GPU.**" in Page("docs/buffers.md").text


def commands(path: str) -> list[str]:
    """The lines of a page's `sh` blocks that call tflgpu."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.partition("#")[0].strip() for line in "".join(blocks).splitlines()]
    skipped = tuple(NOT_HERE)
    return [line for line in lines if line and not line.startswith(skipped)]


WITH_COMMANDS = [path for path in PATHS if commands(path)]


def test_pages_with_commands_are_found() -> None:
    assert {"README.md", "docs/check.md", "docs/profile.md", "docs/task.md"} <= {*WITH_COMMANDS}
    named = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in PATHS)
    assert all(f"\n{beginning}" in named for beginning in NOT_HERE)


@pytest.mark.parametrize("path", WITH_COMMANDS)
def test_the_commands_of_a_page(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """In their order, in a folder with what `tflgpu demo --save .` writes. Any device will do."""
    put_model(tmp_path)
    for name in ("mobilenet.tflite", "cat.jpg"):  # of the reader's own
        shutil.copy(tmp_path / ("digit.png" if name[0] == "c" else "model.tflite"), tmp_path / name)
    (tmp_path / "labels.txt").write_text("".join(f"a {n}\n" for n in range(10)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    for line in commands(path):
        # The kernel interpreter, which takes half a second for a run, but where many runs are made.
        device = "cpu_ref" if "benchmark" in line else "cpu_ref --device 1"
        name, *given = shlex.split(re.sub(r"\b(opencl|vulkan)\b", device, line))
        if name == "python":  # a program of the repository, on what a command wrote
            found = subprocess.run(
                [sys.executable, *given], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert found.returncode == 0, found.stderr
            continue
        assert name == "tflgpu", line
        given, into = (given[:-2], given[-1]) if ">" in given else (given, None)
        capsys.readouterr()
        if given[0] == "benchmark":
            pytest.importorskip("ai_edge_litert")
            given += ["--duration", "0.01", "--warm-up", "0.01", "--no-starts"]
            given = [word.replace("--all", "--backend=cpu_ref") for word in given]
        if given[0] == "profile":
            given += ["--runs", "1"]
        if given[0] == "generate":
            put_language_model(tmp_path)
            given += ["--backend", "cpu_ref"]
        # The demo's operators all run on every device.
        assert not make_app()(given, standalone_mode=False), line
        if into is not None:
            (tmp_path / into).write_text(capsys.readouterr().out)
    made = {p.name for p in tmp_path.iterdir()}
    assert {"docs/saved.md": {"model.tflgpu"}, "README.md": {"seen.png"}}.get(path, set()) <= made
    if path == "docs/profile.md":
        assert {"profile.html", "trace.json", "times.json"} <= made


def test_the_composite_of_the_page_is_read() -> None:
    names: dict[str, Any] = {
        "UnsupportedError": UnsupportedError, "Reading": Reading, "Composed": Composed,
        "FileForm": FileForm, "Times": lambda by: ("times", by),
        "OpDef": lambda name, *_, file: (name, file),
    }  # fmt: skip
    (program,) = COMPOSITES.programs
    exec(compile(program, COMPOSITES.path, "exec"), names)
    ((name, form),) = names["OPS"]
    assert name == "Times"
    (composed,) = form.composed
    assert composed.names == ("my.times",)
    fields = SimpleNamespace(values={"by": 3}, number=lambda field: {"by": 3}[field])
    (reading,) = composed.read(fields, [np.zeros(1)])
    assert reading.attributes == ("times", 3)
    with pytest.raises(UnsupportedError, match="by what"):
        composed.read(SimpleNamespace(values={}), [])


def test_the_kernel_of_the_page_on_design_is_one_that_a_test_runs() -> None:
    (program,) = DESIGN.programs
    test = (ROOT / "tests/kernels/test_gpu_special.py").read_text(encoding="utf-8")
    assert "".join(f"    {line}\n" for line in program.splitlines()) in test
