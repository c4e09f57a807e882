"""Bodies run as compiled recordings: how many run, how many are kept, and what a report says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from flow_models import (
    BOOL,
    I32,
    RESOURCE,
    STATE,
    const,
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
from tflgpu import GpuDelegate, Interpreter
from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.flow import program
from tflgpu.runtime.session import Session

WHILE = ("WHILE", "i x", "io xo", loop(1, 2))
MAIN = subgraph([*STATE, tensor("io", (), I32), tensor("xo")], [WHILE], "i x", "io xo")
HALVED = counting([const("h", 0.5), tensor("y")], [("MUL", "x h", "y")], "y")
X = np.array([3, 5], np.float32)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Sessions run, and opened."""
    told: Counter[str] = Counter()
    run, init = Session.run, Session.__init__

    def counted(self: Session) -> None:
        told["run"] += 1
        run(self)

    def opened(self: Session, *args: object, **kwargs: object) -> None:
        told["open"] += 1
        init(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "run", counted)
    monkeypatch.setattr(Session, "__init__", opened)
    yield told


def ready(content: bytes, delegates: list[GpuDelegate]) -> Interpreter:
    interpreter = Interpreter(model_content=content, experimental_delegates=delegates)
    interpreter.allocate_tensors()
    return interpreter


def test_a_hundred_rounds_are_a_few_runs(by_numpy: list[GpuDelegate], runs: Counter[str]) -> None:
    with ready(model(MAIN, up_to(100), HALVED), by_numpy) as interpreter:
        interpreter.set_tensor(1, X)
        for _ in range(3):
            interpreter.invoke()
            assert interpreter.get_tensor(2) == 100
            np.testing.assert_allclose(interpreter.get_tensor(3), X * 0.5**100)
        # The session of the model itself, and a block of fifty rounds.
        assert runs["open"] == 2
        assert runs["run"] == 3 * 2


def test_they_are_compiled_before_the_first_run_where_the_file_says_how_many(
    by_numpy: list[GpuDelegate], runs: Counter[str]
) -> None:
    main = subgraph(
        [number("zero", 0), tensor("x"), tensor("io", (), I32), tensor("xo")],
        [("WHILE", "zero x", "io xo", loop(1, 2))], "x", "xo",
    )  # fmt: skip
    with ready(model(main, up_to(100), HALVED), by_numpy) as interpreter:
        opened = runs["open"]
        interpreter.invoke()
        assert runs["open"] == opened == 2


def test_a_loop_that_floats_end_runs_once_a_round(
    by_numpy: list[GpuDelegate], runs: Counter[str]
) -> None:
    cond = subgraph(
        [tensor("x", ()), const("least", 1.0), tensor("c", (), BOOL)], [("GREATER", "x least",
        "c")],
        "x", "c",
    )  # fmt: skip
    body = subgraph(
        [tensor("x", ()), const("h", 0.5), tensor("y", ())], [("MUL", "x h", "y")], "x", "y"
    )
    main = subgraph([tensor("x", ()), tensor("y", ())], [("WHILE", "x", "y", loop(1, 2))], "x", "y")
    with ready(model(main, cond, body), by_numpy) as interpreter:
        interpreter.set_tensor(0, np.float32(1000))
        interpreter.invoke()
        assert interpreter.get_tensor(1) == 1000 / 2**10
        assert runs["run"] == 11  # ten rounds, and whether there is a first one


def test_a_state_is_one_run(by_numpy: list[GpuDelegate], runs: Counter[str]) -> None:
    """Reading and assigning two variables does not cut the graph between them."""
    from test_flow_like_litert import CASES

    content, feeds = CASES["state: two variables"]
    with ready(content, by_numpy) as interpreter:
        interpreter.set_tensor(0, np.array(feeds[0][0], np.float32))
        interpreter.invoke()
        before = runs["run"]
        interpreter.invoke()
        assert runs["run"] - before == 1


