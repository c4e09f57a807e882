"""docs/buffers.md: its programs run and print what it says, its names are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "buffers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def added(given: str, made: str, number: float) -> bytes:
    """``made = given + number``, of images."""
    shape = (1, 16, 16, 3)
    tensors = [TensorSpec(given, shape), TensorSpec("c", (), data=np.float32(number))]
    operator = OperatorSpec("ADD", {}, (0, 1), (2,))
    return write_model(ModelSpec([*tensors, TensorSpec(made, shape)], [operator], (0,), (2,)))


def printed(block: str) -> str:
    """What the page says that a program prints."""
    _, after = PAGE.split(block)
    said = re.match(r"```\n\nprints (?:`([^`]*)`|\n\n?```\n(.*?)\n```)", after, re.DOTALL)
    said = said or re.match(r"```\n\nprints\n\n```\n()(.*?)\n```", after, re.DOTALL)
    assert said is not None
    return said.group(1) or said.group(2)


@pytest.mark.parametrize("number", range(4))
def test_the_programs_run(
    number: int, tmp_path: Path, require_backend: Callable[[str], Any]
) -> None:
    if "pyopencl" in BLOCKS[number]:
        require_backend("opencl")
    shutil.copy(ROOT / "core/tflgpu/demo/digits.tflite", tmp_path / "model.tflite")
    (tmp_path / "first.tflite").write_bytes(added("image", "features", 1))
    (tmp_path / "second.tflite").write_bytes(added("features", "result", 1))
    done = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "no part of the model runs on" in done.stderr:
        pytest.skip("there is no device that runs kernels")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == printed(BLOCKS[number])


def test_every_program_is_looked_at() -> None:
    assert len(BLOCKS) == 4


def test_what_it_names_is_there() -> None:
    called = set(re.findall(r"(?:interpreter|first|second)\.([a-z_]+)", PAGE)) - {"tflite"}
    assert len(called) > 10
    assert all(hasattr(tflgpu.Interpreter, name) for name in called), called
    for name in re.findall(r"^\| `((?:From|To)[A-Z]\w+)\(", PAGE, re.MULTILINE):
        assert hasattr(tflgpu.converters, name), name
    for name in ("read", "write", "reshaped", "export"):
        assert f"`{name}" in PAGE
        assert hasattr(tflgpu.DeviceBuffer, name)


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE):
        assert (ROOT / "docs" / target).exists(), target
    assert "docs/buffers.md" in (ROOT / "README.md").read_text(encoding="utf-8")
