"""Building graphs: shapes inferred anew, shape arithmetic folded, unknown operators kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.errors import InputError, ModelError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Graph, TensorSpec
from tflgpu.ir.verify import verify
from tflgpu.ops.base import Contents, Fields, FileForm, NoAttrs, OpDef, Operand, no_attrs
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.unknown import UnknownOp, unknown_reason
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.read import read_model
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as Tensor
from tflgpu.tflite.write import write_model

from tests.tflite import samples

# Small ops of the test's own, so that what is tested is the builder and not an op.


def _infer_shape(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    assert operands[0] is not None
    return [TensorSpec((operands[0].rank,), DType.I32)]


def _shape(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    assert arrays[0] is not None
    return [np.array(arrays[0].shape, np.int32)]


def _infer_add(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    a, b = operands
    assert a is not None and b is not None
    try:
        return [TensorSpec(np.broadcast_shapes(a.shape, b.shape), a.dtype)]
    except ValueError:
        raise ModelError(f"ADD: {a.spec} and {b.spec} do not broadcast") from None


def _add(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    a, b = arrays
    assert a is not None and b is not None
    return [np.asarray(a + b)]


def _infer_reshape(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    x, wanted = operands
    assert x is not None and wanted is not None
    shape = tuple(int(n) for n in wanted.const("RESHAPE", "the new shape"))
    return [TensorSpec(shape, x.dtype)]


def _reshape(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    x, wanted = arrays
    assert x is not None and wanted is not None
    return [x.reshape(wanted)]


@attrs.frozen
class _Axis:
    axis: int


def _parse_axis(fields: Fields) -> _Axis:
    return _Axis(fields.integer("axis"))


def _op(name: str, infer: Any, reference: Any, **more: Any) -> OpDef:
    return OpDef(name, no_attrs, infer, reference, list, **more)


OPS: Mapping[str, OpDef] = {
    op.name: op
    for op in (
        _op("SHAPE", _infer_shape, _shape, contents=Contents(shape_only=True)),
        _op("ADD", _infer_add, _add, file=FileForm(max_version=2)),
        _op("RESHAPE", _infer_reshape, _reshape),
        _op("CONCATENATION", lambda a, o: [], lambda a, x: []),
    )
}


def build(spec: ModelSpec, shapes: Mapping[int, tuple[int, ...]] | None = None) -> Graph:
    graph = build_graph(read_model(write_model(spec)), 0, OPS, shapes)
    verify(graph)
    return graph


def resizable() -> ModelSpec:
    """y = RESHAPE(x, SHAPE(x) + 0), with a batch that is not fixed in the file."""
    return ModelSpec(
        tensors=[
            Tensor("x", (1, 3), shape_signature=(-1, 3)),
            Tensor("shape", (2,), DType.I32),
            Tensor("delta", (2,), DType.I32, [0, 0]),
            Tensor("wanted", (2,), DType.I32),
            Tensor("y", (1, 3), shape_signature=(-1, 3)),
        ],
        operators=[
            OperatorSpec("SHAPE", {}, (0,), (1,)),
            OperatorSpec("ADD", {}, (1, 2), (3,)),
            OperatorSpec("RESHAPE", {}, (0, 3), (4,)),
        ],
        inputs=(0,),
        outputs=(4,),
    )


def add(x: Tensor, y: Tensor, out: Tensor, version: int = 1) -> ModelSpec:
    return ModelSpec(
        [x, y, out], [OperatorSpec("ADD", {}, (0, 1), (2,), version)], inputs=(0, 1), outputs=(2,)
    )


def test_values_keep_index_name_and_order() -> None:
    graph = build(add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 3)), version=2))
    assert [v.id for v in graph.inputs] == [0, 1]
    assert [v.name for v in graph.outputs] == ["c"]
    (node,) = graph.nodes
    assert (node.op, node.version, node.origins) == ("ADD", 2, (0,))
    assert node.attrs == NoAttrs()
    assert graph.add_value((1,), DType.F32).id == 3


def test_constants_are_not_copied() -> None:
    weights = np.arange(300_000, dtype=np.float32)
    spec = ModelSpec(
        [Tensor("x", (300_000,)), Tensor("w", (300_000,), data=weights), Tensor("y", (300_000,))],
        [OperatorSpec("ADD", {}, (0, 1), (2,))],
        inputs=(0,),
        outputs=(2,),
    )
    model = read_model(write_model(spec))
    graph = build_graph(model, 0, OPS)
    data = graph.values[1].data
    assert data is model.main.tensors[1].data
    np.testing.assert_array_equal(data, weights)


def test_shape_arithmetic_folds() -> None:
    graph = build(resizable())
    assert [n.op for n in graph.nodes] == ["RESHAPE"]
    assert graph.nodes[0].const(1).tolist() == [1, 3]


def test_the_shape_of_a_quantized_tensor_folds() -> None:
    """Its scale does not matter; that of what is computed from contents does."""
    spec = resizable()
    tensors = list(spec.tensors)
    for i in (0, 4):
        tensors[i] = Tensor(
            tensors[i].name, (1, 3), DType.I8, quantization=Quantization((0.5,), (3,)),
            shape_signature=(-1, 3),
        )  # fmt: skip
    graph = build(ModelSpec(tensors, spec.operators, spec.inputs, spec.outputs), {0: (5, 3)})
    assert [n.op for n in graph.nodes] == ["RESHAPE"]
    assert graph.nodes[0].const(1).tolist() == [5, 3]


def test_resize_reaches_what_depends_on_it() -> None:
    graph = build(resizable(), {0: (5, 3)})
    assert graph.inputs[0].shape == (5, 3)
    assert graph.outputs[0].shape == (5, 3)
    assert graph.nodes[0].const(1).tolist() == [5, 3]


def test_resize_overrules_shapes_that_the_file_says_are_fixed() -> None:
    spec = add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 3)))
    assert build(spec, {0: (4, 3)}).outputs[0].shape == (4, 3)


def test_resize_to_what_cannot_be_computed_names_operator_and_operands() -> None:
    spec = add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 3)))
    with pytest.raises(ModelError, match=r"operator 0 \(ADD\).*f32\[2,4\].*f32\[3\]"):
        build(spec, {0: (2, 4)})


@pytest.mark.parametrize(
    ("shapes", "message"),
    [({2: (2, 3)}, r"tensor 2 is not an input.*\[0, 1\]"), ({0: (-1, 3)}, r"\(-1, 3\)")],
)
def test_bad_resize(shapes: Mapping[int, tuple[int, ...]], message: str) -> None:
    spec = add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 3)))
    with pytest.raises(InputError, match=message):
        build(spec, shapes)


def test_a_stale_shape_in_the_file_is_inferred_anew(caplog: pytest.LogCaptureFixture) -> None:
    graph = build(add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 4))))
    assert graph.outputs[0].shape == (2, 3)
    (record,) = caplog.records
    assert "operator 0 (ADD): tensor 2 ('c') has shape [2, 4] in the file" in record.getMessage()
    assert "makes [2, 3]" in record.getMessage()


def test_a_true_shape_in_the_file_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    build(add(Tensor("a", (2, 3)), Tensor("b", (3,)), Tensor("c", (2, 3))))
    assert not caplog.records


def test_a_shape_that_the_file_leaves_open_is_inferred() -> None:
    out = Tensor("c", (1, 3), shape_signature=(-1, 3))
    assert build(add(Tensor("a", (2, 3)), Tensor("b", (3,)), out)).outputs[0].shape == (2, 3)
    out = Tensor("c", (), has_rank=False)
    assert build(add(Tensor("a", (2, 3)), Tensor("b", (3,)), out)).outputs[0].shape == (2, 3)


def test_a_wrong_dtype_in_the_file_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"'c'.* is i32 in the file.* makes f32"):
        build(add(Tensor("a", (2,)), Tensor("b", (2,)), Tensor("c", (2,), DType.I32)))


def test_a_wrong_number_of_results_is_an_error() -> None:
    spec = ModelSpec(
        [Tensor("x", (2,)), Tensor("y", (2,))],
        [OperatorSpec("CONCATENATION", {}, (0,), (1,))],
        inputs=(0,),
        outputs=(1,),
    )
    with pytest.raises(ModelError, match=r"CONCATENATION.* makes 0 tensors.* gives it 1"):
        build(spec)


def test_bad_options_name_the_operator() -> None:
    ops = {"ADD": OpDef("ADD", _parse_axis, _infer_add, _add, list)}
    spec = add(Tensor("a", (2,)), Tensor("b", (2,)), Tensor("c", (2,)))
    model = read_model(write_model(spec))
    (operator,) = model.main.operators
    broken = attrs.evolve(operator, fields={"axis": (1, 2)})
    model = attrs.evolve(model, subgraphs=(attrs.evolve(model.main, operators=(broken,)),))
    with pytest.raises(ModelError, match=r"operator 0 \(ADD\).*axis is \(1, 2\)"):
        build_graph(model, 0, ops)


def _unknown(graph: Graph) -> dict[str, str]:
    reasons = {n.op: unknown_reason(n.attrs) for n in graph.nodes}
    return {op: reason for op, reason in reasons.items() if reason is not None}


def test_unknown_and_custom_ops_stay_in_the_graph() -> None:
    spec = ModelSpec(
        [Tensor("x", (2, 3)), Tensor("y", (7,)), Tensor("z", (7,)), Tensor("sum", (7,))],
        [
            OperatorSpec("ABS", {}, (0,), (1,)),
            OperatorSpec("Mystery", {}, (1,), (2,)),
            OperatorSpec("ADD", {}, (1, 2), (3,)),
        ],
        inputs=(0,),
        outputs=(3,),
    )
    graph = build(spec)
    assert [n.op for n in graph.nodes] == ["ABS", "Mystery", "ADD"]
    assert _unknown(graph) == {
        "ABS": "op ABS is not defined; a plugin can define it",
        "Mystery": "custom op Mystery is not defined; a plugin can define it",
    }
    assert graph.nodes[0].outputs[0].shape == (7,)  # as the file says


def test_a_custom_op_with_a_builtin_s_name_is_not_that() -> None:
    spec = add(Tensor("a", (2,)), Tensor("b", (2,)), Tensor("c", (2,)))
    model = read_model(write_model(spec))
    (operator,) = model.main.operators
    custom = attrs.evolve(operator, is_custom=True)
    model = attrs.evolve(model, subgraphs=(attrs.evolve(model.main, operators=(custom,)),))
    graph = build_graph(model, 0, builtin_ops())
    assert _unknown(graph) == {"ADD": "custom op ADD is not defined; a plugin can define it"}


def test_an_op_that_only_compiling_makes_stands_for_no_operator_of_a_file() -> None:
    spec = ModelSpec(
        [Tensor("x", (1, 2, 3, 4)), Tensor("y", (1, 2, 3, 4))],
        [OperatorSpec("ATTENTION", {}, (0, 0, 0), (1,))],
        inputs=(0,),
        outputs=(1,),
    )
    graph = build_graph(read_model(write_model(spec)), 0, builtin_ops())
    assert _unknown(graph) == {
        "ATTENTION": "custom op ATTENTION is not defined; a plugin can define it"
    }


def test_a_newer_version_is_unknown() -> None:
    spec = add(Tensor("a", (2,)), Tensor("b", (2,)), Tensor("c", (2,)), version=9)
    assert _unknown(build(spec)) == {
        "ADD": "version 9 of ADD is newer than 2, the newest understood"
    }


def test_control_flow_is_unknown() -> None:
    (reason,) = _unknown(build(samples.loop())).values()
    assert "control flow" in reason


@pytest.mark.parametrize("dtype", [DType.STRING, DType.BF16])
def test_types_without_arithmetic_are_unknown(dtype: DType) -> None:
    data = np.array([b"a", b"bc"], np.object_) if dtype is DType.STRING else [1, 2]
    spec = ModelSpec(
        [Tensor("a", (2,), dtype), Tensor("b", (2,), dtype, data), Tensor("c", (2,), dtype)],
        [OperatorSpec("ADD", {}, (0, 1), (2,))],
        inputs=(0,),
        outputs=(2,),
    )
    assert f"'a') is of type {dtype.value}" in _unknown(build(spec))["ADD"]


def test_a_shape_known_only_at_run_time_is_unknown_not_malformed() -> None:
    spec = ModelSpec(
        [Tensor("x", (6,)), Tensor("wanted", (2,), DType.I32), Tensor("y", (2, 3))],
        [OperatorSpec("RESHAPE", {}, (0, 1), (2,))],
        inputs=(0, 1),
        outputs=(2,),
    )
    assert _unknown(build(spec)) == {"RESHAPE": "RESHAPE: the new shape must be a constant"}


def test_four_bit_constants_become_eight_bit_ones() -> None:
    spec = ModelSpec(
        [
            Tensor("x", (3,), DType.I8),
            Tensor("w", (3,), DType.I4, [-8, 7, 3]),
            Tensor("y", (3,), DType.I8),
        ],
        [OperatorSpec("ADD", {}, (0, 1), (2,))],
        inputs=(0,),
        outputs=(2,),
    )
    weights = build(spec).values[1]
    assert weights.dtype is DType.I8
    assert weights.data is not None and weights.data.tolist() == [-8, 7, 3]


def test_sparse_constants_become_dense() -> None:
    model = read_model(write_model(samples.sparse()))
    value = build_graph(model, 0, {}).values[0]
    expected = np.zeros((4, 6), np.float32)
    expected[0:2, 2:4] = [[1, 2], [3, 4]]
    expected[2:4, 0:2] = [[5, 6], [7, 8]]
    expected[2:4, 4:6] = [[9, 10], [11, 12]]
    np.testing.assert_array_equal(value.data, expected)


def test_quantized_constants_are_not_folded() -> None:
    quant = Quantization((0.5,), (3,))
    spec = ModelSpec(
        [Tensor("a", (2,), DType.I8, [1, 2], quant), Tensor("b", (2,), DType.I8,
        quantization=quant)],
        [OperatorSpec("ADD", {}, (0, 0), (1,))],
        inputs=(),
        outputs=(1,),
    )  # fmt: skip
    graph = build(spec)
    assert [n.op for n in graph.nodes] == ["ADD"]
    assert graph.values[1].quant == quant


def _chain(operators: Sequence[OperatorSpec], outputs: tuple[int, ...] = (3,)) -> ModelFile:
    tensors = [Tensor(name, (2,)) for name in "xyzw"]
    return read_model(write_model(ModelSpec(tensors, operators, inputs=(0,), outputs=outputs)))


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (
            [OperatorSpec("ADD", {}, (0, 2), (1,)), OperatorSpec("ADD", {}, (0, 1), (2,))],
            r"operator 0 \(ADD\) reads tensor 2 \('z'\).*operator 1 makes only later",
        ),
        (
            [OperatorSpec("ADD", {}, (0, 1), (3,))],
            r"operator 0 \(ADD\) reads tensor 1 \('y'\).*no input, constant or result",
        ),
        (
            [OperatorSpec("ADD", {}, (0, 0), (3,)), OperatorSpec("ADD", {}, (0, 0), (3,))],
            r"operator 1 \(ADD\) writes tensor 3 \('w'\)",
        ),
        ([OperatorSpec("ADD", {}, (0, 0), (0,))], r"operator 0 \(ADD\) writes tensor 0 \('x'\)"),
        ([OperatorSpec("ADD", {}, (0, 0), (1,))], r"tensor 3 \('w'\) is an output.*nothing makes"),
    ],
)
def test_order_is_checked(operators: Sequence[OperatorSpec], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_graph(_chain(operators), 0, OPS)


def test_an_input_with_sparse_contents_is_an_error() -> None:
    sparsity = Sparsity(
        (0,), (), (Level(None, np.array([0, 1], np.int32), np.array([1], np.int32)),)
    )
    tensor = Tensor("x", (2,), data=np.array([1], np.float32), sparsity=sparsity)
    spec = ModelSpec([tensor], [], inputs=(0,), outputs=(0,))
    with pytest.raises(ModelError, match=r"tensor 0 \('x'\) is an input"):
        build(spec)


def test_operators_for_their_effect_alone_are_kept() -> None:
    spec = ModelSpec(
        [Tensor("x", (2,)), Tensor("unused", (2,)), Tensor("y", (2,))],
        [
            OperatorSpec("CALL_ONCE_LIKE", {}, (), ()),
            OperatorSpec("ADD", {}, (0, 0), (1,)),
            OperatorSpec("ADD", {}, (0, 0), (2,)),
        ],
        inputs=(0,),
        outputs=(2,),
    )
    graph = build(spec)
    assert [n.origins for n in graph.nodes] == [(0,), (2,)]
    assert 1 not in graph.values


def test_real_models_build_with_the_shapes_of_the_file(model_path: Path) -> None:
    model = read_model(model_path)
    graph = build_graph(model, 0, builtin_ops())
    verify(graph)
    by_index = {o.index: o for o in model.main.operators}
    for node in graph.nodes:
        operator = by_index[node.origins[0]]
        assert (node.op, node.version) == (operator.name, operator.version)
        assert tuple(-1 if v is None else v.id for v in node.inputs) == operator.inputs
        if isinstance(node.attrs, UnknownOp):
            continue
        for value in node.outputs:
            info = model.main.tensors[value.id]
            unknown = not info.shape and not info.has_rank  # the file leaves it to the operator
            assert value.shape == info.shape or -1 in info.shape_signature or unknown
