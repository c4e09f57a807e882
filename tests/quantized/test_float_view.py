"""What the float view makes of graphs: where it converts, where it rounds, what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import Graph
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.float_view import FloatView, float_view
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run

Q = Quantization((0.5,), (3,))
FINE = Quantization((0.25,), (-5,))
SIM = "QUANTIZE_AND_DEQUANTIZE"


def tensor(
    *shape: int, dtype: DType = DType.I8, quant: Quantization | None = Q, data: Any = None
) -> TensorSpec:
    return TensorSpec("", shape, dtype, data, quant)


def real(*shape: int) -> TensorSpec:
    return TensorSpec("", shape, DType.F32)


def model(
    tensors: Sequence[TensorSpec],
    operators: Sequence[OperatorSpec],
    inputs: Sequence[int] = (0,),
    outputs: Sequence[int] | None = None,
) -> bytes:
    named = [TensorSpec(f"t{i}", t.shape, t.dtype, t.data, t.quantization)
             for i, t in enumerate(tensors)]  # fmt: skip
    return write_model(ModelSpec(named, operators, inputs, outputs or [len(tensors) - 1]))


def graph_of(content: bytes) -> Graph:
    return build_graph(read_model(content), 0, builtin_ops())


def view_of(content: bytes, **kwargs: Any) -> FloatView:
    return float_view(graph_of(content), builtin_ops(), **kwargs)


def names(graph: Graph) -> list[str]:
    return [n.op for n in graph]


RELU = OperatorSpec("RELU", {}, [0], [1])


def test_edges_keep_their_types_and_ids() -> None:
    content = model([tensor(2, 3), tensor(2, 3, quant=FINE)], [RELU])
    before = graph_of(content)
    dump = before.dump()
    view = float_view(before, builtin_ops())
    assert before.dump() == dump
    graph = view.graph
    assert names(graph) == ["DEQUANTIZE", "RELU", SIM, "QUANTIZE"]
    for ours, theirs in ((graph.inputs, before.inputs), (graph.outputs, before.outputs)):
        assert [(v.id, v.name, v.spec, v.quant) for v in ours] == [
            (v.id, v.name, v.spec, v.quant) for v in theirs
        ]
    assert [n.origins for n in graph] == [(), (0,), (0,), ()]
    assert view.origins == {0}
    inner = [v for n in graph.nodes[1:3] for v in (*n.inputs, *n.outputs) if v is not None]
    assert all(v.dtype is DType.F32 and v.quant is None for v in inner)


def test_a_float_model_is_copied() -> None:
    content = model([real(2, 3), real(2, 3)], [RELU])
    before = graph_of(content)
    view = float_view(before, builtin_ops())
    assert view.graph.dump() == before.dump()
    assert view.graph.nodes[0] is not before.nodes[0]
    assert not view.origins


def test_the_simulator_has_the_steps_of_the_result() -> None:
    view = view_of(model([tensor(4), tensor(4, quant=FINE)], [RELU]))
    simulator = view.graph.nodes[2]
    assert simulator.attrs.scale == 0.25
    assert (simulator.attrs.low, simulator.attrs.high) == (-128 + 5, 127 + 5)


@pytest.mark.parametrize("out", [Q, FINE])
def test_moves_take_stored_numbers_as_the_result_has_them(out: Quantization) -> None:
    """As TFLite's kernels, which copy them and look at no scale."""
    sizes = TensorSpec("", (1,), DType.I32, np.array([6], np.int32))
    reshape = OperatorSpec("RESHAPE", {"new_shape": [6]}, [0, 1], [2])
    view = view_of(model([tensor(2, 3), sizes, tensor(6, quant=out)], [reshape]))
    assert names(view.graph) == ["DEQUANTIZE", "RESHAPE", "QUANTIZE"]
    first, _, last = view.graph
    assert first.attrs.quantization == last.attrs.quantization == out


def test_rows_that_are_looked_up_are_not_rounded() -> None:
    ids = TensorSpec("", (2,), DType.I32, np.array([1, 0], np.int32))
    lookup = OperatorSpec("EMBEDDING_LOOKUP", {}, [1, 0], [2])
    assert names(view_of(model([tensor(3, 5), ids, tensor(2, 5)], [lookup])).graph) == [
        "DEQUANTIZE", "EMBEDDING_LOOKUP", "QUANTIZE",
    ]  # fmt: skip


