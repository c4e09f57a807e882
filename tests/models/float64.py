"""What a float model gives in 64-bit arithmetic: the judge between two 32-bit results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tflgpu.ir.dtypes import Array
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


def float64_outputs(path: Path, inputs: Mapping[int, Array]) -> dict[int, Array]:
    """Outputs by tensor index, for inputs by tensor index (their shapes resize the model).

    The op references compute in their operands' precision, so they only need wide operands.
    """
    ops = builtin_ops()
    shapes = {index: array.shape for index, array in inputs.items()}
    graph = build_graph(read_model(path), 0, ops, shapes)
    env: dict[int, Array] = {i: a.astype(np.float64) for i, a in inputs.items()}
    for value in graph.values.values():
        if value.data is not None:
            is_float = value.data.dtype.kind == "f"
            env[value.id] = value.data.astype(np.float64) if is_float else value.data
    for node in graph:
        operands = [None if v is None else env[v.id] for v in node.inputs]
        for value, array in zip(
            node.outputs, ops[node.op].reference(node.attrs, operands), strict=True
        ):
            # A DEQUANTIZE of f16 weights gives f32 by definition; nothing is lost in widening it.
            assert array.dtype != np.float32 or node.op == "DEQUANTIZE", node.label
            env[value.id] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return {value.id: env[value.id] for value in graph.outputs}
