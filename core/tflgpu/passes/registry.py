"""All passes: those in the modules of `tflgpu.passes`, and those that plugins register."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

from tflgpu import passes
from tflgpu.errors import PluginError
from tflgpu.passes.base import Pass


@cache
def builtin_passes() -> tuple[Pass, ...]:
    """The passes that tflgpu ships; found by looking into the package, never listed."""
    found: list[Pass] = []
    for module in pkgutil.iter_modules(passes.__path__):
        loaded = importlib.import_module(f"{passes.__name__}.{module.name}")
        one = getattr(loaded, "PASS", None)
        found += [one] if isinstance(one, Pass) else getattr(loaded, "PASSES", ())
    return tuple(found)


def default_passes(extra: Iterable[Pass] = ()) -> tuple[Pass, ...]:
    """The shipped passes and those of plugins, by phase and name.

    Raises:
        PluginError: two passes have the same name.
    """
    every = (*builtin_passes(), *extra)
    names = [p.name for p in every]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"there are {names.count(name)} passes named {name!r}")
    return tuple(sorted(every, key=lambda p: (p.phase, p.name)))
