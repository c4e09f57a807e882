"""After a mutation, the shapes that operators now make: most mutants should get further than the
check that a file's shapes are true."""

from __future__ import annotations

import attrs
import numpy as np
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ops.base import Fields, Operand
from tflgpu.ops.registry import builtin_ops

from tests.differential.edits import Draft


def repair(d: Draft) -> None:
    """Write into every made tensor the shape that its operator makes, as far as that is known."""
    ops = builtin_ops()
    for op in d.operators:
        known = ops.get(op.name)
        if known is None:
            return
        operands = []
        for i in op.inputs:
            if not 0 <= i < len(d.tensors):
                operands.append(None)
                continue
            t = d.tensors[i]
            # Shapes do not depend on whether numbers are stored as 8 bits.
            real = t.quantization is not None and t.dtype in (DType.I8, DType.U8, DType.I16)
            data = None if t.data is None or real else np.asarray(t.data)
            operands.append(Operand(Spec(t.shape, DType.F32 if real else t.dtype), data))
        try:
            made = known.infer(known.parse(Fields(op.name, op.fields, op.custom_options)), operands)
        except (TflgpuError, ValueError, IndexError, OverflowError, MemoryError):
            continue
        for at, spec in zip(op.outputs, made, strict=False):
            t = d.tensors[at]
            if t.data is None and t.shape != spec.shape and max(spec.shape, default=0) < 2**31:
                d.tensors[at] = attrs.evolve(t, shape=spec.shape, shape_signature=None)
