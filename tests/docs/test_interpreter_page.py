"""docs/interpreter.md: its programs run and print what it says, and its table has every
argument."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import tflgpu
from pages import Page, printed

PAGE = Page("interpreter")


@pytest.mark.parametrize("number", range(len(PAGE.programs)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    program = PAGE.programs[number]
    output, after = printed(program, tmp_path), PAGE.after(program)
    promised = re.match(r"\n\nprints `([^`]*)`, of a model that takes (\d+) kernels", after)
    if promised is None:
        assert "7 of 7 operators run on" in output
        return
    assert output == promised.group(1)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(tmp_path / "model.tflite", None, [delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        assert interpreter.report.dispatches == int(promised.group(2))


def test_the_page_has_programs() -> None:
    assert len(PAGE.programs) == 2


def test_every_argument_is_in_the_table() -> None:
    for name in inspect.signature(tflgpu.Interpreter).parameters:
        assert f"`{name}`" in PAGE.text or name in ("model_path", "model_content"), name
