"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tflgpu.plugins.hookspecs import hookimpl

#: One run, by the references.
CPU = ("--backend", "cpu", "--cpu-backend", "cpu_ref", "--runs", "1")


@attrs.frozen
class Ran:
    """What a command did."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None


#: The fixture ``tflgpu``: runs the command.
Tflgpu = Callable[..., Ran]


class Hooks:
    """A plugin object of the given hooks, by their names without the prefix."""

    def __init__(self, **hooks: Any) -> None:
        for name, function in hooks.items():
            setattr(self, f"tflgpu_{name}", hookimpl(function))


def save(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def saved(folder: Path) -> np.ndarray:
    (path,) = folder.glob("*.npy")
    return np.load(path)
