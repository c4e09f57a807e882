"""What ops say of themselves, held against their references; and what they leave unsaid."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest
from tflgpu.conformance.facet_checks import facets_of
from tflgpu.conformance.samples import materialize
from tflgpu.ops.base import Accuracy, Activation, OpDef, Operand
from tflgpu.ops.moves import Moves
from tflgpu.ops.registry import builtin_ops

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
