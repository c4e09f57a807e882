"""Every op's NumPy reference against LiteRT, the real TFLite: one model an op and sample."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from file_fields import file_fields
from tflgpu.conformance.samples import SampleCase, materialize, run_reference
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Value
from tflgpu.ops.base import OpDef, Sample
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.schema import BUILTIN_CODES
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.ops.all_of import all_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

#: What LiteRT's kernels do not compute, by (op, sample). The GPU delegate runs all of these.
NOT_IN_LITERT = {
    ("CONV_2D", "no_bias"): "LiteRT's kernel refuses a missing bias",
    ("DEPTHWISE_CONV_2D", "no_bias"): "LiteRT's kernel crashes without a bias",
    ("FULLY_CONNECTED", "tanh"): "LiteRT's kernel refuses a fused TANH",
    **{
        ("DENSIFY", id): "LiteRT's kernel wants a sparse constant; see test_densify"
        for id in ("matrix", "filter", "i8")
    },
    ("STABLEHLO_GATHER", "each_its_row"): "LiteRT's kernel crashes where each index is a row",
    ("CONCATENATION", "relu"): "LiteRT's kernel refuses a fused activation",
    ("CONCATENATION", "relu6_rows"): "LiteRT's kernel refuses a fused activation",
}
#: Operators of LiteRT's GPU accelerator, of which its interpreter has no kernel.
GPU_ONLY = frozenset({
    "STABLEHLO_BROADCAST_IN_DIM", "STABLEHLO_CBRT", "STABLEHLO_CLAMP", "STABLEHLO_REMAINDER",
})  # fmt: skip

#: The operand or output (op, "in" or "out", index) that is a place in a window. XNNPACK numbers
#: places column by column, as u32; MediaPipe's own kernels, followed here, row by row, as f32
#: plus 0.1.
PLACES = {("MaxPoolingWithArgmax2D", "out", 1), ("MaxUnpooling2D", "in", 1)}


def places_to_xnnpack(places: Array, height: int, width: int) -> Array:
    row, column = np.divmod(places.astype(np.uint32), np.uint32(width))
    return (column * np.uint32(height) + row).view(np.float32)


def places_from_xnnpack(places: Array, height: int, width: int) -> Array:
    column, row = np.divmod(places.view(np.uint32), np.uint32(height))
    return (row * width + column + 0.1).astype(np.float32)


def single_op_model(case: SampleCase) -> bytes:
    """A `.tflite` file of the case's one operator; tensor indices are value ids."""

    def spec(value: Value) -> TensorSpec:
        return TensorSpec(
            value.name,
            value.shape,
            value.dtype,
            value.data,
            value.quant,
            is_variable=value.is_variable,
        )

    node, graph = case.node, case.graph
    values = [graph.values[i] for i in range(len(graph.values))]
    fields, bodies = file_fields(case)
    operator = OperatorSpec(
        case.op.name,
        fields,
        [-1 if v is None else v.id for v in node.inputs],
        [v.id for v in node.outputs],
        version=case.sample.version,
        custom_options=case.sample.custom_options,
    )
    return write_model(
        ModelSpec(
            [spec(v) for v in values],
            [operator],
            [v.id for v in graph.inputs],
            [v.id for v in graph.outputs],
            subgraphs=bodies,
        )
    )


def run_litert(case: SampleCase) -> tuple[list[Array], list[Array]]:
    """Outputs and new states of the variables, as LiteRT's own kernels compute them."""
    resolvers = litert.OpResolverType
    # The builtin kernels are the definition, but MediaPipe's custom ops exist in XNNPACK only.
    resolver = resolvers.AUTO if case.op.is_custom else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = litert.Interpreter(
        model_content=single_op_model(case), experimental_op_resolver_type=resolver
    )
    try:
        interpreter.allocate_tensors()
    except RuntimeError as error:
        if case.op.is_custom and "unresolved custom op" in str(error):
            pytest.skip(f"LiteRT has no kernel for it: {str(error).splitlines()[0]}")
        raise
    for i, value in enumerate(case.node.inputs):
        if value is not None and value.id in case.arrays:
            array = case.arrays[value.id]
            if (case.op.name, "in", i) in PLACES:
                array = places_to_xnnpack(array, *case.node.attrs.filter)
            interpreter.set_tensor(value.id, array)
    interpreter.invoke()
    outputs = [interpreter.get_tensor(v.id) for v in case.graph.outputs]
    for i, array in enumerate(outputs):
        if (case.op.name, "out", i) in PLACES:
            outputs[i] = places_from_xnnpack(array, *case.node.attrs.filter)
    return outputs, [interpreter.get_tensor(v.id) for v in case.variables]


def _writes_to_no_operand(case: SampleCase) -> None:
    """NumPy refuses to write to these."""
    for array in (*case.arrays.values(), *(v.data for v in case.graph.values.values())):
        if isinstance(array, np.ndarray):  # scalars cannot be written to
            array.flags.writeable = False
    run_reference(case, case.arrays)


@pytest.mark.parametrize("op", builtin_ops().values(), ids=lambda op: op.name)
def test_reference_is_what_litert_computes(op: OpDef) -> None:
    all_of({sample.id: partial(_as_litert, op, sample) for sample in op.samples()})


def _as_litert(op: OpDef, sample: Sample) -> None:
    case = materialize(op, sample)
    _writes_to_no_operand(case)
    if not op.is_custom and op.name not in BUILTIN_CODES:
        pytest.skip("made by a pass; no file has it")
    if (op.name, sample.id) in NOT_IN_LITERT:
        pytest.skip(NOT_IN_LITERT[op.name, sample.id])
    if op.name in GPU_ONLY:
        pytest.skip("LiteRT's interpreter has no kernel; see test_stablehlo")
    outputs, states = run_litert(case)
    tolerance = case.tolerance()
    for i, (got, want) in enumerate(zip(case.expected, outputs, strict=True)):
        assert got.dtype == want.dtype
        tolerance.check(got, want, f"output {i}")
    for i, (got, want) in enumerate(zip(case.states, states, strict=True)):
        tolerance.check(got, want, f"state {i}")


def test_every_op_has_samples_of_its_own_names() -> None:
    for op in builtin_ops().values():
        names = [sample.id for sample in op.samples()]
        assert names, op.name
        assert len(names) == len(set(names)), op.name
