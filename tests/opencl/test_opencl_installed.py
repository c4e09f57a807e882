"""A pyopencl that lacks what the backend uses of its inside is a reason, and what extras install
was tried."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("inside", [None, SimpleNamespace(_Program=1, __file__="x")])
@pytest.mark.needs("opencl")
def test_a_version_that_lacks_something(monkeypatch: pytest.MonkeyPatch, inside: Any) -> None:
    import pyopencl
    from tflgpu_opencl import plugin
    from tflgpu_opencl.installed import lacking

    assert lacking() == ""
    monkeypatch.setattr(pyopencl, "_cl", inside)
    found = plugin.tflgpu_probe("opencl")
    assert found is not None
    assert not found.available
    name = "_cl" if inside is None else r"_cl\._ErrorRecord"
    assert re.search(rf"lacks {name}; versions 2024\.1 to 2026\.1 were tried", found.reason)


@pytest.mark.parametrize("name", ["opencl", "wgpu"])
def test_extras_are_capped_at_what_was_tried(name: str) -> None:
    tried = importlib.import_module(f"tflgpu_{name}.installed").TRIED
    text = PROJECT.read_text(encoding="utf-8")
    ((first, beyond),) = re.findall(
        rf'^{name} = \["\w+>=([\d.]+),<([\d.]+)"\]$', text, re.MULTILINE
    )
    major, minor = map(int, tried[1].split("."))
    assert first.startswith(tried[0])
    assert beyond == f"{major}.{minor + 1}"
