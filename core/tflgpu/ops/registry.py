"""Every op there is: the modules of `tflgpu.ops`, and what plugins register."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from functools import cache

from tflgpu import ops
from tflgpu.errors import PluginError
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


def merge_ops(extra: Iterable[tuple[str, OpDef]]) -> Mapping[str, OpDef]:
    """The shipped ops and those of plugins, given as (owner, op).

    Raises:
        PluginError: a name is taken; the message names both owners.
    """
    merged = dict(builtin_ops())
    owners = dict.fromkeys(merged, "tflgpu")
    for owner, op in extra:
        if op.name in merged:
            raise PluginError(f"op {op.name} is registered by {owners[op.name]} and by {owner}")
        merged[op.name] = op
        owners[op.name] = owner
    return merged
