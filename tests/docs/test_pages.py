"""All pages: their programs run and print what they say, their links and files are there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import ROOT, Page, put_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

PATHS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PATHS += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
#: How many programs a page has. Of one that says what they print, that is what they print.
PROGRAMS = {
    "README.md": 2, "docs/accuracy.md": 2, "docs/async.md": 7, "docs/benchmark.md": 1,
    "docs/buffers.md": 4, "docs/check.md": 1,
    "docs/compatibility.md": 4, "docs/control_flow.md": 1, "docs/cpu.md": 4,
    "docs/interpreter.md": 2, "docs/litert.md": 4, "docs/memory.md": 3, "docs/options.md": 3,
    "docs/profile.md": 1, "docs/report.md": 2, "docs/task.md": 2,
}  # fmt: skip
#: What others print, as a pattern, where it is not nothing.
PRINTED = {
    ("README.md", 0): "operators run on",
    # A machine without any GPU driver leaves the model to LiteRT, and nothing is compared.
    ("docs/accuracy.md", 1): r"^\['accurate'\]$|^\[\]$",
    ("docs/compatibility.md", 0): "test plan:",
    ("docs/compatibility.md", 1): "pocl-cpu: PoCL on the CPU",
    ("docs/compatibility.md", 2): "tflite-gpu 7 of 7",
    ("docs/compatibility.md", 3): (
        r"7 of 7 operators run on vulkan \(the GPU of my board, by its profile, f32\)"
    ),
    ("docs/interpreter.md", 0): "7 of 7 operators run on",
    **{("docs/litert.md", number): "run on|all of it runs on" for number in (0, 1)},
}


def with_one_operator(op: str, shape: tuple[int, ...], names: str, *data: float) -> bytes:
    constants = [TensorSpec("c", (), data=np.float32(number)) for number in data]
    given, made = (TensorSpec(name, shape) for name in names.split())
    operator = OperatorSpec(op, {}, range(1 + len(data)), (1 + len(data),))
    tensors = [given, *constants, made]
    return write_model(ModelSpec(tensors, [operator], (0,), operator.outputs))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with the models that pages name."""
    put_model(tmp_path)
    for name, names in (("first", "image features"), ("second", "features result")):
        content = with_one_operator("ADD", (1, 16, 16, 3), names, 1)
        (tmp_path / f"{name}.tflite").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "number"), [(path, number) for path, n in PROGRAMS.items() for number in range(n)]
)
def test_a_program(
    path: str, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], require_backend: Callable[[str], Any],
) -> None:  # fmt: skip
    page = Page(path)
    if "pyopencl" in page.programs[number]:
        require_backend("opencl")
    if (
        path in ("docs/check.md", "docs/cpu.md", "docs/litert.md")
        or "ai_edge_litert" in page.programs[number]
    ):
        pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
    if "delegate_library" in page.programs[number] and sys.platform != "linux":
        pytest.skip("the library for LiteRT's load_delegate is only made on Linux")
    if path == "README.md":  # the shape of most image classifiers
        content = with_one_operator("RELU", (1, 224, 224, 3), "image scores")
        (folder / "model.tflite").write_bytes(content)
    elif path == "docs/cpu.md":
        monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)
    elif path == "docs/compatibility.md":
        # Whatever devices there are, the reference takes the shortest to open.
        monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
        monkeypatch.setenv("TFLGPU_CACHE_DIR", str(folder))
    output, promised = page.run(number, capsys), page.promised(number)
    if promised is None:
        assert re.search(PRINTED.get((path, number), "^$"), output)
    else:
        assert output == promised


@pytest.mark.parametrize("path", PROGRAMS)
def test_every_program_is_looked_at(path: str) -> None:
    assert len(Page(path).programs) == PROGRAMS[path]


@pytest.mark.parametrize("path", PATHS)
def test_links_lead_somewhere(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\(((?!http)[^)#]*)(?:#([^)]*))?\)", text):
        file = (ROOT / path).parent / target if target else ROOT / path
        assert file.exists(), target
        if heading:
            lines = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
            assert heading in slugs, f"{target}#{heading}"
    # Files and folders named in running text.
    for name in re.findall(r"`((?:core|backends|tests|examples|benchmarks|docs)/[\w/.]+)`", text):
        assert "softsign" in name or (ROOT / name).exists(), name
