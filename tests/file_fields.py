"""What of a sample stands in a file as an operator's options, and what elsewhere in it."""

from __future__ import annotations

from typing import Any

from tflgpu.conformance.samples import SampleCase
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec

#: Fields that stand for what a file says of an operator's tensors and subgraphs.
TENSOR_FIELDS = frozenset({
    "input_quantization", "output_quantization", "output_dtype", "output_dtypes", "output_shapes",
    "computation",
})  # fmt: skip
#: The option that is the number of the subgraph that merges elements.
BODIES = {
    "STABLEHLO_REDUCE_WINDOW": "body_subgraph_index",
    "STABLEHLO_SCATTER": "update_computation_subgraph_index",
}


def file_fields(case: SampleCase) -> tuple[dict[str, Any], tuple[SubgraphSpec, ...]]:
    """The options of a case's operator, and the subgraphs, from the file's second on, that they
    name."""
    fields = {k: v for k, v in case.sample.fields.items() if k not in TENSOR_FIELDS}
    name = case.sample.fields.get("computation")
    if name is None:
        return fields, ()
    fields[BODIES[case.op.name]] = 1
    scalar = [TensorSpec(each, (), case.graph.outputs[0].dtype) for each in "abc"]
    if not name:  # the second element takes the place of the first
        return fields, (SubgraphSpec(scalar[:2], [], [0, 1], [1]),)
    return fields, (SubgraphSpec(scalar, [OperatorSpec(name, {}, [0, 1], [2])], [0, 1], [2]),)
