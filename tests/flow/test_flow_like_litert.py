"""Branches, loops and variables, held against LiteRT: values, shapes, types, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.flow.program import KEPT
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.flow.flow_models import (
    BOOL,
    F32,
    I32,
    RESOURCE,
    STATE,
    Feeds,
    accumulator,
    branch,
    const,
    counting,
    initializer,
    loop,
    model,
    number,
    outputs,
    same,
    subgraph,
    tensor,
    up_to,
    variable,
)
from tests.running import allocate_and_run, set_and_run
from tests.watched_device import WatchedDevice

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

X = [1.5, -2.0]
WHILE = ("WHILE", "i x", "io xo", loop(1, 2))
MAIN = subgraph([*STATE, tensor("io", (), I32), tensor("xo")], [WHILE], "i x", "io xo")
DOUBLED = counting([tensor("y")], [("ADD", "x x", "y")], "y")
TIMES: Feeds = [[0, X], [3, X], [5, X], [-1, X], [0, X]]

CHOICE = subgraph(
    [tensor("c", (), BOOL), tensor("x"), tensor("a"), tensor("y"), tensor("z")],
    [("NEG", "x", "a"), ("IF", "c a", "y", branch(1, 2)), ("NEG", "y", "z")], "c x", "z",
)  # fmt: skip
SQUARE = subgraph([tensor("x"), tensor("y")], [("MUL", "x x", "y")], "x", "y")
ABS = subgraph([tensor("x"), tensor("y")], [("ABS", "x", "y")], "x", "y")
TWICE = subgraph([tensor("x"), tensor("y", (4,))], [("CONCATENATION", "x x", "y")], "x", "y")
EITHER: Feeds = [[True, X], [False, X], [False, X], [True, X]]
SAME = subgraph([tensor("x")], [], "x", "x")

ONCE = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})
Q = Quantization((0.25,), (3,))


def _loops() -> dict[str, tuple[bytes, Feeds]]:
    three = [*STATE, tensor("y")]
    swapped = counting([tensor("y"), tensor("s")], [("ADD", "x y", "s")], "y s", "i x y")
    turned = subgraph(
        [*three, tensor("io", (), I32), tensor("xo"), tensor("yo")],
        [("WHILE", "i x y", "io xo yo", loop(1, 2))], "i x y", "io xo yo",
    )  # fmt: skip
    fixed = counting([tensor("y"), tensor("s")], [("MUL", "x y", "s")], "s y", "i x y")
    # Ends by what is computed in floats: nobody can say beforehand when.
    norm = subgraph(
        [tensor("x"), number("axis", 0), tensor("s", ()), const("most", 50.0), tensor("c", (),
        BOOL)],
        [("SUM", "x axis", "s"), ("LESS", "s most", "c")], "x", "c",
    )  # fmt: skip
    grown = subgraph(
        [tensor("x"), const("f", 1.5), const("d", 1.0), tensor("m"), tensor("y")],
        [("MUL", "x f", "m"), ("ADD", "m d", "y")], "x", "y",
    )  # fmt: skip
    ending = subgraph([tensor("x"), tensor("y")], [("WHILE", "x", "y", loop(1, 2))], "x", "y")
    inner = counting(
        [number("zero", 0), tensor("k", (), I32), tensor("y")],
        [("WHILE", "zero x", "k y", loop(3, 4))], "y",
    )  # fmt: skip
    chosen = counting(
        [number("two", 2), tensor("c", (), BOOL), tensor("y")],
        [("LESS", "i two", "c"), ("IF", "c x", "y", branch(3, 4))], "y",
    )  # fmt: skip
    longer = counting([tensor("y", (4,))], [("CONCATENATION", "x x", "y", {"axis": 0})], "y")
    # Its second piece reads x when the first has made the next one.
    late = counting(
        [
            tensor("y"), number("two", 2), tensor("c", (), BOOL), tensor("x2"), tensor("r"),
            tensor("s"),
        ],
        [
            ("LESS", "i two", "c"), ("ADD", "x x", "x2"), ("IF", "c y", "r", branch(3, 4)),
            ("ADD", "r x", "s"),
        ],
        "x2 s", "i x y",
    )  # fmt: skip
    n = tensor("n", (), I32)
    bounded = subgraph(
        [*STATE, n, tensor("io", (), I32), tensor("xo"), tensor("no", (), I32)],
        [("WHILE", "i x n", "io xo no", loop(1, 2))], "i x n", "io xo",
    )  # fmt: skip
    below = subgraph([*STATE, n, tensor("c", (), BOOL)], [("LESS", "i n", "c")], "i x n", "c")
    kept = counting([n, tensor("y")], [("ADD", "x x", "y")], "y n", "i x n")
    quant = [tensor("i", (), I32), tensor("x", (2,), DType.I8, Q)]
    scaled = [
        subgraph([*quant, number("n", 3), tensor("c", (), BOOL)], [("LESS", "i n", "c")], "i x",
        "c"),
        subgraph(
            [*quant, number("one", 1), tensor("i2", (), I32), tensor("y", (2,), DType.I8, Q)],
            [("ADD", "i one", "i2"), ("ADD", "x x", "y")], "i x", "i2 y",
        ),
    ]  # fmt: skip
    stored = subgraph(
        [*quant, tensor("io", (), I32), tensor("xo", (2,), DType.I8, Q)], [WHILE], "i x", "io xo"
    )
    many = subgraph(
        [*STATE, tensor("i2", (), I32), tensor("x2"), tensor("i3", (), I32), tensor("x3"),
        tensor("s")],
        [
            ("WHILE", "i x", "i2 x2", loop(1, 2)), ("WHILE", "i x2", "i3 x3", loop(1, 2)),
            ("SUB", "x3 x2", "s"),
        ],
        "i x", "s x2 x3",
    )  # fmt: skip
    by_flag = subgraph(
        [tensor("c", (), BOOL), tensor("x"), tensor("co", (), BOOL), tensor("xo")],
        [("WHILE", "c x", "co xo", loop(1, 2))], "c x", "co xo",
    )  # fmt: skip
    flagged = [
        subgraph([tensor("c", (), BOOL), tensor("x")], [], "c x", "c"),
        subgraph(
            [
                tensor("c", (), BOOL), tensor("x"), const("m", [0, 3.0]), tensor("y"),
                tensor("l"), const("lim", [9.0, 40.0]), tensor("b", (2,), BOOL),
                number("axis", 0), tensor("d", (), BOOL),
            ],
            [
                ("ADD", "x m", "y"), ("LESS", "y lim", "b"),
                ("REDUCE_ALL", "b axis", "d"),
            ],
            "c x", "d y",
        ),
    ]  # fmt: skip
    return {
        "counted": (model(MAIN, up_to(5), DOUBLED), TIMES),
        "swapped": (model(turned, up_to(4, tensor("y")), swapped), [[0, X, [3, 1]], [1, X, X]]),
        "with what stays": (
            model(turned, up_to(4, tensor("y")), fixed),
            [[0, X, [3, 1]], [9, X, X]],
        ),
        "by floats": (model(ending, norm, grown), [[X], [[70, 1]], [[1, 1]]]),
        "by a flag that it carries": (model(by_flag, *flagged), [[True, X], [False, X]]),
        "in a loop": (model(MAIN, up_to(3), inner, up_to(2), DOUBLED), TIMES),
        "with a branch": (model(MAIN, up_to(4), chosen, SQUARE, ABS), TIMES),
        "that reads late": (
            model(turned, up_to(4, tensor("y")), late, SQUARE, ABS),
            [[0, X, [3, 1]], [1, X, X]],
        ),
        "up to an input": (model(bounded, below, kept), [[0, X, 3], [0, X, 5], [2, X, 3]]),
        "that grows": (model(MAIN, up_to(3), longer), [[0, X], [2, X], [3, X]]),
        "of stored numbers": (model(stored, *scaled), [[0, [4, 5]], [2, [3, 9]]]),
        "twice": (model(many, up_to(5), DOUBLED), [[3, X], [4, X], [9, X]]),
        "with nothing in it": (model(MAIN, up_to(2), counting([], [], "x")), [[0, X], [9, X]]),
    }


def _branches() -> dict[str, tuple[bytes, Feeds]]:
    both = subgraph(
        [tensor("c", (), BOOL), tensor("x"), tensor("n"), tensor("a"), tensor("b"), tensor("s")],
        [
            ("ADD", "x x", "n"), ("IF", "c x", "a", branch(1, 2)),
            ("IF", "c n", "b", branch(1, 2)),
            ("SUB", "a b", "s"),
        ],
        "c x", "s a b",
    )  # fmt: skip
    listed = subgraph(
        [tensor("c", (1,), BOOL), tensor("x"), tensor("y")], [("IF", "c x", "y", branch(1, 2))],
        "c x", "y",
    )  # fmt: skip
    nothing = subgraph([tensor("x"), const("k", [7.0, 8.0])], [], "x", "k")
    case = ("STABLEHLO_CASE", "i a", "y", {"branch_subgraph_indices": (1, 2, 3)})
    many = subgraph(
        [tensor("i", (), I32), tensor("x"), tensor("a"), tensor("y"), tensor("z")],
        [("NEG", "x", "a"), case, ("NEG", "y", "z")], "i x", "z",
    )  # fmt: skip
    return {
        "either": (model(CHOICE, SQUARE, ABS), EITHER),
        "of other shapes": (model(CHOICE, SQUARE, TWICE), EITHER),
        "that do nothing": (model(CHOICE, SAME, nothing), EITHER),
        "called twice": (model(both, SQUARE, ABS), EITHER),
        # A number that is no branch's is the last one's.
        "of many": (model(many, SQUARE, ABS, nothing), [[i, X] for i in (0, 1, 2, -1, 7, 1)]),
        "of many shapes": (model(many, TWICE, ABS, TWICE), [[i, X] for i in (0, 1, 2, 1)]),
        "by a list of one": (model(listed, SQUARE, ABS), [[[True], X], [[False], X]]),
    }


def _states() -> dict[str, tuple[bytes, Feeds]]:
    old = subgraph(
        [tensor("x"), tensor("h", (), RESOURCE), tensor("old"), tensor("new"), tensor("again")],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""), ("READ_VARIABLE", "h",
            "again"),
            ("ASSIGN_VARIABLE", "h again", ""),
        ],
        "x", "old new again",
    )  # fmt: skip
    two = subgraph(
        [
            tensor("x"), tensor("h", (), RESOURCE), tensor("a"), tensor("b"),
            tensor("g", (), RESOURCE), tensor("c"), tensor("d"),
        ],
        [
            ONCE, ("CALL_ONCE", "", "", {"init_subgraph_index": 2}),
            ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "a"),
            ("ADD", "a x", "b"), ("ASSIGN_VARIABLE", "h b", ""),
            ("VAR_HANDLE", "", "g", variable("w")), ("READ_VARIABLE", "g", "c"),
            ("MUL", "c b", "d"), ("ASSIGN_VARIABLE", "g d", ""),
        ],
        "x", "b d",
    )  # fmt: skip
    # The body adds to the variable, whose handle it finds by itself.
    body = counting(
        [tensor("h", (), RESOURCE), tensor("old"), tensor("new")],
        [
            ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "x",
    )  # fmt: skip
    inside = subgraph(
        [
            *STATE, tensor("h", (), RESOURCE), tensor("io", (), I32), tensor("xo"),
            tensor("before"), tensor("after"),
        ],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "before"),
            ("WHILE", "i x", "io xo", loop(2, 3)), ("READ_VARIABLE", "h", "after"),
        ],
        "i x", "before after",
    )  # fmt: skip
    # Or is given it.
    passed = subgraph(
        [tensor("h", (), RESOURCE), *STATE, number("one", 1), tensor("i2", (), I32), tensor("old"),
         tensor("new")],
        [
            ("ADD", "i one", "i2"), ("READ_VARIABLE", "h", "old"), ("ADD", "old x", "new"),
            ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "h i x", "h i2 x",
    )  # fmt: skip
    asked = subgraph(
        [tensor("h", (), RESOURCE), *STATE, number("n", 3), tensor("c", (), BOOL)],
        [("LESS", "i n", "c")], "h i x", "c",
    )  # fmt: skip
    given = subgraph(
        [
            *STATE, tensor("h", (), RESOURCE), tensor("ho", (), RESOURCE), tensor("io", (), I32),
            tensor("xo"), tensor("after"),
        ],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()),
            ("WHILE", "h i x", "ho io xo", loop(2, 3)), ("READ_VARIABLE", "h", "after"),
        ],
        "i x", "after",
    )  # fmt: skip
    whole = subgraph(
        [tensor("x", (2,), I32), tensor("h", (), RESOURCE), tensor("old", (2,), I32),
         tensor("new", (2,), I32)],
        [
            ONCE, ("VAR_HANDLE", "", "h", variable()), ("READ_VARIABLE", "h", "old"),
            ("ADD", "old x", "new"), ("ASSIGN_VARIABLE", "h new", ""),
        ],
        "x", "new",
    )  # fmt: skip
    first = initializer([10, 20])
    return {
        "added up": (model(accumulator(ONCE), first), [[X], [X], [[0, 1]]]),
        "old and new": (model(old, first), [[X], [X], [X]]),
        "two variables": (model(two, first, initializer([2, 3], "w")), [[X], [X], [X]]),
        "changed by a loop": (
            model(inside, first, up_to(3), body),
            [[0, X], [2, X], [3, X], [0, X]],
        ),
        "given to a loop": (model(given, first, asked, passed), [[0, X], [1, X], [7, X]]),
        "whole numbers": (model(whole, initializer([1, 2], dtype=I32)), [[[1, 2]], [[3, 4]]]),
    }


CASES = {
    f"{kind}: {name}": case
    for kind, cases in (("loop", _loops()), ("branch", _branches()), ("state", _states()))
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_like_litert(name: str, delegates: list[GpuDelegate]) -> None:
    content, feeds = CASES[name]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    same(outputs(ours, content, feeds), outputs(litert.Interpreter, content, feeds))


@pytest.mark.parametrize("name", ["loop: in a loop", "branch: either", "state: old and new"])
def test_with_every_tensor_kept(name: str, by_numpy: list[GpuDelegate]) -> None:
    content, feeds = CASES[name]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(
            model_content=model_content, experimental_delegates=by_numpy,
            experimental_preserve_all_tensors=True,
        )  # fmt: skip

    same(outputs(ours, content, feeds), outputs(litert.Interpreter, content, feeds))


def test_a_kept_tensor_between_the_operators(by_numpy: list[GpuDelegate]) -> None:
    content, _ = CASES["branch: either"]
    with Interpreter(
        model_content=content, experimental_delegates=by_numpy,
        experimental_preserve_all_tensors=True,
    ) as interpreter:  # fmt: skip
        allocate_and_run(interpreter, {0: np.array(True), 1: np.array(X, np.float32)})
        np.testing.assert_array_equal(interpreter.get_tensor(2), -np.array(X, np.float32))
        np.testing.assert_array_equal(interpreter.get_tensor(3), np.square(X))


@pytest.mark.parametrize(
    "name",
    ["loop: in a loop", "loop: that grows", "branch: called twice", "state: changed by a loop",
     "state: given to a loop"],
)  # fmt: skip
def test_inside_litert(name: str, by_numpy: list[GpuDelegate]) -> None:
    """Control flow stays with LiteRT there; what its subgraphs have is the delegate's."""
    content, feeds = CASES[name]

    def delegated(model_content: bytes) -> Any:
        return litert.Interpreter(model_content=model_content, experimental_delegates=by_numpy)

    same(outputs(delegated, content, feeds), outputs(litert.Interpreter, content, feeds))
    assert any(report.delegated_nodes for report in by_numpy[0].reports)
    refusals = [r for report in by_numpy[0].reports for r in report.refusals]
    assert any("control flow and variables are the interpreter's own" in r.reason for r in refusals)


