"""Subgraphs that do not fit the operators that run them: one clear error, at once, from every way
in."""

from __future__ import annotations

import random
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter, TflgpuError
from tflgpu.errors import AllocationError, ModelError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, SubgraphSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.flow.flow_models import (
    BOOL,
    F32,
    I32,
    MAIN,
    RESOURCE,
    STATE,
    WHILE,
    accumulator,
    branch,
    counting,
    initializer,
    loop,
    model,
    number,
    subgraph,
    tensor,
    up_to,
    variable,
)
from tests.running import allocate_and_run, allocated

DOUBLED = counting([tensor("y")], [("ADD", "x x", "y")], "y")
CHOICE = subgraph(
    [tensor("c", (), BOOL), tensor("x"), tensor("y")],
    [("IF", "c x", "y", branch(1, 2))],
    "c x",
    "y",
)
NEG = subgraph([tensor("x"), tensor("y")], [("NEG", "x", "y")], "x", "y")


def _choosing(index: Any, branches: tuple[int, ...]) -> Any:
    case = ("STABLEHLO_CASE", "i x", "y", {"branch_subgraph_indices": branches})
    return subgraph([index, tensor("x"), tensor("y")], [case], "i x", "y")


def _case(index: Any, branches: tuple[int, ...] = (1, 2)) -> bytes:
    return model(_choosing(index, branches), NEG, NEG)


ONCE = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})


def refused(content: bytes, delegates: list[GpuDelegate], match: str) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        Interpreter(model_content=content, experimental_delegates=delegates).allocate_tensors()
    assert isinstance(caught.value, (AllocationError, ModelError))


def _no_bool() -> bytes:
    cond = subgraph([*STATE, tensor("c", (), I32)], [("ADD", "i i", "c")], "i x", "c")
    return model(MAIN, cond, DOUBLED)


def _many_bools() -> bytes:
    cond = subgraph([*STATE, tensor("c", (2,), BOOL)], [("LESS", "x x", "c")], "i x", "c")
    return model(MAIN, cond, DOUBLED)


def _two_results() -> bytes:
    cond = up_to(3)
    return model(MAIN, attrs.evolve(cond, outputs=(*cond.outputs, *cond.outputs)), DOUBLED)


def _handle_of_numbers() -> bytes:
    main = subgraph([tensor("x"), tensor("y")], [("READ_VARIABLE", "x", "y")], "x", "y")
    return model(main)


def _assigned_twice() -> bytes:
    main = subgraph(
        [tensor("x"), tensor("h", (), RESOURCE)],
        [("VAR_HANDLE", "", "h", variable()), ("ASSIGN_VARIABLE", "h h", "")], "x", "x",
    )  # fmt: skip
    return model(main)


def _late() -> bytes:
    """Reads what a loop makes, before the loop."""
    main = subgraph(
        [*STATE, tensor("io", (), I32), tensor("xo"), tensor("y")], [("NEG", "xo", "y"), WHILE],
        "i x", "io y",
    )  # fmt: skip
    return model(main, up_to(3), DOUBLED)


def _deep(levels: int) -> bytes:
    inner = [
        subgraph(
            [tensor("c", (), BOOL), tensor("x"), tensor("y")],
            [("IF", "c c x", "y", branch(n + 1, n + 1))], "c x", "y",
        )
        for n in range(levels)
    ]  # fmt: skip
    last = subgraph(
        [tensor("c", (), BOOL), tensor("x"), tensor("y")], [("NEG", "x", "y")], "c x", "y"
    )
    return model(*inner, last)


