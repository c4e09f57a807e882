"""Small models whose shapes the file leaves open, and numbers for their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

BACKENDS = ["none", "cpu_ref", "opencl", "vulkan", "wgpu"]

I32 = DType.I32


def const(name: str, data: object, dtype: DType = I32) -> TensorSpec:
    array = np.asarray(data, dtype.numpy)
    return TensorSpec(name, array.shape, dtype, array)


def free(name: str, shape: Sequence[int], dtype: DType = DType.F32) -> TensorSpec:
    """A tensor whose sizes the file leaves open."""
    return TensorSpec(name, shape, dtype, shape_signature=tuple(-1 for _ in shape))


def net(
    tensors: Sequence[TensorSpec],
    ops: Sequence[tuple[Any, ...]],
    inputs: str,
    outputs: str,
) -> bytes:
    """Tensors and operators by name: ``("ADD", "a b", "c")``."""
    names = [t.name for t in tensors]

    def indices(text: str) -> list[int]:
        return [names.index(n) for n in text.split()]

    operators = [
        OperatorSpec(
            op[0],
            op[3] if len(op) > 3 else {},
            indices(op[1]),
            indices(op[2]),
            op[4] if len(op) > 4 else 1,
        )
        for op in ops
    ]
    return write_model(ModelSpec(tensors, operators, indices(inputs), indices(outputs)))


def contents(spec: dict[str, Any], seed: int = 5) -> Array:
    """Numbers for an input, as its details describe it."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(spec["dtype"])
    if dtype.kind == "f":
        return rng.standard_normal(spec["shape"]).astype(dtype)
    return rng.integers(0, 9, spec["shape"]).astype(dtype)
