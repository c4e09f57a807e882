"""`tflgpu shader`: lists dispatches, prints what runs, and says why there is nothing to print."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Tflgpu

LANGUAGES = {"opencl": "__kernel", "vulkan": "OpEntryPoint", "wgpu": "@compute"}


def test_the_list_names_every_dispatch(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("shader", scale, "--backend", "cpu_ref", "--device", 1)
    assert ran.exit_code == 0
    assert "#0 MUL" in ran.stdout
    assert "64x1x1" in ran.stdout


@pytest.mark.parametrize("backend", LANGUAGES)
def test_a_backend_prints_its_own_language(
    tflgpu: Tflgpu, scale: Path, backend: str, require_backend: Callable[[str], Any]
) -> None:
    require_backend(backend)
    ran = tflgpu("shader", scale, "--node", 0, "--backend", backend)
    assert ran.exit_code == 0
    assert ran.stdout.startswith("// #0 MUL: mul, ")
    assert LANGUAGES[backend] in ran.stdout


def test_an_operator_that_is_not_there(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("shader", scale, "--node", 7, "--backend", "cpu_ref", "--device", 1)
    assert ran.exit_code == 2
    assert "there is no operator 7; the model has 1" in ran.stderr


def test_references_have_no_kernels(tflgpu: Tflgpu, scale: Path) -> None:
    for arguments in (["--backend", "cpu"], ["--backend", "cpu_ref", "--device", 0]):
        ran = tflgpu("shader", scale, *arguments)
        assert ran.exit_code == 2
        assert "kernels" in ran.stderr
