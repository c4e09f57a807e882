"""Log records hold texts, not exceptions: a handler that keeps a record would keep the frames of
the exception's traceback, and with them an interpreter and a device's memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import tflgpu

ROOT = Path(tflgpu.__file__).parents[2]
FILES = sorted([*ROOT.glob("core/tflgpu/**/*.py"), *ROOT.glob("backends/**/*.py")])


def held(source: str) -> Iterator[int]:
    """Lines of calls of a logger with a caught exception among the arguments of its message."""
    if "LOG." not in source:
        return
    tree = ast.parse(source)
    caught = {n.name for n in ast.walk(tree) if isinstance(n, ast.ExceptHandler) and n.name}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            logs = isinstance(node.func.value, ast.Name) and node.func.value.id in ("LOG", "_LOG")
            names = {arg.id for arg in node.args if isinstance(arg, ast.Name)}
            if logs and names & caught:
                yield node.lineno


@pytest.mark.quick
def test_no_record_holds_an_exception() -> None:
    assert len(FILES) > 500
    found = [f"{path}:{line}" for path in FILES for line in held(path.read_text("utf-8"))]
    assert not found


@pytest.mark.quick
def test_one_that_does_is_found() -> None:
    tried = "try:\n    pass\nexcept OSError as error:\n    LOG.info('%s', {})\n"
    assert list(held(tried.format("error"))) == [4]
    assert list(held(tried.format("str(error)"))) == []
