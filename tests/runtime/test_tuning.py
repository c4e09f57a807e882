"""Kernels that are chosen by measuring: on the kernel interpreter, with times of our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
import tflgpu_cpu_ref.device
from tflgpu.cli.app import make_app
from tflgpu.compiler.plan import Plan, PlannedDispatch
from tflgpu.compiler.report_rows import notes
from tflgpu.errors import DeviceError, OptionError, UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.kernels import tiles
from tflgpu.lowering.choices import name_of
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime import tuning
from tflgpu.saved import kept_choices
from tflgpu.saved.kept_choices import KeptChoice, Tuning, WholeRun, table_name
from typer.testing import CliRunner

from benchmarks.tiles import Problem, problems_of
from tests.small_models import small_model

HERE: dict[str, Any] = {"backend": "cpu_ref", "device": 1}
CAPS = attrs.evolve(tflgpu_cpu_ref.device.CAPS, is_gpu=True, compute_units=4)
X = np.random.default_rng(1).uniform(-1, 1, (40, 24)).astype(np.float32)
#: A tile that is not predicted for the model below, and another.
BEST, GOOD = (name_of(tile) for tile in (tiles.TILES[5], tiles.TILES[6]))
#: Seconds of a dispatch.
Times = Callable[[PlannedDispatch], float]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interpreter says that it is a GPU of four processors; nothing is kept from before, and
    nothing waits."""
    monkeypatch.setattr(tflgpu_cpu_ref.device, "CAPS", CAPS)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("_WARM_UP", "_TIMING"):
        monkeypatch.setattr(tuning, name, 0.0)
    monkeypatch.setattr(tuning, "_FEWEST", 1)
    # Twelve of the tiles, since each is compiled; tests/kernels/test_choices.py runs all.
    monkeypatch.setattr(tiles, "TILES", tiles.TILES[:12])


@pytest.fixture(scope="module")
def model() -> bytes:
    """Two products of one problem, and one of another."""
    draw = np.random.default_rng(3)
    sizes = {"w0": 24, "w1": 24, "w2": 20}
    weights = {n: draw.uniform(-1, 1, (k, 24)).astype(np.float32) for n, k in sizes.items()}
    return small_model(
        {"x": (40, 24), "a": (40, 24), "b": (40, 24), "y": (40, 20), **weights},
        "a = FULLY_CONNECTED(x, w0)",
        "b = FULLY_CONNECTED(a, w1)",
        "y = FULLY_CONNECTED(b, w2)",
    )


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Callable[[Times], None]:
    """Sets what the device's clock says."""

    def set_to(found: Times) -> None:
        def kernel_seconds(recording: object, plan: Plan) -> list[float]:
            return [found(dispatch) for dispatch in plan.dispatches]

        def run_seconds(form: object, plans: Sequence[Plan]) -> float:
            return sum(found(dispatch) for plan in plans for dispatch in plan.dispatches)

        monkeypatch.setattr(tuning, "kernel_seconds", kernel_seconds)
        monkeypatch.setattr(tuning, "run_seconds", run_seconds)

    return set_to


def best(dispatch: PlannedDispatch) -> float:
    return {f"blocked {BEST}": 1.0, f"blocked {GOOD}": 1.5}.get(dispatch.tuned, 2.0)


def tuned(model: bytes, effort: str = "exhaustive", **options: Any) -> Tuning:
    with tflgpu.GpuDelegate(**HERE, **options) as delegate:
        return delegate.tune(model, effort)


def ran(model: bytes, **options: Any) -> tuple[list[str], Array, str]:
    """What tuned the dispatches of a model, what it gives, and the notes below its report."""
    with (
        tflgpu.GpuDelegate(**HERE, **options) as delegate,
        tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X)
        interpreter.invoke()
        result = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        report = interpreter.report
        return [each.choice for each in report.tuned], result, "\n".join(notes(report))


