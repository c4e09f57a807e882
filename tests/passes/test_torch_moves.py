"""Dense layers and moves as litert-torch writes them: how many kernels they are, as LiteRT computes
them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tflgpu.ir.dtypes import Array
from tflgpu.ops.moves import Moves, composed

from tests.compiler.test_found_attention import Building
from tests.passes.torch_layers import check, dense, drawn, ops, ran
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
pytestmark = pytest.mark.usefixtures("passes_alone")


# Dense layers of sequences


def residual(lead: Sequence[int] = (1,), also: str = "") -> bytes:
    """An ADD of [1, n, c] and [n, c]."""
    b = Building()
    x = b.given(*lead, 5, 8)
    made = dense(b, b.reshaped(x, 5, 8), 8)
    total = b.with_("ADD", x, made)
    return b.model(total, *([b.with_("MUL", made, made)] if also else []))


def swish(also: str = "", *, half: bool = False) -> bytes:
    b = Building()
    made = b.reshaped(dense(b, b.given(2, 3, 8), 12), 2, 3, 12)
    share = b.op("LOGISTIC", [made], (2, 3, 12))
    share = b.with_("MUL", share, b.const([[0.5]])) if half else share
    y = b.with_("MUL", made, share)
    more = {"gate": share, "dense": made, "": None}[also]
    return b.model(y, *([] if more is None else [b.op("ABS", [more], (2, 3, 12))]))


@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_a_residual_with_an_axis_more(lead: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    check(residual(lead), 1, "sink_reshapes", monkeypatch)


@pytest.mark.parametrize("half", [False, True])
def test_a_value_times_its_gate_behind_a_reshape(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(swish(half=half), 1, "sink_reshapes", monkeypatch)


@pytest.mark.parametrize(
    "content", [residual(also="dense"), swish("gate"), swish("dense")],
    ids=["residual", "gate", "dense"],
)  # fmt: skip
def test_what_others_read_too_is_stored(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, kernels = ran(content, given)
    assert kernels > 1
    for ours, expected in zip(found, outputs(theirs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


# Moves


def gathered(moves: Moves, data: Array) -> Array:
    """The elements that moves take of a flat operand, in order."""
    places = np.full((), moves.offset)
    for size, stride in zip(moves.sizes, moves.strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    taken: Array = data[places.reshape(-1)]
    return taken


STEPS = [
    Moves(0, (3, 4, 2), (8, 2, 1)), Moves(0, (4, 2, 3), (2, 1, 8)), Moves(0, (12, 2), (2, 1)),
    Moves(0, (2, 12), (1, 2)), Moves(0, (4, 3, 2), (6, 2, 1)), Moves(0, (2, 2, 6), (12, 1, 2)),
    Moves(0, (6, 4), (1, 6)), Moves(0, (24,), (1,)), Moves(0, (8, 3), (3, 1)),
]  # fmt: skip
CUTS = [Moves(0, (2, 4), (8, 1), 4), Moves(0, (3,), (8,), 5), Moves(0, (2, 3), (12, 2), 6)]


@pytest.mark.parametrize("then", [*STEPS, *CUTS])
@pytest.mark.parametrize("first", [*STEPS, Moves(0, (12, 2), (4, 1), 3), Moves(0, (24,), (0,))])
def test_moves_in_a_row_are_one(first: Moves, then: Moves) -> None:
    data, found = np.arange(60), composed(first, then)
    expected = gathered(then, gathered(first, data))
    if found is not None:
        np.testing.assert_array_equal(gathered(found, data), expected)


def test_moves_that_undo_each_other_are_none() -> None:
    found = composed(Moves(0, (6, 4), (1, 6)), Moves(0, (2, 2, 6), (2, 1, 4)))
    assert found is not None
    assert found.is_identity((24,))


@pytest.mark.parametrize(
    "then", [Moves(0, (4,), (-2,), 6), Moves(0, (3, 2), (4, 3)), Moves(0, (0,), (1,))]
)
def test_what_is_not_regular_is_not_composed(then: Moves) -> None:
    assert composed(Moves(0, (2, 2, 3), (3, 6, 1)), then) is None


def tokens(h: int = 4, w: int = 4, c: int = 8, order: Sequence[int] = (0, 2, 1)) -> bytes:
    """Of an image, as a patch embedding makes them: channels first, rows and columns as one axis,
    channels last."""
    b = Building()
    x = b.op("ABS", [b.given(1, h, w, c)], (1, h, w, c))
    x = b.reshaped(b.transposed(x, 0, 3, 1, 2), 1, c, h * w)
    x = b.transposed(x, *order)
    return b.model(b.op("NEG", [x], b.shape(x)))


def patches(c: int = 8, *, back: bool = False) -> bytes:
    """MobileViT's: the four places of a 2 x 2 patch become rows of their own, or pixels again."""
    b = Building()
    if back:
        x = b.op("ABS", [b.given(4, 4, c)], (4, 4, c))
        x = b.transposed(b.reshaped(x, 1, 4, 4, c), 0, 3, 2, 1)
        x = b.transposed(b.reshaped(x, c * 2, 2, 2, 2), 0, 2, 1, 3)
        x = b.transposed(b.reshaped(x, 1, c, 4, 4), 0, 2, 3, 1)
    else:
        x = b.op("ABS", [b.given(1, 4, 4, c)], (1, 4, 4, c))
        x = b.reshaped(b.transposed(x, 0, 3, 1, 2), c * 2, 2, 2, 2)
        x = b.reshaped(b.transposed(x, 0, 2, 1, 3), 1, c, 4, 4)
        x = b.reshaped(b.transposed(x, 0, 3, 2, 1), 4, 4, c)
    return b.model(b.op("NEG", [x], b.shape(x)))


def test_tokens_of_an_image_are_reshaped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops(tokens()) == ["ABS", "RESHAPE", "NEG"]
    check(tokens(), 2, "merge_moves", monkeypatch)


@pytest.mark.parametrize("back", [False, True])
def test_patches_are_one_move(back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops(patches(back=back)).count("TRANSPOSE") == 1
    check(patches(back=back), 2, "merge_moves", monkeypatch)


@pytest.mark.parametrize(
    "content", [tokens(3, 5, 7, (1, 0, 2)), patches(3), tokens(order=(2, 1, 0))]
)
def test_other_moves_are_as_before(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    (found,), _ = ran(content, given)
    np.testing.assert_array_equal(found, outputs(theirs)[0])


def test_a_move_that_others_read_stays_for_them() -> None:
    b = Building()
    x = b.op("ABS", [b.given(1, 4, 4, 8)], (1, 4, 4, 8))
    first = b.reshaped(b.transposed(x, 0, 3, 1, 2), 1, 8, 16)
    last = b.transposed(first, 0, 2, 1)
    found = ops(b.model(b.op("NEG", [last], (1, 16, 8)), b.op("NEG", [first], (1, 8, 16))))
    assert found.count("TRANSPOSE") == 1
