"""The interpreter: tflgpu's own host for models, with the methods of `tf.lite.Interpreter`."""

from __future__ import annotations

from tflgpu.interpreter.api import Interpreter, OpResolverType
from tflgpu.interpreter.signatures import SignatureRunner

__all__ = ["Interpreter", "OpResolverType", "SignatureRunner"]
