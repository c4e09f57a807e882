"""What the suite needs beside tflgpu. Imports nothing heavy: pytest's plugin asks."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection

#: The level that draws its cases.
GENERATED = 3


def missing_package(levels: Collection[int] = ()) -> str | None:
    """What to install for some levels, or all; None where it is there."""
    if levels and GENERATED not in levels:
        return None
    if importlib.util.find_spec("hypothesis") is not None:
        return None
    return (
        "the conformance suite draws its cases with hypothesis, which is not installed; run: "
        "pip install 'tflgpu[conformance]'"
    )
