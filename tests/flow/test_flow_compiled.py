"""Bodies run as compiled recordings: how many run, how many are kept, and what a report says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu import GpuDelegate, Interpreter
from tflgpu.backend_kit.node_recording import BaseNodeRecording
from tflgpu.compiler.plan import (
    ArenaRef,
    ConstRef,
    InputRef,
    OutputRef,
    Plan,
    PlannedDispatch,
    PlannedIO,
)
from tflgpu.compiler.repeat import repeated
from tflgpu.errors import DeviceError
from tflgpu.flow import loops, program
from tflgpu.ir.dtypes import DType
from tflgpu.runtime.session import Session

from tests.flow.flow_models import (
    BOOL,
    I32,
    RESOURCE,
    STATE,
    Feeds,
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
from tests.running import allocate_and_run, allocated, first_results, set_and_run
from tests.watched_device import WatchedDevice

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
    return allocated(Interpreter(model_content=content, experimental_delegates=delegates))


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
        set_and_run(interpreter, {0: np.float32(1000)})
        assert interpreter.get_tensor(1) == 1000 / 2**10
        assert runs["run"] == 11  # ten rounds, and whether there is a first one


def test_a_state_is_one_run(by_numpy: list[GpuDelegate], runs: Counter[str]) -> None:
    """Reading and assigning two variables does not cut the graph between them."""
    from test_flow_like_litert import CASES

    content, feeds = CASES["state: two variables"]
    with ready(content, by_numpy) as interpreter:
        set_and_run(interpreter, {0: np.array(feeds[0][0], np.float32)})
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
            set_and_run(interpreter, {0: X})
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
            set_and_run(interpreter, {1: np.array([count], np.int32)})
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


# A loop of which one round is compiled, and repeated within a run of the device.


BODY = counting([const("h", 0.75), const("w", [[1, -1], [0.5, 1]]), tensor("y"), tensor("z"),
                 tensor("r", (1, 2)), number("s", [1, 2]), number("t", [2]), tensor("q", (1, 2))],
    [("MUL", "x h", "y"), ("RESHAPE", "y s", "r"), ("FULLY_CONNECTED", "r w", "q"),
     ("RESHAPE", "q t", "z")], "z")  # fmt: skip


class Runs:
    """What cpu_ref's kernel interpreter runs.

    Attributes:
        dispatches: Of each run so far.
        most: Dispatches of the largest plan that it loads.
        fails: Runs until one fails, once.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from tflgpu_cpu_ref.device import CpuRefDevice
        from tflgpu_cpu_ref.recording import CpuRefRecording

        self.dispatches: list[int] = []
        self.most, self.fails = 10_000, -1
        run, load = CpuRefRecording._run, CpuRefDevice._load

        def _run(recording: Any) -> None:
            self.fails -= 1
            if self.fails == 0:
                raise DeviceError("not this one")
            self.dispatches.append(recording.dispatches)
            run(recording)

        def _load(device: Any, plan: Plan, **given: Any) -> Any:
            if len(plan.dispatches) > self.most:
                raise DeviceError(f"no room for {len(plan.dispatches)} dispatches")
            return load(device, plan, **given)

        patch.setattr(CpuRefRecording, "_run", _run)
        patch.setattr(CpuRefDevice, "_load", _load)


