"""The interpreter: tflgpu's own host for models, with the methods of `tf.lite.Interpreter`."""

from __future__ import annotations

from tflgpu.interpreter.api import Interpreter
from tflgpu.interpreter.signatures import SignatureRunner
from tflgpu.options import OpResolverType

__all__ = ["Interpreter", "OpResolverType", "SignatureRunner"]