def test_reading_what_was_assigned_does_not_cut_a_graph(
    by_numpy: list[GpuDelegate], runs: Counter[str]
) -> None:
    """``v += sum(x)``, then ``v * x``, as `assign_add` is converted; and what needs no variable is
    in the same graph."""
    main = subgraph(
        [
            tensor("x"), tensor("h", (), RESOURCE), number("axis", 0), tensor("s", ()),
            tensor("old", ()), tensor("new", ()), tensor("read", ()), tensor("y"), tensor("again",
            ()),
        ],
        [
            ("CALL_ONCE", "", "", {"init_subgraph_index": 1}),
            ("VAR_HANDLE", "", "h", variable()), ("SUM", "x axis", "s"),
            ("READ_VARIABLE", "h", "old"), ("ADD", "old s", "new"), ("ASSIGN_VARIABLE", "h new",
            ""),
            ("READ_VARIABLE", "h", "read"), ("MUL", "read x", "y"), ("READ_VARIABLE", "h", "again"),
        ],
        "x", "y again",
    )  # fmt: skip
    with ready(model(main, initializer(10.0)), by_numpy) as interpreter:
        assert interpreter.report.partitions == 1
        for total in (18.0, 26.0):
            before = runs["run"]
            interpreter.set_tensor(0, X)
            interpreter.invoke()
            assert runs["run"] - before == 1
            np.testing.assert_array_equal(interpreter.get_tensor(7), total * X)
            assert interpreter.get_tensor(8) == total


def test_a_state_is_compiled_before_the_first_run(
    by_numpy: list[GpuDelegate], runs: Counter[str]
) -> None:
    """By the shapes of the file, which are only believed when they come."""
    from test_flow_like_litert import CASES

    content, feeds = CASES["state: added up"]
    with ready(content, by_numpy) as interpreter:
        assert interpreter.report.delegated_nodes == 1
        interpreter.set_tensor(0, np.array(feeds[0][0], np.float32))
        opened = runs["open"]
        interpreter.invoke()
        assert runs["open"] == opened


TILED = subgraph(
    [tensor("x"), tensor("n", (1,), I32), tensor("t"), tensor("y")],
    [("TILE", "x n", "t"), ("NEG", "t", "y")], "x n", "y",
)  # fmt: skip


def test_few_shapes_are_kept_and_many_are_the_cpu_s(
    by_numpy: list[GpuDelegate], runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "KEPT", 3)
    monkeypatch.setattr(program, "PATIENCE", 6)
    recordings: list[BaseNodeRecording] = []
    init = BaseNodeRecording.__init__

    def noted(self: BaseNodeRecording, run: object) -> None:
        init(self, run)  # type: ignore[arg-type]
        recordings.append(self)

    monkeypatch.setattr(BaseNodeRecording, "__init__", noted)
    with ready(model(TILED), by_numpy) as interpreter:
        interpreter.set_tensor(0, X)

        def tile(count: int) -> None:
            interpreter.set_tensor(1, np.array([count], np.int32))
            interpreter.invoke()
            np.testing.assert_array_equal(interpreter.get_tensor(3), -np.tile(X, count))

        tile(1)
        opened = runs["open"]
        tile(1)
        assert runs["open"] == opened
        for count in range(2, 12):
            tile(count)
        assert sum(not r._closed for r in recordings) <= 3
        # No longer compiled for the device; and right when one comes back.
        for count in (11, 1, 5, 11):
            tile(count)


def test_the_report_says_what_is_inside(by_numpy: list[GpuDelegate]) -> None:
    with ready(model(MAIN, up_to(7), HALVED), by_numpy) as interpreter:
        interpreter.invoke()
        report = interpreter.report
        (refusal,) = report.refusals
        assert (refusal.op, refusal.runs_on, refusal.code.value) == (
            "WHILE",
            "host",
            "control_flow",
        )
        assert "subgraphs 1, 2, 2 of 2 compiled operators run on the device" in refusal.reason
        assert report.to_dict()["operators"][0]["op"] == "WHILE"
