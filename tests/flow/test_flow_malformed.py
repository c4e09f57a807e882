"""Subgraphs that do not fit the operators that run them: one clear error, at once, from every way
in."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter, TflgpuError
from tflgpu.errors import AllocationError, ModelError
from tflgpu.flow.program import Program
from tflgpu.flow.rounds import Counter
from tflgpu.ir import budget
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, SubgraphSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.flow.flow_models import (
    BOOL,
    F32,
    I32,
    RESOURCE,
    STATE,
    Op,
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
from tests.running import allocate_and_run, allocated, first_results, raising, set_and_run

WHILE = ("WHILE", "i x", "io xo", loop(1, 2))
MAIN = subgraph([*STATE, tensor("io", (), I32), tensor("xo")], [WHILE], "i x", "io xo")
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


# Loops that never end, and bodies and branches that would not work out but do not run.


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


#: Runs each loop without end until Ctrl-C, and then one that ends.
CHILD = """
import signal
import sys
import numpy as np
import tflgpu

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a parent may have switched off
made = {"experimental_delegates": [tflgpu.GpuDelegate(backend="cpu_ref")]} if sys.argv[1] else {}
for path in sys.argv[2:]:
    with tflgpu.Interpreter(path, **made) as interpreter:
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.int32(0))
        interpreter.set_tensor(1, np.float32([0, 1] if "branch" in path else [0, 0]))
        try:
            print("running", flush=True)
            interpreter.invoke()
        except KeyboardInterrupt:
            interpreter.set_tensor(0, np.int32(9))
            interpreter.set_tensor(1, np.float32([99, 99]))
            interpreter.invoke()
            print(interpreter.get_tensor(3).tolist(), flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signals")
@pytest.mark.parametrize("side", ["litert", "device"])
def test_ctrl_c_ends_a_loop_without_end(side: str, tmp_path: Path) -> None:
    """In a process of its own, which would not end by itself."""
    paths = [tmp_path / f"{name}.tflite" for name in ENDLESS]
    for path, content in zip(paths, ENDLESS.values(), strict=True):
        path.write_bytes(content)
    device = "cpu_ref" if side == "device" else ""
    environ = {**os.environ, "TFLGPU_CPU_BACKEND": "cpu_ref" if device else "litert"}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, device, *map(str, paths)], stdout=subprocess.PIPE, text=True,
        env=environ,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            for path in paths:
                assert child.stdout.readline() == "running\n", path.stem
                time.sleep(0.3)  # most likely it is in the loop; before it Ctrl-C is as good
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "[99.0, 99.0]\n", path.stem
            child.communicate(timeout=60)
        finally:
            child.kill()


def test_a_long_loop_ends(by_numpy: list[GpuDelegate]) -> None:
    content = model(MAIN, up_to(1500), _doubling(True))
    feeds = [[0, [0, 0]]]
    same(
        outputs(lambda **k: Interpreter(**k, experimental_delegates=by_numpy), content, feeds),
        outputs(LiteRT, content, feeds),
    )


def test_rounds_that_a_file_says_are_counted_within_the_budget(
    by_numpy: list[GpuDelegate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are when they run."""
    counted: list[int] = []
    run = Counter._run
    monkeypatch.setattr(
        Counter, "_run", lambda self, *args: (counted.append(1), run(self, *args))[1]
    )
    zero, xs = number("i", 0), [tensor(f"x{n}") for n in range(9)]
    steps = [
        ("WHILE", f"i x{n}", f"n{n} x{n + 1}", loop(1, 2)) for n in range(8)
    ]  # fmt: skip
    main = subgraph([zero, *xs, *(tensor(f"n{n}", (), I32) for n in range(8))], steps, "x0", "x8")
    content = model(main, up_to(100), counting([tensor("y")], [("NEG", "x", "y")], "y"))
    token = budget._current.set(budget.Budget(nodes=1 << 20, rounds=50, nbytes=1 << 30))
    with Interpreter(model_content=content, experimental_delegates=by_numpy) as interpreter:
        try:
            interpreter.allocate_tensors()
        finally:
            budget._current.reset(token)
        assert len(counted) <= 2 * 50
        set_and_run(interpreter, {1: np.ones(2, np.float32)})
        np.testing.assert_array_equal(interpreter.get_tensor(9), [1, 1])


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_loop_that_grows_until_memory_ends() -> None:
    """In a process of its own, which has 2 GiB."""
    grows = subgraph(
        [*STATE, number("one", 1), tensor("i2", (), I32), tensor("y", (4,))],
        [("ADD", "i one", "i2"), ("CONCATENATION", "x x", "y", {"axis": 0})], "i x", "i2 y",
    )  # fmt: skip
    program = (
        "import resource, sys, tflgpu\n"
        "made = tflgpu.Interpreter(model_content=sys.stdin.buffer.read(), cpu_backend='cpu_ref')\n"
        "made.allocate_tensors()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30,) * 2)\n"
        "made.invoke()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=model(MAIN, up_to(100), grows), capture_output=True,
        timeout=120, check=False,
    )  # fmt: skip
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("tflgpu.errors.")


def test_memory_that_runs_out_is_said(
    by_numpy: list[GpuDelegate], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = model(MAIN, _below(50.0), _doubling(False))
    with allocated(
        Interpreter(model_content=content, experimental_delegates=by_numpy)
    ) as interpreter:
        interpreter.set_tensor(1, np.array([1, 3], np.float32))
        with monkeypatch.context() as patch:
            patch.setattr(Program, "run_all", raising(MemoryError))
            with pytest.raises(
                AllocationError, match="not enough memory for the tensors that this run"
            ):
                interpreter.invoke()
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(3), [32, 96])


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
    size: list[Op] = [
        ("SHAPE", "x", "s"),
        ("STRIDED_SLICE", "s from to by", "n", {"shrink_axis_mask": 1}),
    ]
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
        found = first_results(interpreter, {0: given})[0]
    np.testing.assert_array_equal(found, np.pad(given, [(0, max(0, 3 - rows)), (0, 0)])[:3])
