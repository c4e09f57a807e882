"""The kernel language: GPU kernels as typed trees, built, checked, interpreted and printed.

The names are loaded when they are first used: whoever only has to name a type, or to hold a kernel
that was printed before, needs neither builder nor interpreter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tflgpu.language.builder import Builder
    from tflgpu.language.interpreter import interpret
    from tflgpu.language.tree import Buffer, Expr, Kernel, Name, Shared
    from tflgpu.language.types import Scalar, Type
    from tflgpu.language.variables import Variable

__all__ = [
    "Buffer",
    "Builder",
    "Expr",
    "Kernel",
    "Name",
    "Scalar",
    "Shared",
    "Type",
    "Variable",
    "interpret",
]

# No module here may have the name of one of these, which it would take when it is imported.
_HOMES = {
    "Builder": "builder",
    "interpret": "interpreter",
    **dict.fromkeys(("Buffer", "Expr", "Kernel", "Name", "Shared"), "tree"),
    **dict.fromkeys(("Scalar", "Type"), "types"),
    "Variable": "variables",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tflgpu.language' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
