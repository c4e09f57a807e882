"""Loops that never end or grow, and bodies and branches that would not work out but do not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.errors import AllocationError
from tflgpu.flow.program import Program
from tflgpu.flow.rounds import Counter
from tflgpu.ir import budget

from tests.flow.flow_models import (
    BOOL,
    I32,
    MAIN,
    STATE,
    WHILE,
    Op,
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
from tests.running import allocated, first_results, raising, set_and_run


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
                time.sleep(0.1)  # most likely it is in the loop; before it Ctrl-C is as good
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
