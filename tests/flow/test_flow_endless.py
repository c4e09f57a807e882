"""Loops that never end, and bodies and branches that would not work out but do not run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from flow_models import (
    BOOL,
    I32,
    STATE,
    branch,
    const,
    counting,
    loop,
    model,
    number,
    outputs,
    same,
    subgraph,
    tensor,
    up_to,
)
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import AllocationError
from tflgpu.flow.endless import FIRST, Watch

WHILE = ("WHILE", "i x", "io xo", loop(1, 2))
MAIN = subgraph([*STATE, tensor("io", (), I32), tensor("xo")], [WHILE], "i x", "io xo")


def _below(limit: float) -> Any:
    """Whether the largest element is below."""
    return subgraph(
        [
            *STATE, number("axis", 0), tensor("s", ()), const("most", limit), tensor("c", (), BOOL)
        ],
        [("REDUCE_MAX", "x axis", "s"), ("LESS", "s most", "c")], "i x", "c",
    )  # fmt: skip


def _doubling(counts: bool) -> Any:
    ops = [("MUL", "x two", "y")]
    if counts:
        return counting([const("two", 2.0), tensor("y")], ops, "y")
    return subgraph([*STATE, const("two", 2.0), tensor("y")], ops, "i x", "i y")


NEGATED = subgraph([*STATE, tensor("y")], [("NEG", "x", "y")], "i x", "i y")
ABS = subgraph([tensor("x"), tensor("y")], [("ABS", "x", "y")], "x", "y")
SQUARE = subgraph([tensor("x"), tensor("y")], [("SQUARE", "x", "y")], "x", "y")
BRANCHING = subgraph(
    [*STATE, number("zero", 0), tensor("c", (), BOOL), tensor("y")],
    [("LESS", "i zero", "c"), ("IF", "c x", "y", branch(3, 4))], "i x", "i y",
)  # fmt: skip
#: By what ends them: floats, whole numbers, a branch in each round.
ENDLESS = {
    "zeros doubled": model(MAIN, _below(50.0), _doubling(False)),
    "back and forth": model(MAIN, _below(50.0), NEGATED),
    "a counter that stands": model(MAIN, up_to(5), _doubling(False)),
    "a branch": model(MAIN, _below(50.0), BRANCHING, ABS, SQUARE),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_loop_is_an_error(name: str, by_numpy: list[GpuDelegate]) -> None:
    content = ENDLESS[name]
    with Interpreter(model_content=content, experimental_delegates=by_numpy) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(1, np.array([0, 1] if "branch" in name else [0, 0], np.float32))
        with pytest.raises(AllocationError, match=r"operator 0 \(WHILE\) never ends"):
            interpreter.invoke()


def test_it_goes_on_with_other_numbers(by_numpy: list[GpuDelegate]) -> None:
    content = ENDLESS["zeros doubled"]
    with Interpreter(model_content=content, experimental_delegates=by_numpy) as interpreter:
        interpreter.allocate_tensors()
        with pytest.raises(AllocationError, match="never ends"):
            interpreter.invoke()
        interpreter.set_tensor(1, np.array([1, 3], np.float32))
        interpreter.invoke()
        found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    np.testing.assert_array_equal(found[1], [32, 96])


def test_a_long_loop_ends(by_numpy: list[GpuDelegate]) -> None:
    """What is not a value of the loop's may decide, and values that change are none that come again."""
    assert FIRST < 1500
    content = model(MAIN, up_to(1500), _doubling(True))
    feeds = [[0, [0, 0]]]
    same(
        outputs(lambda **k: Interpreter(**k, experimental_delegates=by_numpy), content, feeds),
        outputs(LiteRT, content, feeds),
    )
    watch = Watch("here", decided=False)
    assert not any(watch.due() for _ in range(3 * FIRST))


def test_a_body_that_shrinks_to_nothing(by_numpy: list[GpuDelegate]) -> None:
    """The body fits no more at the shapes that the last round leaves, and does not run at them."""
    two, filters = (1, 7, 5, 1), const("w", np.ones((1, 3, 3, 1)))
    inputs = [tensor("i", (), I32), tensor("x", two)]
    main = subgraph(
        [*inputs, tensor("io", (), I32), tensor("xo", (1, 3, 1, 1))], [WHILE], "i x", "io xo"
    )
    cond = subgraph(
        [*inputs, number("n", 2), tensor("c", (), BOOL)], [("LESS", "i n", "c")], "i x", "c"
    )
    body = subgraph(
        [
            *inputs, number("one", 1), tensor("i2", (), I32), filters, const("b", [0.5]),
            tensor("y", (1, 5, 3, 1)),
        ],
        [
            ("ADD", "i one", "i2"),
            ("CONV_2D", "x w b", "y", {"padding": 1, "stride_h": 1, "stride_w": 1}),
        ],
        "i x", "i2 y",
    )  # fmt: skip
    content = model(main, cond, body)
    image = np.arange(35, dtype=np.float32).reshape(two) / 9
    feeds = [[0, image], [1, image], [2, image]]
    same(
        outputs(lambda **k: Interpreter(**k, experimental_delegates=by_numpy), content, feeds),
        outputs(LiteRT, content, feeds),
    )


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_side_that_does_not_work_out(rows: int, by_numpy: list[GpuDelegate]) -> None:
    """Filled up to three rows, or cut to three: each side works for some shapes only."""
    row = tensor("y", (3, 2))
    x = tensor("x", (1, 2))
    size = [("SHAPE", "x", "s"), ("STRIDED_SLICE", "s from to by", "n", {"shrink_axis_mask": 1})]
    sizes = [
        x, tensor("s", (2,), I32), number("from", [0]), number("to", [1]), number("by", [1]),
        tensor("n", (), I32), number("three", 3),
    ]  # fmt: skip
    main = subgraph(
        [*sizes, tensor("c", (), BOOL), row],
        [*size, ("LESS", "n three", "c"), ("IF", "c x", "y", branch(1, 2))], "x", "y",
    )  # fmt: skip
    filled = subgraph(
        [
            *sizes, tensor("k", (), I32), number("two", 2), tensor("dims", (2,), I32),
            const("zero", 0.0), tensor("f", (1, 2)), row,
        ],
        [
            *size, ("SUB", "three n", "k"), ("PACK", "k two", "dims", {"values_count": 2}),
            ("FILL", "dims zero", "f"), ("CONCATENATION", "x f", "y", {"axis": 0}),
        ],
        "x", "y",
    )  # fmt: skip
    cut = subgraph(
        [x, number("at", [0, 0]), number("size", [3, 2]), row],
        [("SLICE", "x at size", "y")], "x", "y",
    )  # fmt: skip
    content = model(main, filled, cut)
    given = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    with Interpreter(model_content=content, experimental_delegates=by_numpy) as interpreter:
        interpreter.resize_tensor_input(0, given.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, given)
        interpreter.invoke()
        found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_array_equal(found, np.pad(given, [(0, max(0, 3 - rows)), (0, 0)])[:3])