def _resized(make: Any, content: bytes) -> list[Any]:
    """What comes of a variable and a loop while the input gets other shapes."""
    interpreter, found = make(model_content=content), []
    for shape in ((2,), (3,), (3, 2), (2,)):
        interpreter.resize_tensor_input(interpreter.get_input_details()[1]["index"], shape)
        interpreter.allocate_tensors()
        details = interpreter.get_output_details()
        found.append([tuple(d["shape"]) for d in details])
        for start in (0, 4):
            interpreter.set_tensor(interpreter.get_input_details()[0]["index"], np.int32(start)[()])
            x = np.arange(np.prod(shape), dtype=F32.numpy).reshape(shape)
            set_and_run(interpreter, {interpreter.get_input_details()[1]["index"]: x})
            found += [np.array(interpreter.get_tensor(d["index"])) for d in details]
    return found


def test_a_resized_loop(delegates: list[GpuDelegate]) -> None:
    content, _ = CASES["loop: counted"]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    for mine, theirs in zip(
        _resized(ours, content), _resized(litert.Interpreter, content), strict=True
    ):
        np.testing.assert_equal(mine, theirs)


# Shapes that come when the model runs, in files that lie about them; and tensors without
# elements.


I64 = DType.I64
SCALED = Quantization((0.5,), (3,))
INT_TO_FLOAT = {"in_data_type": 2, "out_data_type": 0}