def test_a_fused_activation_is_rounded_though_the_op_moves() -> None:
    fields = {"padding": 0, "stride_h": 1, "stride_w": 1, "filter_height": 2, "filter_width": 2}
    for activation, rounds in ((0, False), (3, True)):
        pool = OperatorSpec(
            "MAX_POOL_2D", {**fields, "fused_activation_function": activation}, [0], [1]
        )
        view = view_of(model([tensor(1, 4, 4, 2), tensor(1, 4, 4, 2)], [pool]))
        assert (SIM in names(view.graph)) is rounds


def test_constants_are_dequantized_once() -> None:
    data = np.array([[1, -3, 3]], np.int8)
    add = [OperatorSpec("ADD", {}, [0, 1], [2]), OperatorSpec("ADD", {}, [2, 1], [3])]
    view = view_of(model([tensor(2, 3), tensor(1, 3, data=data), tensor(2, 3), tensor(2, 3)], add))
    first, second = (n for n in view.graph if n.op == "STORED_PAIR")
    assert first.inputs[1] is second.inputs[1]
    np.testing.assert_array_equal(first.const(1), [[-1.0, -3.0, 0.0]])


def test_a_bias_without_scales_has_the_product_of_its_operands() -> None:
    weights = Quantization((0.5, 2.0), (0, 0), 0)
    tensors = [
        tensor(1, 3),
        tensor(2, 3, quant=weights, data=np.ones((2, 3), np.int8)),
        TensorSpec("", (2,), DType.I32, np.array([3, -5], np.int32)),
        tensor(1, 2),
    ]
    dense = OperatorSpec("FULLY_CONNECTED", {}, [0, 1, 2], [3], version=5)
    view = view_of(model(tensors, [dense]))
    node = next(n for n in view.graph if n.op == "FULLY_CONNECTED")
    np.testing.assert_array_equal(node.const(2), [3 * 0.25, -5 * 1.0])
    np.testing.assert_array_equal(node.const(1), [[0.5] * 3, [2.0] * 3])


def test_dynamic_range_weights_are_dequantized_and_their_data_is_rounded() -> None:
    weights = tensor(2, 3, quant=Quantization((0.5,), (0,)), data=np.ones((2, 3), np.int8))
    dense = OperatorSpec("FULLY_CONNECTED", {}, [0, 1, -1], [2], version=3)
    view = view_of(model([real(1, 3), weights, real(1, 2)], [dense]))
    assert names(view.graph) == ["QUANTIZE_ON_THE_FLY", "FULLY_CONNECTED"]
    assert view.graph.nodes[1].const(1).dtype == np.float32
    assert view.origins == {0}
    assert all(n.origins == (0,) for n in view.graph)
    plain = view_of(model([real(1, 3), weights, real(1, 2)], [dense]), rounds_hybrid=False)
    assert names(plain.graph) == ["FULLY_CONNECTED"]


def test_quantize_and_dequantize_of_the_file() -> None:
    operators = [
        OperatorSpec("QUANTIZE", {}, [0], [1]),
        OperatorSpec("RELU", {}, [1], [2]),
        OperatorSpec("DEQUANTIZE", {}, [2], [3], version=2),
    ]
    view = view_of(model([real(5), tensor(5), tensor(5, quant=FINE), real(5)], operators))
    assert names(view.graph) == [SIM, "RELU", SIM, "DEQUANTIZE"]
    assert [n.origins for n in view.graph] == [(0,), (1,), (1,), (2,)]
    assert view.origins == {0, 1, 2}
    assert view.graph.outputs[0].id == 3


def test_the_same_numbers_in_another_type_are_not_rounded_again() -> None:
    unsigned = Quantization((0.5,), (131,))
    operators = [OperatorSpec("QUANTIZE", {}, [0], [1]), OperatorSpec("RELU", {}, [1], [2])]
    view = view_of(
        model([tensor(5, dtype=DType.U8, quant=unsigned), tensor(5), tensor(5)], operators)
    )
    assert names(view.graph) == ["DEQUANTIZE", "RELU", SIM, "QUANTIZE"]
    assert view.graph.nodes[0].origins == (0,)


def test_requantizing_to_other_steps_rounds() -> None:
    operators = [OperatorSpec("QUANTIZE", {}, [0], [1])]
    view = view_of(model([tensor(5), tensor(5, quant=FINE)], operators))
    assert names(view.graph) == ["DEQUANTIZE", SIM, "QUANTIZE"]


def test_cast_sees_the_stored_numbers() -> None:
    operators = [
        RELU,
        OperatorSpec("CAST", {"in_data_type": 9, "out_data_type": 0}, [1], [2]),
    ]
    content = model([tensor(3), tensor(3), real(3)], operators)
    assert names(view_of(content).graph) == ["DEQUANTIZE", "RELU", SIM, "QUANTIZE", "CAST"]
    interpreter = tflgpu.Interpreter(model_content=content)
    allocate_and_run(interpreter, {0: np.array([-7, 3, 90], np.int8)})
    np.testing.assert_array_equal(interpreter.get_tensor(2), [3.0, 3.0, 90.0])


