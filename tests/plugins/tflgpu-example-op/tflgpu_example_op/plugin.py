"""The hooks: an op, its kernel, a pass."""

from __future__ import annotations

from tflgpu.sdk.kernels import Rule
from tflgpu.sdk.ops import OpDef
from tflgpu.sdk.passes import Pass
from tflgpu.sdk.plugin import hookimpl

from tflgpu_example_op.kernel import RULE
from tflgpu_example_op.op import OP
from tflgpu_example_op.rewrite import PASS

#: The versions of `tflgpu.sdk` that this was written for.
TFLGPU_SDK = ">=1.0,<2"


@hookimpl
def tflgpu_register_ops() -> list[OpDef]:
    """From here on models with the op can be read, and run on the CPU."""
    return [OP]


@hookimpl
def tflgpu_register_kernels(backend: str) -> list[Rule]:
    """The kernel serves every backend; one could be left out, or get a better one."""
    return [RULE]


@hookimpl
def tflgpu_register_passes() -> list[Pass]:
    """Runs with the shipped passes."""
    return [PASS]
