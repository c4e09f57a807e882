"""docs/interpreter.md: its programs run and print what it says, and its table has every argument."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tflgpu

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "interpreter.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_programs_run(number: int, tmp_path: Path) -> None:
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    _, after = PAGE.split(BLOCKS[number])
    promised = re.match(r"```\n\nprints `([^`]*)`, of a model that takes (\d+) kernels", after)
    if promised is None:
        assert "7 of 7 operators run on" in done.stdout
        return
    assert done.stdout.strip() == promised.group(1)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(tmp_path / "model.tflite", None, [delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        assert interpreter.delegation_report().dispatches == int(promised.group(2))


def test_the_page_has_programs() -> None:
    assert len(BLOCKS) == 2


def test_every_argument_is_in_the_table() -> None:
    for name in inspect.signature(tflgpu.Interpreter).parameters:
        assert f"`{name}`" in PAGE or name in ("model_path", "model_content"), name


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