def test_indices_stay_whole() -> None:
    operators = [OperatorSpec("ARG_MAX", {"output_type": 2}, [0, 1], [2], version=2)]
    axis = TensorSpec("", (), DType.I32, np.array(1, np.int32))
    content = model([tensor(2, 4), axis, TensorSpec("", (2,), DType.I32)], operators)
    assert names(view_of(content).graph) == ["DEQUANTIZE", "ARG_MAX"]


def test_a_quantized_variable_is_refused_with_a_reason() -> None:
    graph = graph_of(model([tensor(2, 3), tensor(2, 3)], [RELU]))
    state = graph.add_value((2, 3), DType.I8, name="state", quant=Q)
    state.is_variable = True
    graph.nodes[0].inputs[0] = state
    view = float_view(graph, builtin_ops())
    assert names(view.graph) == ["RELU"]
    from tflgpu.runtime.cpu_session import open_cpu_session

    with pytest.raises(UnsupportedError, match="state is quantized i8; this RELU is not computed"):
        open_cpu_session(graph, builtin_ops())


def test_preserved_tensors_hold_stored_numbers() -> None:
    operators = [RELU, OperatorSpec("RELU6", {}, [1], [2])]
    content = model([tensor(4), tensor(4, quant=FINE), tensor(4)], operators)
    interpreter = tflgpu.Interpreter(model_content=content, experimental_preserve_all_tensors=True)
    allocate_and_run(interpreter, {0: np.array([-9, 3, 5, 100], np.int8)})
    middle = interpreter.get_tensor(1)
    assert middle.dtype == np.int8
    # 0, 0, 1.0 and 48.5, which is clamped to the largest number that can be stored.
    np.testing.assert_array_equal(middle, [-5, -5, -1, 127])
    np.testing.assert_array_equal(interpreter.get_tensor(2), [3, 3, 5, 15])


def test_rounding_and_clamping_of_the_simulator() -> None:
    op = builtin_ops()[SIM]
    view = view_of(model([tensor(4), tensor(4, quant=FINE)], [RELU]))
    attributes = view.graph.nodes[2].attrs
    x = np.array([0.125, -0.125, 0.124, 0.375, 99, -99, -0.0], np.float32)
    (got,) = op.reference(attributes, [x])
    np.testing.assert_array_equal(got, [0.25, -0.25, 0.0, 0.5, 33.0, -30.75, 0.0])


@pytest.mark.parametrize("allowed", [True, False])
def test_quantized_models_allowed(allowed: bool) -> None:
    operators = [
        OperatorSpec("RELU", {}, [0], [1]),
        OperatorSpec("QUANTIZE", {}, [1], [2]),
        OperatorSpec("RELU", {}, [2], [3]),
        OperatorSpec("DEQUANTIZE", {}, [3], [4], version=2),
    ]
    content = model([real(5), real(5), tensor(5), tensor(5), real(5)], operators)
    x = np.array([-3, 0.7, 1.3, 64, 5], np.float32)
    results = []
    for delegates in ([], [tflgpu.GpuDelegate(backend="cpu_ref", device=1,
                                             quantized_models_allowed=allowed)]):  # fmt: skip
        interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
        allocate_and_run(interpreter, {0: x})
        results.append(interpreter.get_tensor(4))
        report = interpreter.report
    np.testing.assert_array_equal(results[0], [0, 0.5, 1.5, 62, 5])
    np.testing.assert_array_equal(results[1], results[0])
    refused = {} if allowed else {1: "QUANTIZE", 2: "RELU", 3: "DEQUANTIZE"}
    assert {r.node: r.op for r in report.refusals} == refused
    assert all("quantized_models_allowed is off" in r.reason for r in report.refusals)
    assert report.delegated_nodes == 4 - len(refused)


def test_rounding_joins_the_kernel_that_makes_the_numbers() -> None:
    content = model([tensor(1, 3, 5, 7), tensor(1, 3, 5, 7, quant=FINE)], [RELU])
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        (plan,) = compiled_on(graph_of(content), delegate.provider).plans
    labels = [d.label for d in plan.dispatches]
    assert labels == [f"#new DEQUANTIZE + #0 RELU + #0 {SIM} + #new QUANTIZE"]
    assert [io.dtype for io in (*plan.inputs, *plan.outputs)] == [DType.I8, DType.I8]