INT = subgraph([tensor("x", (2,), I32), tensor("y", (2,), I32)], [("ADD", "x x", "y")], "x", "y")
MISTAKES: dict[str, tuple[bytes, str]] = {
    "a body out of range": (
        model(subgraph(MAIN.tensors, [("WHILE", "i x", "io xo", loop(1, 9))], "i x", "io xo"),
              up_to(3), DOUBLED),
        "body_subgraph_index is 9, but the model has 3 subgraphs",
    ),
    "a body that is negative": (
        model(subgraph(MAIN.tensors, [("WHILE", "i x", "io xo", loop(-1, 2))], "i x", "io xo"),
              up_to(3), DOUBLED),
        "cond_subgraph_index is -1",
    ),
    "itself": (
        model(subgraph(MAIN.tensors, [("WHILE", "i x", "io xo", loop(1, 0))], "i x", "io xo"),
              up_to(3)),
        "subgraph 0 runs itself",
    ),
    "a circle": (
        model(MAIN, up_to(3), subgraph(MAIN.tensors, [("WHILE", "i x", "io xo", loop(1, 3))], "i x",
                                       "io xo"), MAIN),
        "subgraph 2 runs itself, by way of subgraph 3",
    ),
    "a condition that is a number": (_no_bool(), "must be one bool, but is i32"),
    "a condition that is many": (_many_bools(), r"must be one bool, but has shape \[2\]"),
    "a condition that is two": (_two_results(), "must be one bool, but is bool, bool"),
    "a branch by a float": (
        model(subgraph([tensor("c", ()), *CHOICE.tensors[1:]],
                       [("IF", "c x", "y", branch(1, 2))], "c x", "y"), NEG, NEG),
        "its first operand decides what runs and must be one bool, but is f32",
    ),
    "a branch by many": (
        model(subgraph([tensor("c", (3,), BOOL), *CHOICE.tensors[1:]],
                       [("IF", "c x", "y", branch(1, 2))], "c x", "y"), NEG, NEG),
        r"one bool, but has shape \[3\]",
    ),
    "a case by a float": (_case(tensor("i", ())), "chooses a branch and must be i32, not f32"),
    "a case by many": (_case(tensor("i", (3,), I32)), r"one number, but has shape \[3\]"),
    "a case of nothing": (_case(tensor("i", (), I32), ()), "it has no branches"),
    "a case of another type": (
        model(_choosing(tensor("i", (), I32), (1, 2)), NEG, INT),
        "the inputs of its branch 1, subgraph 2, are i32",
    ),
    "too few operands": (
        model(subgraph(CHOICE.tensors, [("IF", "c", "y", branch(1, 2))], "c x", "y"), NEG, NEG),
        "the inputs of its then, subgraph 1, are f32, but what it is given is none",
    ),
    "operands of another type": (
        model(CHOICE, NEG, INT), "the inputs of its else, subgraph 2, are i32",
    ),
    "results of another type": (
        model(CHOICE, NEG, subgraph([tensor("x"), tensor("c", (2,), BOOL)], [("LESS", "x x", "c")],
                                    "x", "c")),
        "the outputs of its else, subgraph 2, are bool",
    ),
    "a body with fewer results": (
        model(MAIN, up_to(3), attrs.evolve(DOUBLED, outputs=DOUBLED.outputs[:1])),
        "the outputs of its body, subgraph 2, are i32, but what is wanted is i32, f32",
    ),
    "a loop with fewer results": (
        model(subgraph(MAIN.tensors, [("WHILE", "i x", "io", loop(1, 2))], "i x", "io"), up_to(3),
              DOUBLED),
        "its results are i32, but its operands is i32, f32",
    ),
    "an initializer that takes something": (
        model(accumulator(ONCE), NEG), "the inputs of its subgraph, subgraph 1, are f32",
    ),
    "a variable that is a number": (_handle_of_numbers(), "its operands are f32"),
    "a handle that is assigned": (_assigned_twice(), "not a variable and a tensor"),
    "what comes too early": (_late(), "operator 0 .NEG. reads tensor 3"),
    "deep": (_deep(100), "more than 32 deep in each other"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name: str, by_numpy: list[GpuDelegate]) -> None:
    content, match = MISTAKES[name]
    for delegates in ([], by_numpy):
        refused(content, delegates, match)


@pytest.mark.timeout(120)  # all ways through them would take for ever
def test_a_thousand_levels_end(by_numpy: list[GpuDelegate]) -> None:
    refused(_deep(1000), by_numpy, "deep in each other")


@pytest.mark.timeout(120)
def test_many_calls_of_the_same_are_looked_at_once(by_numpy: list[GpuDelegate]) -> None:
    """Each of 12 levels runs the next by both branches: 4,096 ways through."""
    with Interpreter(model_content=_deep(12), experimental_delegates=by_numpy) as interpreter:
        allocate_and_run(interpreter, {1: np.ones(2, np.float32)})
        np.testing.assert_array_equal(interpreter.get_tensor(2), [-1, -1])


def _spoilt(spec: ModelSpec, rng: random.Random) -> ModelSpec:
    """The model with one thing wrong, or at least other."""
    parts = [spec.main, *spec.subgraphs]
    at = rng.randrange(len(parts))
    part = parts[at]
    what = rng.randrange(6)
    some = rng.randrange(len(part.tensors))
    if what == 0:
        shape = rng.choice([(), (1,), (3,), (2, 2), (0,)])
        part = _with_tensor(part, some, shape=shape, data=None)
    elif what == 1:
        part = _with_tensor(
            part, some, dtype=rng.choice([F32, I32, BOOL, DType.I64, RESOURCE]), data=None
        )
    elif what == 2:
        part = attrs.evolve(part, inputs=part.inputs[: rng.randrange(3)])
    elif what == 3:
        part = attrs.evolve(
            part, outputs=[rng.randrange(len(part.tensors)) for _ in range(rng.randrange(3))]
        )
    elif part.operators:
        chosen = rng.randrange(len(part.operators))
        operator = part.operators[chosen]
        if what == 4:
            fields = {
                n: rng.randrange(len(parts) + 1) if n.endswith("index") else v
                for n, v in operator.fields.items()
            }
            operator = attrs.evolve(operator, fields=fields)
        else:
            ids = list(operator.inputs)
            if ids:
                ids[rng.randrange(len(ids))] = rng.randrange(-1, len(part.tensors))
            operator = attrs.evolve(operator, inputs=ids)
        operators = list(part.operators)
        operators[chosen] = operator
        part = attrs.evolve(part, operators=operators)
    parts[at] = part
    main, *others = parts
    return attrs.evolve(
        spec, tensors=main.tensors, operators=main.operators, inputs=main.inputs,
        outputs=main.outputs, subgraphs=others,
    )  # fmt: skip


def _with_tensor(part: SubgraphSpec, at: int, **changes: Any) -> SubgraphSpec:
    tensors: list[TensorSpec] = list(part.tensors)
    tensors[at] = attrs.evolve(tensors[at], **changes)
    return attrs.evolve(part, tensors=tensors)


SOUND = {
    "loop": model(MAIN, up_to(3), DOUBLED),
    "branch": model(CHOICE, NEG, NEG),
    "state": model(accumulator(ONCE), initializer([1, 2])),
    "loop in a loop": model(
        MAIN, up_to(2),
        counting([number("zero", 0), tensor("k", (), I32), tensor("y")],
                 [("WHILE", "zero x", "k y", loop(1, 3))], "y"), DOUBLED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_spoilt_models_run_or_are_refused(name: str, by_numpy: list[GpuDelegate]) -> None:
    """No other exception, no hang, whatever is wrong: a loop that would never end is not run."""
    spec, rng = spec_of(read_model(SOUND[name])), random.Random(name)
    refusals = 0
    for _ in range(60):
        try:
            content = write_model(_spoilt(spec, rng))
        except ModelError:
            continue  # the writer will not
        try:
            interpreter = allocated(
                Interpreter(model_content=content, experimental_delegates=by_numpy)
            )
            if "WHILE" not in str([o.name for o in spec.operators]):
                interpreter.invoke()
        except TflgpuError as error:
            refusals += 1
            assert str(error)
    assert refusals > 10


def test_results_that_an_operator_does_not_make(by_numpy: list[GpuDelegate]) -> None:
    """Of shapes that come when it runs; others are refused before."""
    main = subgraph(
        [tensor("x", (2,), DType.I16), tensor("n", (1,), I32), tensor("y", (2,), DType.I16),
         tensor("z", (2,), DType.I16)],
        [("TILE", "x n", "y z")], "x n", "y z",
    )  # fmt: skip
    interpreter = allocated(Interpreter(model_content=model(main), experimental_delegates=by_numpy))
    with (
        interpreter,
        pytest.raises(AllocationError, match="makes 1 tensors, but the file gives it 2"),
    ):
        interpreter.invoke()
