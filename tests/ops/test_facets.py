"""What ops say of themselves, held against their references; and what they leave unsaid."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.conformance.facet_checks import facets_of
from tflgpu.conformance.samples import materialize
from tflgpu.conformance.tolerance import Tolerance
from tflgpu.errors import ModelError, TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node, TensorSpec
from tflgpu.ops.base import Accuracy, Activation, Fields, OpDef, Operand, Sample
from tflgpu.ops.moves import Moves
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.batch import BatchedGraph

OPS = builtin_ops()


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_facets_are_what_the_reference_does(op: OpDef) -> None:
    for sample in op.samples():
        for name, problem in facets_of(materialize(op, sample)):
            assert problem is None, f"{sample.id}: {name}: {problem}"


def test_every_facet_is_shown_by_samples() -> None:
    """So that the test before looks at all of them."""
    shown: Counter[str] = Counter()
    for op in OPS.values():
        found = {name for sample in op.samples() for name, _ in facets_of(materialize(op, sample))}
        shown.update(found)
        if op.movement.moves is not None:
            assert "moves" in found, op.name
        if op.arithmetic.filter is not None:
            assert "filter" in found, op.name
        if op.arithmetic.activation_field:
            assert "activation_field" in found, op.name
    assert set(shown) == {
        "moves", "copies", "keeps_values", "affine", "reorder", "activation_field", "computes",
        "filter", "filter.spread", "filter.zeros", "filter.pads", "batch", "shape_only",
    }  # fmt: skip


@pytest.mark.parametrize(
    "op", [o for o in OPS.values() if o.accuracy is Accuracy.EXACT], ids=lambda op: op.name
)
def test_no_op_that_only_moves_forgets_to_say_so(op: OpDef) -> None:
    """EMBEDDING_LOOKUP once did, and its results were rounded anew."""
    if op.movement.keeps_values:
        return
    kept: list[bool] = []
    for sample in op.samples():
        case = materialize(op, sample)
        operands = [v.data if v.data is not None else case.arrays[v.id]
                    for v in case.node.inputs if v is not None]  # fmt: skip
        floats = [a.reshape(-1) for a in operands if a.dtype.kind == "f"]
        known = [*np.concatenate([*floats, np.zeros(1)])]
        kept += [bool(np.isin(r, known).all()) for r in case.expected if r.dtype.kind == "f"]
    assert not kept or not all(kept)


def test_every_fused_activation_is_said() -> None:
    """Attributes with an `Activation` are either fused or known not to be."""
    inside = {  # within the cell
        "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "LSTM", "RNN",
        "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN",
    }  # fmt: skip
    # Of two results it is applied to the first, and not every one is taken; undoing ignores it.
    other = {"MaxPoolingWithArgmax2D", "MaxUnpooling2D"}
    for op in OPS.values():
        for sample in op.samples():
            node = materialize(op, sample).node
            fields = attrs.fields_dict(type(node.attrs))
            found = [f for f in fields if isinstance(getattr(node.attrs, f), Activation)]
            assert (
                found == [op.arithmetic.activation_field] * bool(found) or op.name in inside | other
            )


def test_each_activation_has_one_op() -> None:
    said = Counter(op.arithmetic.computes for op in OPS.values())
    del said[Activation.NONE]
    assert dict(said) == dict.fromkeys(
        (Activation.RELU, Activation.RELU6, Activation.RELU_N1_TO_1, Activation.TANH), 1
    )


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("CONV_2D", ()), ("PADV2", (1,)), ("RANGE", (0, 1, 2)), ("RESHAPE", (1,)), ("SLICE", (1,
        2)),
        ("SPLIT", (0,)), ("TRANSPOSE_CONV", (0,)), ("ONE_HOT", (1,)),
    ],
)  # fmt: skip
def test_what_must_be_known_before_the_model_runs(name: str, positions: tuple[int, ...]) -> None:
    op = OPS[name]
    node = materialize(op, op.samples()[0]).node
    operands = [None if v is None else Operand(v.spec, v.data) for v in node.inputs]
    assert op.must_know(node.attrs, operands) == positions


# Moves


@pytest.mark.parametrize(
    ("sizes", "strides", "offset", "shape", "same"),
    [
        ((2, 3, 5), (15, 5, 1), 0, (2, 3, 5), True),
        ((30,), (1,), 0, (2, 3, 5), True),
        ((2, 1, 15), (15, 7, 1), 0, (6, 5), True),
        ((15, 2), (1, 15), 0, (2, 15), False),
        ((2, 15), (15, 1), 1, (2, 15), False),
        ((29,), (1,), 0, (2, 15), False),
        ((2, 15), (0, 1), 0, (2, 15), False),
        ((0, 3), (3, 1), 0, (3, 0), True),
    ],
)
def test_moves_that_change_nothing(
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    shape: tuple[int, ...],
    same: bool,
) -> None:
    assert Moves(0, sizes, strides, offset).is_identity(shape) == same


@pytest.mark.parametrize(
    ("moves", "shape", "result", "order"),
    [
        (Moves(0, (5, 2, 3), (1, 15, 5)), (2, 3, 5), (5, 2, 3), (2, 0, 1)),
        (Moves(0, (5, 6), (1, 5)), (2, 3, 5), (5, 2, 3), (2, 0, 1)),
        (Moves(0, (5, 2, 1, 3), (1, 15, 9, 5)), (2, 1, 3, 5), (5, 2, 1, 3), (3, 0, 1, 2)),
        (Moves(0, (2, 2), (1, 2)), (2, 2), (2, 2), (1, 0)),
        (Moves(0, (2, 2), (2, 2)), (2, 2), (2, 2), None),  # repeats elements
        (Moves(0, (3, 2), (2, -1), 1), (2, 3), (3, 2), None),  # backwards
        (Moves(0, (3, 2, 2), (2, 6, 1)), (6, 2), (6, 2), None),  # splits a dimension
        (Moves(0, (5, 6), (1, 5)), (2, 3, 5), (5, 6), None),  # joins two
    ],
)
def test_moves_that_transpose(
    moves: Moves, shape: tuple[int, ...], result: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    assert moves.permutation(shape, result) == order


# `OpDef.batch`: what an op becomes for several items computes each as it is computed alone. Every
# sample of every op that says so: each choice of operands that are different from item to item,
# the others constants. What an op refuses is refused with words.


COUNT = 3
MOST = 30_000  # elements; larger samples show nothing more
BATCH_OPS = {name: op for name, op in builtin_ops().items() if op.batch is not None}

#: Ops that answer, and whose answer is always no.
NEVER = {"TFLite_Detection_PostProcess"}


def node_of(
    op: OpDef, sample: Sample, arrays: Sequence[Array | None], each: Collection[int]
) -> tuple[Graph, Node]:
    graph = Graph()
    inputs = []
    for i, (arg, array) in enumerate(zip(sample.args, arrays, strict=True)):
        if arg is None or array is None:
            inputs.append(None)
            continue
        value = graph.add_value(array.shape, arg.dtype, data=None if i in each else array)
        inputs.append(value)
        if i in each:
            graph.inputs.append(value)
    attributes = op.parse(Fields(op.name, sample.fields, sample.custom_options))
    specs = op.infer(attributes, [None if v is None else Operand(v.spec, v.data) for v in inputs])
    outputs = [graph.add_value(s.shape, s.dtype) for s in specs]
    node = graph.add_node(op.name, attributes, inputs, outputs)
    graph.outputs = outputs
    return graph, node


def run(node: Node, given: dict[int, Array]) -> list[Array]:
    op = builtin_ops()[node.op]
    arrays = [None if v is None else given.get(v.id, v.data) for v in node.inputs]
    results = op.reference(node.attrs, arrays)
    assert [r.shape for r in results] == [v.shape for v in node.outputs]
    return results


def choices(sample: Sample) -> Iterator[tuple[int, ...]]:
    free = [
        i for i, a in enumerate(sample.args) if a is not None and a.data is None and not a.const
    ]
    for size in range(1, len(free) + 1) if len(free) < 5 else (1, len(free)):
        yield from itertools.combinations(free, size)


def of_items(
    op: OpDef, sample: Sample, each: tuple[int, ...]
) -> tuple[str | None, list[Array], list[Array]]:
    """Why not; else what comes of all items at once, and of each alone."""
    rng = np.random.default_rng(5)
    arrays: list[Array | None] = [None if a is None else a.draw(rng) for a in sample.args]
    items: list[dict[int, Any]] = [
        {i: a.draw(rng) for i in each if (a := sample.args[i]) is not None} for _ in range(COUNT)
    ]
    graph, node = node_of(op, sample, arrays, each)
    ids = {i: node.input(i).id for i in each}
    alone = [run(node, {ids[i]: item[i] for i in each}) for item in items]
    work = BatchedGraph(graph, COUNT, builtin_ops())
    refused = next(filter(None, map(work.widen, graph.inputs)), None) or work.add(node)
    if refused is not None:
        return refused, [], []
    wide = {ids[i]: np.concatenate([np.atleast_1d(item[i]) for item in items]) for i in each}
    for each_node in work.nodes:
        results = run(each_node, wide)
        wide.update((v.id, r) for v, r in zip(each_node.outputs, results, strict=True))
    joined = [np.concatenate(list(map(np.atleast_1d, parts))) for parts in zip(*alone, strict=True)]
    return None, [wide[v.id] for v in graph.outputs], joined


@pytest.mark.parametrize("name", BATCH_OPS)
def test_items_are_computed_as_they_are_alone(name: str) -> None:
    op, taken = BATCH_OPS[name], 0
    for sample in op.samples():
        if sum(np.prod(a.shape, dtype=int) for a in sample.args if a is not None) > MOST:
            continue
        for each in choices(sample):
            refused, got, wanted = of_items(op, sample, each)
            if refused is not None:
                assert len(refused) > 10, refused
                continue
            taken += 1
            limit = Tolerance.of(op.accuracy, sample.accumulates)
            for mine, theirs in zip(got, wanted, strict=True):
                assert mine.dtype == theirs.dtype
                problem = limit.mismatch(mine, theirs)
                assert problem is None, f"{name} {sample.id} {each}: {problem}"
    assert bool(taken) is (name not in NEVER)


def test_most_ops_say_something() -> None:
    """So that the loop above is about something."""
    assert len(BATCH_OPS) > 90


# References of tensors without elements: of the shape that inference says, or refused in words.


#: Samples of an op: its shapes differ more than its options.
_MOST = 3


def emptied(
    op: OpDef, sample: Sample
) -> Iterator[tuple[object, list[Operand | None], list[Array | None]]]:
    """Attributes and operands of a sample, with a size of an operand, and of those shaped like it,
    0."""
    case = materialize(op, sample)
    node = case.node
    for value in node.inputs:
        if value is None or value.data is not None or value.is_variable:
            continue
        for axis in range(len(value.shape)):
            operands: list[Operand | None] = []
            arrays: list[Array | None] = []
            for other in node.inputs:
                if other is None:
                    operands.append(None)
                    arrays.append(None)
                    continue
                array = case.arrays.get(other.id, other.data)
                if array is None:
                    array = np.zeros(other.shape, other.dtype.numpy)
                if other.data is None and other.shape == value.shape:
                    array = np.zeros(
                        [0 if i == axis else d for i, d in enumerate(array.shape)], array.dtype
                    )
                operands.append(Operand(TensorSpec(array.shape, other.dtype), other.data))
                arrays.append(array)
            yield node.attrs, operands, arrays


@pytest.mark.parametrize("op", builtin_ops().values(), ids=lambda op: op.name)
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value")
def test_a_reference_agrees_with_its_inference(op: OpDef) -> None:
    for sample in list(op.samples())[:_MOST]:
        for attributes, operands, arrays in emptied(op, sample):
            try:
                specs = op.infer(attributes, operands)
                with np.errstate(all="ignore"):
                    results = op.reference(attributes, arrays)
            except TflgpuError as error:
                assert str(error)
                continue
            for result, spec in zip(results, specs, strict=False):  # then the state, if it has one
                assert result.shape == spec.shape, (sample.id, arrays)
                assert result.dtype == spec.dtype.numpy


@pytest.mark.parametrize(
    "name", ["CONV_2D", "CONV_3D", "DEPTHWISE_CONV_2D", "MAX_POOL_2D", "FULLY_CONNECTED"]
)
def test_no_items(name: str) -> None:
    """A batch of none, which LiteRT runs."""
    op = builtin_ops()[name]
    attributes, operands, arrays = next(emptied(op, op.samples()[0]))
    (spec,) = op.infer(attributes, operands)
    (result,) = op.reference(attributes, arrays)
    assert result.shape == spec.shape
    assert spec.shape[0] == 0
    assert 0 not in spec.shape[1:]


# Types of which an op that counts, sorts or blends makes nothing are refused, as LiteRT refuses
# them.


def infer(op: str, fields: dict[str, Any], *operands: Operand) -> list[TensorSpec]:
    definition = builtin_ops()[op]
    return definition.infer(definition.parse(Fields(op, fields)), operands)


def const(value: Any, dtype: DType) -> Operand:
    data = np.array(value, dtype.numpy)
    return Operand(TensorSpec(data.shape, dtype), data)


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.C64, DType.C128])
def test_a_range(dtype: DType) -> None:
    with pytest.raises(ModelError, match=f"RANGE: start .* is {dtype.value}, not a number"):
        infer("RANGE", {}, *(const(n, dtype) for n in (0, 1, 1)))
    assert infer("RANGE", {}, *(const(n, DType.I16) for n in (0, 3, 1)))[0].shape == (3,)


@pytest.mark.parametrize("dtype", [DType.C64, DType.C128])
def test_the_largest_of_complex_numbers(dtype: DType) -> None:
    with pytest.raises(ModelError, match="complex numbers, of which none is the largest"):
        infer("TOPK_V2", {}, Operand(TensorSpec((5,), dtype)), const(2, DType.I32))
    found = infer("TOPK_V2", {}, Operand(TensorSpec((5,), DType.F64)), const(2, DType.I32))
    assert found[0] == TensorSpec((2,), DType.F64)


@pytest.mark.parametrize("dtype", [DType.BOOL, DType.C64, DType.I32, DType.U64])
def test_between_two_pixels(dtype: DType) -> None:
    size, image = const([4, 4], DType.I32), (1, 2, 3, 1)
    with pytest.raises(ModelError, match=f"RESIZE_BILINEAR takes .*, not {dtype.value}"):
        infer("RESIZE_BILINEAR", {}, Operand(TensorSpec(image, dtype)), size)
    nearest = infer("RESIZE_NEAREST_NEIGHBOR", {}, Operand(TensorSpec(image, dtype)), size)
    assert nearest == [TensorSpec((1, 4, 4, 1), dtype)]
