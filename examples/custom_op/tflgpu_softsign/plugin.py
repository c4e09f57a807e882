"""What tflgpu asks: the op for everyone, its kernel for every backend."""

from __future__ import annotations

from tflgpu.sdk.kernels import Rule
from tflgpu.sdk.ops import OpDef
from tflgpu.sdk.plugin import hookimpl

from tflgpu_softsign.kernel import RULES
from tflgpu_softsign.op import OPS

#: The versions of `tflgpu.sdk` that this was written for.
TFLGPU_SDK = ">=1.0,<2"


@hookimpl
def tflgpu_register_ops() -> list[OpDef]:
    """The reader, the partitioner and the CPU know Softsign from here on."""
    return list(OPS)


@hookimpl
def tflgpu_register_kernels(backend: str) -> list[Rule]:
    """One kernel for all backends."""
    return list(RULES)
