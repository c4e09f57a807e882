"""Finds out which Python package's TensorFlow Lite is calling."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

import attrs

from tflgpu.errors import UnsupportedError

#: The module that defines `Interpreter`, and the package that knows the version.
_MODULES = {
    "ai_edge_litert.interpreter": "ai_edge_litert",
    "tensorflow.lite.python.interpreter": "tensorflow",
    "tflite_runtime.interpreter": "tflite_runtime",
}


@attrs.frozen
class Runtime:
    """A loaded TensorFlow Lite.

    Attributes:
        module: Where its `Interpreter` is.
        package: Its name for people and for imports.
        version: As the package gives it; "" where it does not.
    """

    module: str
    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()

    @property
    def interpreter(self) -> Any:
        """The module with `Interpreter` and `OpResolverType`."""
        return sys.modules[self.module]


def runtime_of(module: str) -> Runtime:
    """The runtime whose interpreter a module has, which is one of those known and loaded."""
    package = _MODULES[module]
    return Runtime(module, package, str(getattr(sys.modules.get(package), "__version__", "")))


def calling_runtimes() -> tuple[Runtime, ...]:
    """The runtime whose code called, or all that are loaded where that cannot be told.

    Raises:
        UnsupportedError: none is loaded.
    """
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if isinstance(name, str) and name in _MODULES:
            return (runtime_of(name),)
        frame = frame.f_back
    loaded = tuple(runtime_of(m) for m in _MODULES if isinstance(sys.modules.get(m), ModuleType))
    if not loaded:
        raise UnsupportedError(
            "no TensorFlow Lite interpreter is loaded that could use this delegate; import "
            f"{' or '.join(_MODULES)}"
        )
    return loaded
