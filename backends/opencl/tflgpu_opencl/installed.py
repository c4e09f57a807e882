"""Whether the installed pyopencl has what the backend uses of its inside: names that pyopencl does
not promise to keep. A version that lacks one gives the backend a reason, not a traceback in a
model."""

from __future__ import annotations

import importlib
from typing import Any

#: Versions that were tried, the first and the last of them.
TRIED = ("2024.1", "2026.1")

_NAMES = ("_ErrorRecord", "_Program", "__file__")


def lacking() -> str:
    """What the installed pyopencl lacks, as a reason with what to do; "" where it lacks nothing."""
    cl: Any = importlib.import_module("pyopencl")
    inside = getattr(cl, "_cl", None)
    names = ["_cl"] if inside is None else [f"_cl.{n}" for n in _NAMES if not hasattr(inside, n)]
    if not names:
        return ""
    version = getattr(cl, "VERSION_TEXT", "of unknown version")
    return (
        f"pyopencl {version} lacks {', '.join(names)}; versions {TRIED[0]} to {TRIED[1]} were "
        "tried, install one of them"
    )