@pytest.fixture
def runs_repeated(monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(monkeypatch)


@pytest.fixture(scope="module")
def kernels() -> Iterator[list[GpuDelegate]]:
    """A device that runs kernels."""
    with GpuDelegate(backend="cpu_ref", device=1) as delegate:
        yield [delegate]


def as_litert(content: bytes, feeds: Feeds, delegates: Sequence[GpuDelegate]) -> None:
    def mine(model_content: bytes) -> Any:
        return Interpreter(model_content=model_content, experimental_delegates=delegates)

    same(outputs(mine, content, feeds), outputs(LiteRT, content, feeds))


def test_all_rounds_are_one_run(kernels: list[GpuDelegate], runs_repeated: Runs) -> None:
    content = model(MAIN, up_to(20), BODY)
    as_litert(content, [[0, X]], kernels)
    assert len(runs_repeated.dispatches) == 1
    a_round = runs_repeated.dispatches[0] // 20
    assert runs_repeated.dispatches[0] == 20 * a_round
    # Other numbers of rounds, one and none among them.
    runs_repeated.dispatches.clear()
    as_litert(content, [[17, X], [19, X], [20, X], [25, X]], kernels)
    assert runs_repeated.dispatches == [3 * a_round, a_round]


def test_a_loop_that_litert_could_run_is_the_devices(runs_repeated: Runs) -> None:
    with GpuDelegate(backend="cpu_ref", device=1, cpu_backend="litert") as delegate:
        as_litert(model(MAIN, up_to(3), BODY), [[0, X]], [delegate])
    assert len(runs_repeated.dispatches) == 1


def test_many_rounds_are_a_few_runs_of_equal_length(
    kernels: list[GpuDelegate], runs_repeated: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_MOST_DISPATCHES", 20)
    as_litert(model(MAIN, up_to(11), BODY), [[0, X]], kernels)
    assert len(set(runs_repeated.dispatches)) <= 2
    assert max(runs_repeated.dispatches) <= 20
    assert sum(runs_repeated.dispatches) % 11 == 0


def test_a_device_without_room_runs_shorter_blocks(
    kernels: list[GpuDelegate], runs_repeated: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_MOST_ROUNDS", 3)
    runs_repeated.most = 15
    as_litert(model(MAIN, up_to(9), BODY), [[0, X], [5, X]], kernels)
    assert len(runs_repeated.dispatches) > 2
    assert max(runs_repeated.dispatches) <= 15


def three(ops: Sequence[Any], outputs: str, *more: Any) -> bytes:
    """A loop of six rounds over i, x and y."""
    state = [*STATE, tensor("y")]
    main = subgraph(
        [*state, tensor("io", (), I32), tensor("xo"), tensor("yo")],
        [("WHILE", "i x y", "io xo yo", loop(1, 2))], "i x y", "xo yo",
    )  # fmt: skip
    body = counting([tensor("y"), *more], ops, outputs, "i x y")
    return model(main, up_to(6, tensor("y")), body)


SUM, PRODUCT = ("ADD", "x y", "z"), ("MUL", "x y", "w")
STATES = {
    "one stays": three([SUM], "z y", tensor("z")),
    "two change": three([SUM, ("SUB", "x y", "w")], "z w", tensor("z"), tensor("w")),
    "one result twice": three([SUM], "z z", tensor("z")),
    "they change places": three([SUM], "y z", tensor("z")),
    "one is read after it was made anew": three(
        [SUM, ("MUL", "z half", "u"), ("SUB", "u x", "w")], "u w",
        tensor("z"), tensor("u"), tensor("w"), const("half", 0.5),
    ),
    "one becomes a constant": three([SUM], "z c", tensor("z"), const("c", [1, 2])),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_what_goes_from_round_to_round(
    name: str, kernels: list[GpuDelegate], runs_repeated: Runs
) -> None:
    as_litert(STATES[name], [[0, X, X * 0.5], [6, X, X], [3, X, -X]], kernels)
    assert runs_repeated.dispatches


def floats(limit: float, *, is_state: bool = False) -> bytes:
    """While the sum of x is below a limit, or a bool of the state says so: x * 1.5 + y."""
    state = [tensor("x"), tensor("y"), tensor("more", (), BOOL)]
    axes = [number("axes", [0]), const("limit", limit), tensor("sum", ()), tensor("c", (), BOOL)]
    grow = [("SUM", "x axes", "sum"), ("LESS", "sum limit", "c")]
    cond = subgraph(
        [*state, *axes], [] if is_state else grow, "x y more", "more" if is_state else "c"
    )
    body = subgraph(
        [*state, const("f", 1.5), tensor("u"), tensor("w"), *(axes if is_state else ())],
        [("MUL", "x f", "u"), ("ADD", "u y", "w"), *([("SUM", "w axes", "sum"),
          ("LESS", "sum limit", "c")] if is_state else ())],
        "x y more", "w y c" if is_state else "w y more",
    )  # fmt: skip
    main = subgraph(
        [*state, tensor("xo"), tensor("yo"), tensor("mo", (), BOOL)],
        [("WHILE", "x y more", "xo yo mo", loop(1, 2))], "x y more", "xo yo",
    )  # fmt: skip
    return model(main, cond, body)


@pytest.mark.parametrize("is_state", [False, True])
def test_a_loop_that_its_values_end_keeps_them_on_the_device(
    is_state: bool, kernels: list[GpuDelegate], runs_repeated: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only whether there is another round is read in each; where that is itself one of the values,
    all go by the host."""
    moves = WatchedDevice(monkeypatch)
    content, ones = floats(1e4, is_state=is_state), np.ones(2, np.float32)
    feeds = [[ones, ones, True], [ones * 3, ones * 0.5, True], [ones * 1e6, ones, False],
             [ones * 3e3, ones, True], [ones, ones * 2, True]]  # fmt: skip
    as_litert(content, feeds, kernels)
    assert len(runs_repeated.dispatches) > 40
    # x went and came back once for each loop that has a round.
    assert (moves.writes, moves.reads) == ((0, 0) if is_state else (4, 4))


def test_a_round_that_fails_is_begun_anew(
    kernels: list[GpuDelegate], runs_repeated: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, ones = floats(1e4), np.ones(2, np.float32)
    ((expected, _), _) = outputs(LiteRT, content, [[ones, ones, True]])
    with allocated(
        Interpreter(model_content=content, experimental_delegates=kernels)
    ) as interpreter:
        for details, value in zip(interpreter.get_input_details(), (ones, ones, True), strict=True):
            interpreter.set_tensor(details["index"], np.asarray(value))
        for fails in (12, 2, 7):
            runs_repeated.fails = fails
            with pytest.raises(DeviceError, match="not this one"):
                interpreter.invoke()
        for _ in range(2):
            interpreter.invoke()
            np.testing.assert_allclose(interpreter.get_tensor(3), expected, rtol=2e-6)


def test_loops_in_branches_in_loops(kernels: list[GpuDelegate], runs_repeated: Runs) -> None:
    outer = counting(
        [number("zero", 0), number("three", 3), tensor("b", (), BOOL), tensor("z")],
        [("LESS", "i three", "b"), ("IF", "b zero x", "z", branch(3, 4))], "z",
    )  # fmt: skip
    inner = subgraph([*STATE, tensor("io", (), I32), tensor("xo")],
        [("WHILE", "i x", "io xo", loop(5, 6))], "i x", "xo")  # fmt: skip
    other = subgraph([*STATE, tensor("y")], [("NEG", "x", "y")], "i x", "y")
    content = model(MAIN, up_to(5), outer, inner, other, up_to(4), BODY)
    as_litert(content, [[0, X], [2, X], [5, X]], kernels)
    assert runs_repeated.dispatches


def test_a_run_that_fails_changes_no_variable(
    kernels: list[GpuDelegate], runs_repeated: Runs
) -> None:
    """A variable goes through a loop; the run of the loop fails, and is called again."""
    main = subgraph(
        [tensor("x"), tensor("h", (), DType.RESOURCE), tensor("old"), tensor("s"), number("zero",
        0),
         tensor("io", (), I32), tensor("new")],
        [("CALL_ONCE", "", "", {"init_subgraph_index": 3}), ("VAR_HANDLE", "", "h", variable()),
         ("READ_VARIABLE", "h", "old"), ("ADD", "old x", "s"),
         ("WHILE", "zero s", "io new", loop(1, 2)), ("ASSIGN_VARIABLE", "h new", "")],
        "x", "new",
    )  # fmt: skip
    content = model(main, up_to(4), BODY, initializer([1, 1]))
    theirs = outputs(LiteRT, content, [[X], [X], [-X]])
    with Interpreter(model_content=content, experimental_delegates=kernels) as interpreter:
        allocate_and_run(interpreter, {0: X})
        for at in (2, 1):  # in the loop, and before it
            runs_repeated.fails = at
            with pytest.raises(DeviceError, match="not this one"):
                interpreter.invoke()
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_tensor(6), theirs[1][0], rtol=2e-6)
        set_and_run(interpreter, {0: -X})
        np.testing.assert_allclose(interpreter.get_tensor(6), theirs[2][0], rtol=2e-6)


def test_a_plan_repeated() -> None:
    """Each time reads what the last time wrote, and only the last one writes the results."""
    (kernel,) = [object()]
    io = PlannedIO("x", (3,), DType.F32, 12)
    refs = (InputRef(0), InputRef(1), ConstRef(0), ArenaRef(16, 12), OutputRef(1), OutputRef(0))
    dispatch = PlannedDispatch(kernel, (1, 1, 1), refs, "d")  # type: ignore[arg-type]
    plan = Plan((64,), 16, (np.zeros(1),), (io, io), (io, io), (dispatch,))
    assert repeated(plan, {0: 1}, 1) is plan
    found = repeated(plan, {0: 1}, 3)
    assert found.arenas == (64, 64)
    assert attrs.evolve(found, arenas=(64,), dispatches=(dispatch,)) == plan
    slots = [[ArenaRef(at, 12, 1) for at in (start, start + 16)] for start in (0, 32)]
    fixed = refs[1:4]
    assert [d.refs for d in found.dispatches] == [
        (InputRef(0), *fixed, slots[1][0], slots[0][0]),
        (slots[1][0], *fixed, slots[1][1], slots[0][1]),
        (slots[1][1], *fixed, OutputRef(1), OutputRef(0)),
    ]


# A loop whose body hands on an input at another place, which LiteRT's own WHILE gets wrong.


def turning(rounds: int, handed_on: str) -> bytes:
    """(i, x, y) -> (i + 1, s, x) or (i + 1, y, x), where s is x + y."""
    y = tensor("y")
    results = [tensor("io", (), I32), tensor("xo"), tensor("yo")]
    main = subgraph(
        [*STATE, y, *results], [("WHILE", "i x y", "io xo yo", loop(1, 2))], "i x y", "io xo yo"
    )
    body = counting([y, tensor("s")], [("ADD", "x y", "s")], f"{handed_on} x", "i x y")
    return model(main, up_to(rounds, y), body)


@pytest.mark.parametrize("backend", ["none", "cpu_ref"])
@pytest.mark.parametrize("handed_on", ["s", "y"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_what_is_handed_on_is_what_it_was(rounds: int, handed_on: str, backend: str) -> None:
    given: list[Any] = [np.int32(0), np.float32([1.5, -2]), np.float32([10, 20])]
    delegates = [] if backend == "none" else [GpuDelegate(backend=backend)]
    with Interpreter(
        model_content=turning(rounds, handed_on), experimental_delegates=delegates
    ) as interpreter:
        found = first_results(interpreter, given)
    x, y = given[1:]
    for _ in range(rounds):
        x, y = (x + y if handed_on == "s" else y), x
    np.testing.assert_array_equal(found[1], x)
    np.testing.assert_array_equal(found[2], y)
