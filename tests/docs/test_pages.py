"""All pages: their programs run and print what they say, their links and files are there."""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import pytest
import tflgpu
from tflgpu.compat.table import SHIPPED
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import OperatorReport, PartitionReport
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import OTHER_NAMES, DelegateOptions, option_list
from tflgpu.options.page import renewed
from tflgpu.profiles import every

from tests.docs.pages import ROOT, Page, put_language_model, put_model
from tests.interpreter.cache_models import language_model

PATHS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
PATHS += sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
#: How many programs a page has. Of one that says what they print, that is what they print.
PROGRAMS = {
    "README.md": 2, "docs/accuracy.md": 2, "docs/async.md": 7, "docs/benchmark.md": 1,
    "docs/buffers.md": 4, "docs/check.md": 1, "docs/compiled_model.md": 2,
    "docs/compatibility.md": 4, "docs/control_flow.md": 1, "docs/cpu.md": 4, "docs/generate.md": 1,
    "docs/interpreter.md": 2, "docs/litert.md": 4, "docs/memory.md": 3, "docs/options.md": 4,
    "docs/profile.md": 1, "docs/report.md": 2, "docs/task.md": 2,
    "docs/troubleshooting.md": 1, "docs/tuning.md": 1,
}  # fmt: skip
#: What others print, as a pattern, where it is not nothing.
PRINTED = {
    ("README.md", 0): "7 of 7 operators run on",
    # A machine without any GPU driver leaves the model to LiteRT, and nothing is compared.
    ("docs/accuracy.md", 1): r"^\['accurate'\]$|^\[\]$",
    ("docs/compatibility.md", 0): "test plan:",
    ("docs/compatibility.md", 1): "pocl-cpu: PoCL on the CPU",
    ("docs/compatibility.md", 2): "tflite-gpu 7 of 7",
    ("docs/compatibility.md", 3): (
        r"7 of 7 operators run on vulkan \(the GPU of my board, by its profile, f32\)"
    ),
    ("docs/generate.md", 0): ".",
    ("docs/interpreter.md", 0): "7 of 7 operators run on",
    **{("docs/litert.md", number): "run on|all of it runs on" for number in (0, 1)},
}


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """The current one, with the models that pages name."""
    put_model(tmp_path)
    (tmp_path / "language.tflite").write_bytes(language_model())
    capsys.readouterr()
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
    if path == "docs/generate.md":
        put_language_model(folder)
        monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
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


# Names of files, modules and identifiers that pages put into code are those of the source.


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


# What pages list is what there is: options, codes of refusals, fields, messages, commands.


OPTIONS, REPORT, COMPATIBILITY, SAVED, BUFFERS, INTERPRETER, TROUBLES = (
    Page(f"docs/{name}.md")
    for name in (
        "options", "report", "compatibility", "saved", "buffers", "interpreter", "troubleshooting"
    )
)  # fmt: skip
#: Sources without the breaks that a long text has in them.
SOURCES = re.sub(r'"\s*f?"', "", "".join(
    path.read_text(encoding="utf-8")
    for room in ("core", "backends") for path in sorted((ROOT / room).rglob("*.py"))
))  # fmt: skip
#: What stands in the first column of a table of the page on troubles and is said by tflgpu.
MESSAGES = [
    text
    for line in TROUBLES.text.splitlines()
    if line.startswith("| ") and not line.startswith("| what")
    for text in re.findall(r"`([^`]+)`", line.split("|")[1])
    if not text.startswith("tflgpu ")
]


@pytest.fixture
def folder_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """With a model in it, and the current one."""
    put_model(tmp_path)
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


