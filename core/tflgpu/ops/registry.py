"""All ops that tflgpu ships: those in the modules of `tflgpu.ops`. Plugins' ops join them in
`tflgpu.plugins.registry`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from tflgpu import ops
from tflgpu.errors import PluginError

if TYPE_CHECKING:
    from tflgpu.ops.base import OpDef


@cache
def builtin_ops() -> Mapping[str, OpDef]:
    """The ops that tflgpu ships, by name; found by looking into the package, never listed."""
    found: dict[str, OpDef] = {}
    for module in pkgutil.iter_modules(ops.__path__):
        loaded = importlib.import_module(f"{ops.__name__}.{module.name}")
        for op in getattr(loaded, "OPS", ()):
            if op.name in found:
                raise PluginError(f"op {op.name} is defined twice in {ops.__name__}")
            found[op.name] = op
    return found
