"""Where and with what a benchmark of this checkout ran."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tflgpu.tools import machine as measured_on
from tflgpu.tools.machine import machine

__all__ = ["machine", "versions"]


def versions() -> dict[str, str]:
    """Of Python, of everything that takes part, and of the checkout."""
    return {**measured_on.versions(), "commit": _commit()}


def _commit() -> str:
    """The checkout's commit, with a mark where files were changed since; "" without git."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