def test_what_is_saved_is_there_for_the_next_program(
    folder_tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(SAVED.programs) == 4
    for number in range(4):
        assert SAVED.run(number, capsys) == SAVED.promised(number)


def test_every_option_is_in_a_table() -> None:
    assert renewed(OPTIONS.text) == OPTIONS.text, "run: python -m tflgpu.options.page"
    rows = set(re.findall(r"^\| `(\w+)` \|", OPTIONS.text, re.MULTILINE))
    assert rows >= set(option_list.OPTIONS) | set(OTHER_NAMES)


def named(heading: str) -> list[str]:
    """What the first column of the table below a line lists, in its order."""
    _, _, after = REPORT.text.partition(heading)
    assert after, heading
    table = re.match(r"\n*((?:\|.*\n)*)", after)
    assert table is not None
    return [n for row in table[1].splitlines() for n in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_all_codes_are_explained() -> None:
    heading = "for programs:\n\n| code | what it means | what helps |\n|---|---|---|"
    assert named(heading) == [code.value for code in ReasonCode]


def test_all_fields_of_a_report_are_explained() -> None:
    operators, parts = (OperatorReport(0, "ADD"),), (PartitionReport(0, (0,), 1, 0.0, 0.0),)
    fields = DelegationReport(1, 1, operators=operators, parts=parts).to_dict()
    assert named("There is no NaN and no infinity.\n\n| field | |\n|---|---|") == list(fields)
    (row,), (part,) = fields["operators"], fields["partitions"]
    assert named("| field of an operator | |\n|---|---|") == list(row)
    line = next(text for text in REPORT.text.splitlines() if text.startswith("| `partitions` |"))
    assert re.findall(r"`(\w+)`", line.split("|")[2]) == list(part)


def test_every_argument_of_an_interpreter_is_in_the_table() -> None:
    for name in inspect.signature(tflgpu.Interpreter).parameters:
        assert f"`{name}`" in INTERPRETER.text or name in ("model_path", "model_content"), name


def test_a_model_takes_as_many_kernels_as_the_page_says(folder_tables: Path) -> None:
    (count,) = re.findall(r"of a model that takes (\d+) kernels", INTERPRETER.text)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(folder_tables / "model.tflite", None, [delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        assert interpreter.report.dispatches == int(count)


def test_what_the_page_on_buffers_names_is_there() -> None:
    called = set(re.findall(r"(?:interpreter|first|second)\.([a-z_]+)", BUFFERS.text)) - {"tflite"}
    assert len(called) > 10
    assert all(hasattr(tflgpu.Interpreter, name) for name in called), called
    for name in re.findall(r"^\| `((?:From|To)[A-Z]\w+)\(", BUFFERS.text, re.MULTILINE):
        assert hasattr(tflgpu.converters, name), name
    for name in ("read", "write", "reshaped", "export"):
        assert f"`{name}" in BUFFERS.text
        assert hasattr(tflgpu.DeviceBuffer, name)
    assert "docs/buffers.md" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_entries_and_profiles_are_those_of_the_page() -> None:
    section = COMPATIBILITY.text.split("## The database")[1].split("```python")[0]
    entries = re.findall(r"`([a-z0-9-]+)`", section.split("|---|---|")[1])
    assert sorted(entries) == sorted(entry.name for entry in SHIPPED)
    known = {profile.name for profile in every()}
    assert set(re.findall(r"--as ([a-z0-9-]+)", COMPATIBILITY.text)) <= {*known, "list"}
    for profile in every():
        if profile.rules is not None:
            builtins = sum(not rule.get("custom") for rule in profile.rules.rules.values())
            assert re.search(
                rf"`{profile.name}`: [^*]*: {builtins} builtin ops", COMPATIBILITY.text
            )


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_said(message: str) -> None:
    assert len(MESSAGES) > 15
    assert message in SOURCES


def test_options_that_help_are_options() -> None:
    text = TROUBLES.text
    names = set(re.findall(r"`(\w+)=", text)) | set(re.findall(r"`(\w+(?:_\w+)+)`", text))
    known = {field.name for field in attrs.fields(DelegateOptions)}
    others = {"batch", "resize_tensor_input", "cpu_ref", "NVIDIA_DRIVER_CAPABILITIES"}
    assert names - known == others
    assert 'getLogger("tflgpu")' in text
    assert logging.getLogger("tflgpu").name in SOURCES
