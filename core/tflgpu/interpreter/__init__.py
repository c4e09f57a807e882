"""The interpreter: tflgpu's own host for models, with the methods of `tf.lite.Interpreter`.

The names are those of ``ai_edge_litert.interpreter`` (and ``tflite_runtime.interpreter``), so that
a script changes by its import:

    from tflgpu.interpreter import Interpreter, load_delegate
    import tflgpu.interpreter as tflite
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tflgpu.interpreter.api import Interpreter
from tflgpu.interpreter.custom_ops import InterpreterWithCustomOps
from tflgpu.interpreter.signatures import SignatureRunner
from tflgpu.options import OpResolverType

if TYPE_CHECKING:
    from tflgpu.interpreter.delegate import Delegate, load_delegate

__all__ = [
    "Delegate",
    "Interpreter",
    "InterpreterWithCustomOps",
    "OpResolverType",
    "SignatureRunner",
    "load_delegate",
]

#: What brings all kernels along, which whoever runs on the CPU does not need.
_LATE = ("Delegate", "load_delegate")


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'tflgpu.interpreter' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module("tflgpu.interpreter.delegate"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATE})