def test_the_fastest_is_kept_and_used(model: bytes, times: Callable[[Times], None]) -> None:
    usual, wanted, said = ran(model)
    assert (usual, "tuned" in said) == ([], False)
    times(best)
    found = tuned(model)
    assert (found.problems, len(found.found), found.run and found.run.refusal) == (2, 2, "")
    assert {kept.name for kept in found.changed.values()} == {BEST}
    assert found.run == WholeRun(6.0, 3.0, "")
    # Of two products with one problem the times are those of both.
    assert sorted((kept.before, kept.after) for kept in found.found.values()) == [(2, 1), (4, 2)]
    # The start that was kept before is another one.
    now, result, said = ran(model)
    assert now == [f"blocked {BEST}"] * 3
    assert f"tuned: 3 of 3 dispatches: blocked {BEST} for #0, #1, #2" in said
    np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


def test_equal_problems_of_other_models_share_it(
    model: bytes, times: Callable[[Times], None]
) -> None:
    times(best)
    tuned(model)
    weights = np.ones((24, 24), np.float32)
    other = small_model({"p": (40, 24), "w": weights, "q": (40, 24)}, "q = FULLY_CONNECTED(p, w)")
    found = tuned(other)
    assert (found.problems, found.found, found.run) == (1, {}, None)
    assert ran(other)[0] == [f"blocked {BEST}"]
    # In another precision, of another size or type, it is another problem.
    assert ran(other, precision="f16")[0] == []
    taller = small_model({"p": (41, 24), "w": weights, "q": (41, 24)}, "q = FULLY_CONNECTED(p, w)")
    assert tuned(taller).problems == len(tuned(taller).found) + 1 == 1


def test_the_effort_says_how_many_are_timed(model: bytes, times: Callable[[Times], None]) -> None:
    tried: set[str] = set()

    def noted(dispatch: PlannedDispatch) -> float:
        tried.add(dispatch.tuned)
        return best(dispatch)

    times(noted)
    few = tuned(model, "fast")
    assert {kept.timed for kept in few.found.values()} == {6}
    assert len(tried - {""}) <= 2 * 5
    assert not tuned(model, "fast").found
    every = tuned(model, "exhaustive")
    assert {kept.timed for kept in every.found.values()} == {len(tiles.TILES)}
    predicted = {kept.predicted for kept in every.found.values()}
    named = {name.partition(" ")[2] for name in tried} | predicted
    assert named >= {name_of(t) for t in tiles.TILES}
    assert not tuned(model, "fast").found


def test_what_is_interrupted_goes_on_where_it_kept_the_last(
    model: bytes, times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "EFFORTS", {"exhaustive": (99, 8)})
    tried: list[str] = []

    def noted(dispatch: PlannedDispatch) -> float:
        tried.append(dispatch.tuned.partition(" ")[2])
        return best(dispatch)

    def stop(done: int, whole: int) -> None:
        assert done <= whole
        if done > 9:
            raise KeyboardInterrupt

    times(noted)
    with tflgpu.GpuDelegate(**HERE) as delegate, pytest.raises(KeyboardInterrupt):
        delegate.tune(model, "exhaustive", progress=stop)
    kept = kept_on_device()
    assert {each.timed for each in kept.values()} == {8}
    before = {name for name in tried if name != BEST} - {""}
    tried.clear()
    found = tuned(model)
    assert {each.timed for each in found.found.values()} == {len(tiles.TILES)}
    assert {each.name for each in found.found.values()} == {BEST}
    # The one that was under way is timed again, and those that had the base's place.
    again = before & set(tried)
    assert len(before) > 8 > len(again)


def kept_on_device() -> dict[str, KeptChoice]:
    with tflgpu.GpuDelegate(**HERE) as delegate:
        assert delegate.provider.opened is not None
        return delegate.provider.opened.kept_choices.known


