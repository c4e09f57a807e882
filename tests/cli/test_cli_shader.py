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


@pytest.mark.parametrize(
    ("language", "has"),
    [
        ("opencl-c", "__kernel"),
        ("spirv", "OpEntryPoint"),
        ("wgsl", "@compute"),
        ("tree", "kernel mul workgroup"),
    ],
)
def test_a_kernel_in_another_language(tflgpu: Tflgpu, scale: Path, language: str, has: str) -> None:
    """Of which no driver and no device need be there."""
    device = ("--backend", "cpu_ref", "--device", 1)
    ran = tflgpu("shader", scale, "--node", 0, *device, "--language", language)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.startswith("// #0 MUL: mul, ")
    assert has in ran.stdout


@pytest.mark.parametrize(("backend", "language"), [("opencl", "opencl-c"), ("wgpu", "wgsl")])
def test_what_a_device_runs_is_what_its_generator_makes(
    tflgpu: Tflgpu, scale: Path, backend: str, language: str,
    require_backend: Callable[[str], Any],
) -> None:  # fmt: skip
    require_backend(backend)
    asked = ("shader", scale, "--node", 0, "--backend", backend)
    assert tflgpu(*asked).stdout == tflgpu(*asked, "--language", language).stdout


def test_a_language_that_nobody_brings(tflgpu: Tflgpu, scale: Path) -> None:
    device = ("--backend", "cpu_ref", "--device", 1)
    ran = tflgpu("shader", scale, "--node", 0, *device, "--language", "metal")
    assert ran.exit_code == 2
    assert "known: opencl-c, spirv, tree, wgsl" in " ".join(ran.stderr.split())


def test_an_operator_that_is_not_there(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("shader", scale, "--node", 7, "--backend", "cpu_ref", "--device", 1)
    assert ran.exit_code == 2
    assert "there is no operator 7; the model has 1" in ran.stderr


def test_references_have_no_kernels(tflgpu: Tflgpu, scale: Path) -> None:
    for arguments in (["--backend", "cpu"], ["--backend", "cpu_ref", "--device", 0]):
        ran = tflgpu("shader", scale, *arguments)
        assert ran.exit_code == 2
        assert "kernels" in ran.stderr
