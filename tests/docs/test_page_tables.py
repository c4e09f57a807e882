"""What pages list is what there is: options, codes of refusals, fields, messages, commands."""

from __future__ import annotations

import inspect
import logging
import re
from pathlib import Path

import attrs
import pytest
import tflgpu
from pages import ROOT, Page, put_model
from tflgpu.cli.app import make_app
from tflgpu.compat.table import SHIPPED
from tflgpu.compiler.report import DelegationReport
from tflgpu.compiler.report_values import OperatorReport, PartitionReport
from tflgpu.lowering.reason import ReasonCode
from tflgpu.options import OTHER_NAMES, DelegateOptions, known_options
from tflgpu.options.page import renewed
from tflgpu.profiles import every

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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model in it, and the current one."""
    put_model(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize(("page", "count"), [(SAVED, 5), (COMPATIBILITY, 3)], ids=["saved", "as"])
def test_the_commands_are_there(
    page: Page, count: int, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", page.text, re.DOTALL)
    lines = [line.partition("#")[0].split() for line in "".join(blocks).splitlines()]
    assert len(lines) == count
    for name, *given in lines:
        assert name == "tflgpu"
        # Any device will do: which one a machine has is not what the page is about.
        text = " ".join(given).replace("opencl", "cpu_ref --device 1")
        assert not make_app()(text.split(), standalone_mode=False)
    assert (folder / "model.tflgpu").is_file() == (page is SAVED)


def test_what_is_saved_is_there_for_the_next_program(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(SAVED.programs) == 4
    for number in range(4):
        assert SAVED.run(number, capsys) == SAVED.promised(number)


def test_every_option_is_in_a_table() -> None:
    assert renewed(OPTIONS.text) == OPTIONS.text, "run: python -m tflgpu.options.page"
    rows = set(re.findall(r"^\| `(\w+)` \|", OPTIONS.text, re.MULTILINE))
    assert rows >= set(known_options()) | set(OTHER_NAMES)


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


def test_a_model_takes_as_many_kernels_as_the_page_says(folder: Path) -> None:
    (count,) = re.findall(r"of a model that takes (\d+) kernels", INTERPRETER.text)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(folder / "model.tflite", None, [delegate]) as interpreter,
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