def _cases() -> dict[str, tuple[bytes, Feeds]]:
    picked = subgraph(
        [
            tensor("x", (2, 3)), const("z", 0.5), tensor("b", (1,), BOOL), tensor("w", (1, 2), I64),
            tensor("g", (1,)), tensor("y", (1,)),
        ],
        [("GREATER", "x z", "b"), ("WHERE", "b", "w"), ("GATHER_ND", "x w", "g"), ("NEG", "g",
        "y")],
        "x", "y",
    )  # fmt: skip
    summed = subgraph(
        [tensor("n", (), I32), number("one", 1), number("z", 0), tensor("r", (1,), I32),
         tensor("f", (1,)), tensor("s", ())],
        [("RANGE", "z n one", "r"), ("CAST", "r", "f", INT_TO_FLOAT), ("SUM", "f z", "s")], "n",
        "s",
    )  # fmt: skip
    filled = subgraph(
        [tensor("n", (2,), I32), tensor("v", ()), tensor("r", (1, 1)), tensor("x", (1, 3)),
         tensor("s", (9,))],
        [("FILL", "n v", "r"), ("MUL", "r x", "s")], "n v x", "s",
    )  # fmt: skip
    padded = subgraph(
        [tensor("x", (2, 3), DType.I8, SCALED), tensor("p", (2, 2), I32),
         tensor("y", (2, 3), DType.I8, SCALED), tensor("z", (2, 3), DType.I8, SCALED)],
        [("PAD", "x p", "y"), ("RELU", "y", "z")], "x p", "z",
    )  # fmt: skip
    # Grows until it is long enough: the condition is about a shape.
    growing = [
        subgraph([tensor("x", (1,)), tensor("y", (1,))], [("WHILE", "x", "y", loop(1, 2))], "x",
        "y"),
        subgraph(
            [tensor("x", (1,)), tensor("s", (1,), I32), number("m", 9), tensor("q", (), I32),
             tensor("c", (), BOOL)],
            [("SHAPE", "x", "s", {"out_type": 2}), ("SQUEEZE", "s", "q"), ("LESS", "q m", "c")],
            "x", "c",
        ),
        subgraph(
            [tensor("x", (1,)), tensor("y", (2,))], [("CONCATENATION", "x x", "y", {"axis": 0})],
            "x", "y",
        ),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((3, 2, 3)).tolist()
    stored = [[1, 2, 3], [4, 5, 6]]
    return {
        "picked": (model(picked), [[v] for v in x]),
        "summed": (model(summed), [[5], [3], [5]]),
        "filled": (model(filled), [[[2, 3], 1.5, [[1, 2, 3]]], [[1, 1], 2, [[1, 2, 3]]]]),
        "stored numbers": (
            model(padded), [[stored, [[1, 0], [0, 2]]], [stored, [[0, 0], [0, 1]]]]),
        "a loop that grows": (model(*growing), [[[3.0]], [[4.0]]]),
    }  # fmt: skip


SHAPES_CASES = _cases()


@pytest.mark.parametrize("name", SHAPES_CASES)
def test_shapes_like_litert(name: str, delegates: list[GpuDelegate]) -> None:
    content, feeds = SHAPES_CASES[name]

    def ours(model_content: bytes) -> Interpreter:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    same(outputs(ours, content, feeds), outputs(litert.Interpreter, content, feeds))


def _one(op: str, given: Sequence[TensorSpec], fields: dict[str, Any], inputs: int) -> bytes:
    """An operator whose file has other shapes than it will be given."""
    operator = OperatorSpec(op, fields, range(len(given)), [len(given)])
    result = TensorSpec("y", (7, 1))
    return write_model(ModelSpec([*given, result], [operator], range(inputs), [len(given)]))


WINDOW = {"padding": 0, "stride_w": 1, "stride_h": 1, "filter_width": 2, "filter_height": 2}
#: An operator, its tensors as the file has them, and shapes without elements for its inputs.
EMPTY: dict[str, tuple[bytes, list[tuple[int, ...]], tuple[int, ...]]] = {
    "CONV_2D": (
        _one("CONV_2D", [tensor("x", (1, 3, 3, 2)), const("w", np.ones((3, 2, 2, 2))),
                         const("b", [1, 2, 3])], {"padding": 1, "stride_w": 1, "stride_h": 1}, 1),
        [(0, 4, 4, 2)], (0, 3, 3, 3),
    ),
    "MAX_POOL_2D": (
        _one("MAX_POOL_2D", [tensor("x", (1, 3, 3, 2))], {**WINDOW, "padding": 1}, 1),
        [(0, 4, 4, 2)], (0, 3, 3, 2),
    ),
    "FULLY_CONNECTED": (
        _one("FULLY_CONNECTED", [tensor("x", (1, 3)), const("w", np.ones((4, 3))),
                                 const("b", [1, 2, 3, 4])], {}, 1),
        [(0, 3)], (0, 4),
    ),
    "BATCH_MATMUL": (
        _one("BATCH_MATMUL", [tensor("x", (1, 2)), tensor("z", (2, 1))], {}, 2),
        [(2, 3, 0), (2, 0, 4)], (2, 3, 4),
    ),
    "SOFTMAX": (_one("SOFTMAX", [tensor("x", (1, 2))], {"beta": 1.0}, 1), [(2, 2, 0)], (2, 2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("op", EMPTY)
def test_tensors_without_elements(op: str, delegates: list[GpuDelegate]) -> None:
    """LiteRT's Python takes and gives none, and some of its kernels end the process."""
    content, shapes, wanted = EMPTY[op]
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        for details, shape in zip(interpreter.get_input_details(), shapes, strict=True):
            interpreter.resize_tensor_input(details["index"], shape)
        interpreter.allocate_tensors()
        interpreter.invoke()
        (details,) = interpreter.get_output_details()
        found = interpreter.get_tensor(details["index"])
        assert tuple(details["shape"]) == found.shape == wanted
        assert not found.any()  # a sum of nothing is nothing


@pytest.mark.parametrize("op", ["PAD", "MIRROR_PAD"])
def test_a_scalar_has_no_border(op: str, delegates: list[GpuDelegate]) -> None:
    given = [TensorSpec("x", (), F32), tensor("p", (0, 2), I32)]
    content = _one(op, given, {}, 2)
    with Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        allocate_and_run(interpreter, {0: np.float32(2.5)})
        assert interpreter.get_tensor(2) == 2.5


def test_shapes_that_come_often_stay_compiled(opened: Any, device: WatchedDevice) -> None:
    main = subgraph(
        [tensor("c", (), BOOL), tensor("n", (1,), I32), tensor("v", ()), tensor("x", (1,)),
         tensor("y", (1,))],
        [("FILL", "n v", "x"), ("IF", "c x", "y", branch(1, 2))], "c n v", "y",
    )  # fmt: skip
    sides = [
        subgraph([tensor("x", (1,)), tensor("y", (1,))], [(op, "x", "y")], "x", "y")
        for op in ("NEG", "EXP")
    ]
    one = opened(model(main, *sides))

    def filled(n: int) -> Any:
        for i, value in enumerate((True, np.array([n], np.int32), np.float32(2))):
            one.set_tensor(i, np.asarray(value))
        one.invoke()
        return one.get_tensor(4).tolist()

    assert filled(1) == [-2.0]
    for n in range(2, KEPT + 4):
        assert filled(n) == [-2.0] * n
        loaded = device.loads
        assert filled(1) == [-2.0]
        assert device.loads == loaded
