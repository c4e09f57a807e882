"""What tflgpu asks: the op for everyone, its kernel for every backend."""

from __future__ import annotations

from tflgpu.hookspecs import hookimpl
from tflgpu.lowering.rule import Rule
from tflgpu.ops.base import OpDef

from tflgpu_softsign.kernel import RULES
from tflgpu_softsign.op import OPS


@hookimpl
def tflgpu_register_ops() -> list[OpDef]:
    """The reader, the partitioner and the CPU know Softsign from here on."""
    return list(OPS)


@hookimpl
def tflgpu_register_kernels(backend: str) -> list[Rule]:
    """One kernel for all backends."""
    return list(RULES)
