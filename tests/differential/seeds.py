"""What mutants are made from: recipes, pieces of real models, and single operators."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.errors import TflgpuError
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.differential.cuts import cuts
from tests.differential.recipes import all_recipes

#: Fields of samples that stand for what a file says of an operator's tensors.
_TENSOR_FIELDS = frozenset({"input_quantization", "output_quantization", "output_dtype"})

#: Elements of all operands beyond which a sample is too slow to be run by the thousand.
_MOST = 6000


def single_op(case: SampleCase) -> ModelSpec:
    """A sample of an op as a model."""
    node, graph = case.node, case.graph
    values = [graph.values[i] for i in range(len(graph.values))]
    operator = OperatorSpec(
        case.op.name,
        {k: v for k, v in case.sample.fields.items() if k not in _TENSOR_FIELDS},
        [-1 if v is None else v.id for v in node.inputs],
        [v.id for v in node.outputs],
        version=case.sample.version,
        custom_options=case.sample.custom_options,
    )
    tensors = [
        TensorSpec(v.name, v.shape, v.dtype, v.data, v.quant, is_variable=v.is_variable)
        for v in values
    ]
    return ModelSpec(
        tensors, [operator], [v.id for v in graph.inputs], [v.id for v in graph.outputs]
    )


@functools.cache
def _singles() -> dict[str, ModelSpec]:
    found = {}
    for op in builtin_ops().values():
        if not op.is_custom and op.name not in BUILTIN_CODES:
            continue  # made by a pass; no file has it
        for sample in op.samples():
            try:
                if sum(math.prod(a.shape) for a in sample.args if a is not None) > _MOST:
                    continue
                spec = single_op(materialize(op, sample))
                write_model(spec)
            except TflgpuError:
                continue
            found[f"{op.name}/{sample.id}"] = spec
    return found


@functools.cache
def families(real: bool = True) -> tuple[tuple[str, float, dict[str, ModelSpec]], ...]:
    """Groups of seeds with how often each is drawn from."""
    groups: Sequence[tuple[str, float, dict[str, ModelSpec]]] = (
        ("recipe", 0.45, all_recipes()),
        ("cut", 0.3, cuts() if real else {}),
        ("op", 0.25, _singles()),
    )
    return tuple(g for g in groups if g[2])
