"""What the compiler is given is assembled in one place, `tflgpu.compiler`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSEMBLED = frozenset({"LoweringInput", "KernelRegistry", "Site"})
#: The registry's own test makes registries.
OWN = frozenset({"test_kernel_registry.py"})
FILES = sorted(
    path
    for folder in ("core", "backends", "tests", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path.parent != ROOT / "core" / "tflgpu" / "compiler" and path.name not in OWN
)


def assembled(source: str) -> set[str]:
    """What of `ASSEMBLED` a file makes. A file that has none of the names is not parsed."""
    if not any(f"{name}(" in source for name in ASSEMBLED):
        return set()
    calls = (n.func for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call))
    names = (f.id if isinstance(f, ast.Name) else getattr(f, "attr", "") for f in calls)
    return ASSEMBLED & set(names)


@pytest.mark.parametrize("folder", ["core", "backends", "tests", "examples", "benchmarks"])
def test_nothing_else_assembles_what_is_compiled(folder: str) -> None:
    files = [path for path in FILES if path.is_relative_to(ROOT / folder)]
    assert files
    found = {str(path): made for path in files if (made := assembled(path.read_text("utf-8")))}
    assert not found


def test_it_would_be_seen() -> None:
    assert assembled("a = Site(1, 2)\nb = rule.Site()\n") == {"Site"}
    compiler = ROOT / "core" / "tflgpu" / "compiler"
    made = set().union(*(assembled(p.read_text("utf-8")) for p in compiler.glob("*.py")))
    assert made == ASSEMBLED