def test_nodes_are_joined_or_not_once_their_tiles_are_known(
    times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the kernels of nodes that are no longer one are timed, too."""
    nvidia = attrs.evolve(CAPS, matrix_tiles=True, vendor="nvidia", compute_units=132)
    monkeypatch.setattr(tflgpu_cpu_ref.device, "CAPS", nvidia)
    draw = np.random.default_rng(6)
    shapes = {"d": (1, 3, 3, 64), "b": (64,), "w": (32, 1, 1, 64), "c": (32,)}
    weights = {name: draw.uniform(-1, 1, each).astype(np.float32) for name, each in shapes.items()}
    options = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1}
    model = small_model(
        {"x": (1, 8, 8, 64), "a": (1, 8, 8, 64), "y": (1, 8, 8, 32), **weights},
        ("a = DEPTHWISE_CONV_2D(x, d, b)", {**options, "depth_multiplier": 1}),
        ("y = CONV_2D(a, w, c)", options),
    )

    def apart(dispatch: PlannedDispatch) -> float:
        return 3.0 if dispatch.kernel.name == "depthwise_pointwise" else 1.0

    times(apart)
    found = tuned(model, "fast", precision="f16")
    kinds = [key.partition(" ")[0] for key in found.found]
    assert kinds == ["pair", "depthwise_pointwise", "matrix"]
    assert [kept.name for kept in found.changed.values()] == ["apart"]
    assert (found.problems, found.run) == (3, WholeRun(3.0, 2.0, ""))


def test_what_is_faster_once_only_is_not_kept(model: bytes, times: Callable[[Times], None]) -> None:
    seen: list[str] = []

    def once(dispatch: PlannedDispatch) -> float:
        seen.append(dispatch.tuned)
        return 1.0 if seen.count(dispatch.tuned) <= 6 and dispatch.tuned.endswith(BEST) else 2.0

    times(once)
    found = tuned(model)
    assert len(found.found) == 2
    assert not found.changed
    assert all(kept.name == kept.predicted for kept in found.found.values())


def test_a_slower_whole_keeps_nothing(
    model: bytes, times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    times(best)
    whole = iter([1.0, 1.5] * 2)
    monkeypatch.setattr(tuning, "run_seconds", lambda recordings, plans: next(whole))
    found = tuned(model)
    assert found.run == WholeRun(1.0, 1.5, "not faster")
    assert "not faster, so nothing is kept" in str(found)
    assert (found.changed, BEST in str(ran(model)[0])) == ({}, False)
    # It is known now: a start that asks for tuning does not time the same again.
    assert not tuned(model).found


def test_a_candidate_that_the_device_refuses_is_left_out(
    model: bytes, times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tflgpu_cpu_ref.device.CpuRefDevice.load

    def picky(self: Any, plan: Plan, **more: Any) -> Any:
        # The third dispatch alone is of the second problem.
        if plan.dispatches[-1].tuned == f"blocked {BEST}":
            raise DeviceError("too many registers")
        return load(self, plan, **more)

    monkeypatch.setattr(tflgpu_cpu_ref.device.CpuRefDevice, "load", picky)
    times(best)
    found = tuned(model)
    assert sorted(kept.name for kept in found.changed.values()) == sorted([BEST, GOOD])


@pytest.mark.parametrize("number", [1.0, np.nan, np.inf])
def test_other_results_are_not_kept(
    number: float,
    model: bytes,
    times: Callable[[Times], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load = tflgpu_cpu_ref.device.CpuRefDevice.load

    def wrong(self: Any, plan: Plan, **more: Any) -> Any:
        recording = load(self, plan, **more)
        if any(dispatch.tuned for dispatch in plan.dispatches):
            recording.outputs[0][...] = number
        return recording

    times(best)  # of runs that are not made
    assert tuned(model).changed
    monkeypatch.setattr(tflgpu_cpu_ref.device.CpuRefDevice, "load", wrong)
    monkeypatch.setenv("TFLGPU_CACHE_DIR", kept_choices.cache_folder("another").as_posix())
    found = tuned(model)
    assert found.run == WholeRun(6.0, 3.0, "other results")
    assert (found.changed, BEST in str(ran(model)[0])) == ({}, False)


@pytest.mark.parametrize("which", ["no timers", "effort", "nodes"])
def test_what_cannot_be_tuned_is_an_error(
    which: str, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if which == "no timers":
        recording = tflgpu_cpu_ref.device.CpuRefRecording
        monkeypatch.setattr(recording, "profile", lambda self: Unsupported("it has no clock"))
        with pytest.raises(UnsupportedError, match="it has no clock"):
            tuned(model)
    elif which == "effort":
        with pytest.raises(OptionError, match="one of fast, exhaustive"):
            tuned(model, "much")
    elif which == "nodes":
        with (
            tflgpu.GpuDelegate(backend="cpu_ref", device=0) as delegate,
            pytest.raises(UnsupportedError, match=r"has no kernels.*can be tuned"),
        ):
            delegate.tune(model)


# What is kept


def test_without_serialization_the_delegate_alone_has_them(
    model: bytes, times: Callable[[Times], None]
) -> None:
    times(best)
    with tflgpu.GpuDelegate(**HERE, enable_serialization=False) as delegate:
        delegate.tune(model, "exhaustive")
        with tflgpu.Interpreter(
            model_content=model, experimental_delegates=[delegate]
        ) as interpreter:
            interpreter.allocate_tensors()
            assert len(interpreter.report.tuned) == 3
    assert not Path(kept_choices.cache_folder("choices")).exists()
    assert ran(model)[0] == []


def test_a_release_s_table_is_used_where_nothing_was_measured(
    model: bytes, times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    times(best)
    tuned(model)
    with tflgpu.GpuDelegate(**HERE) as delegate:
        assert delegate.provider.opened is not None
        kept = delegate.provider.opened.kept_choices
        table = json.loads(kept.table())
    assert [[*row.values()] for row in table["choices"].values()] == [[BEST], [BEST]]
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "another"))
    (tmp_path / f"{table_name(kept.device)}.json").write_text(kept.table())
    monkeypatch.setattr(kept_choices, "_TABLES", tmp_path)
    assert ran(model)[0] == [f"blocked {BEST}"] * 3
    # What was measured here comes first.
    times(lambda dispatch: 1.0 if dispatch.tuned.endswith(GOOD) else 2.0)
    tuned(model)
    assert ran(model)[0] == [f"blocked {GOOD}"] * 3


def test_a_saved_model_carries_its_choices(
    model: bytes, times: Callable[[Times], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, after = tmp_path / "before.tflgpu", tmp_path / "after.tflgpu"
    with tflgpu.GpuDelegate(**HERE) as delegate:
        delegate.save(model, before)
        times(best)
        delegate.tune(model, "exhaustive")
        assert len(delegate.save(model, after).tuned) == 3
    assert ran(model, saved=before)[0] == []
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "another"))
    assert ran(model, saved=after)[0] == [f"blocked {BEST}"] * 3


# The command


def test_the_command(model: bytes, times: Callable[[Times], None], tmp_path: Path) -> None:
    times(best)
    path, table = tmp_path / "m.tflite", tmp_path / "table.json"
    path.write_bytes(model)
    runner = CliRunner(env={"COLUMNS": "300", "NO_COLOR": "1", "TERM": "dumb"})
    given = ["--backend", "cpu_ref", "--device", "1", "--effort", "exhaustive"]
    shown = runner.invoke(make_app(), ["tune", str(path), *given, "--table", str(table)])
    assert shown.exit_code == 0, shown.stderr
    assert "blocked 40x6x6 F32: FULLY_CONNECTED" in shown.stdout
    assert "2 have faster kernels; a run takes 3000.000 ms, before 6000.000 ms" in shown.stdout
    assert len(json.loads(table.read_text())["choices"]) == 2
    again = runner.invoke(make_app(), ["tune", str(path), *given, "--json"])
    (found,) = json.loads(again.stdout)
    assert (found["problems"], found["found"], found["run"]) == (2, {}, None)


def test_what_was_timed_beside_what_was_predicted(
    model: bytes, times: Callable[[Times], None], tmp_path: Path
) -> None:
    times(best)
    path = tmp_path / "m.tflite"
    path.write_bytes(model)
    given = ["--backend", "cpu_ref", "--device", "1", "--effort", "exhaustive", "--json"]
    shown = CliRunner().invoke(make_app(), ["tune", str(path), *given])
    problems = problems_of(json.loads(shown.stdout))
    assert [each.kind for each in problems] == ["blocked", "blocked"]
    for each in problems:
        assert sorted(each.names) == sorted(name_of(tile) for tile in tiles.TILES)
        assert (each.names[each.best], each.ratio) == (BEST, 2.0)
        assert each.names[each.predicted] not in (BEST, GOOD)
    same = Problem("blocked 1x2 F32: A", ["a", "b", "c"], [1.0, 2.0, 3.0], [4.0, 5.0, 7.0])
    assert same.correlation == pytest.approx(1.0)
    assert attrs.evolve(same, seconds=[7.0, 5.0, 4.0]).correlation == pytest.approx(-1.0)
    assert attrs.evolve(same, seconds=[1.0, 1.0, 2.0]).correlation == pytest.approx(0.866, abs=1e-3)
