"""All ops that tflgpu ships: those in the modules of `tflgpu.ops`. Plugins' ops join them in
`tflgpu.plugins.registry`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
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


class LaterOps(Mapping[str, "OpDef"]):
    """The shipped ops and some more, which are found when one is asked for: importing all of them
    takes longer than starting a model that was compiled before."""

    def __init__(self, more: Mapping[str, OpDef]) -> None:
        self._more = more

    @cached_property
    def _all(self) -> Mapping[str, OpDef]:
        return {**builtin_ops(), **self._more}

    def __getitem__(self, name: str) -> OpDef:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
