"""What a float model gives in 64-bit arithmetic: the judge between two 32-bit results, and of
what storing tensors in 16 bits costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model


def float64_outputs(
    model: Path | bytes,
    inputs: Mapping[int, Array],
    *,
    stored_as: npt.DTypeLike = np.float64,
) -> dict[int, Array]:
    """Outputs by tensor index, for inputs by tensor index (their shapes resize the model).

    The op references compute in their operands' precision, so they only need wide operands.
    With another ``stored_as`` every float tensor is rounded to it, constants too.
    """

    def stored(array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        with np.errstate(over="ignore"):
            return array.astype(stored_as).astype(np.float64)

    ops = builtin_ops()
    shapes = {index: array.shape for index, array in inputs.items()}
    graph = build_graph(read_model(model), 0, ops, shapes)
    env: dict[int, Array] = {i: stored(a) for i, a in inputs.items()}
    for value in graph.values.values():
        if value.data is not None:
            env[value.id] = stored(value.data)
    for node in graph:
        operands = [None if v is None else env[v.id] for v in node.inputs]
        for value, array in zip(
            node.outputs, ops[node.op].reference(node.attrs, operands), strict=True
        ):
            # What makes f32 of f16 does so by definition; nothing is lost in widening it.
            from_f16 = any(v is not None and v.dtype is DType.F16 for v in node.inputs)
            assert array.dtype != np.float32 or from_f16, node.label
            env[value.id] = stored(array)
    return {value.id: env[value.id] for value in graph.outputs}
