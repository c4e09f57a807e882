"""A short run of the differential fuzzer on every backend, and its corpus.

``python -m tests.differential --help`` makes a long one.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.differential import mutate
from tests.differential.case import Outcome, Script
from tests.differential.classes import CLASSES, classify
from tests.differential.compare import difference
from tests.differential.fact import Fact
from tests.differential.kept import Kept, load
from tests.differential.minimise import minimise
from tests.differential.run import Bench, run
from tests.differential.sharing import parts
from tests.differential.spread import Spread, spread
from tests.small_models import small_model

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

ROOT = Path(__file__).resolve().parents[2]

#: Mutants of a backend's short run: fewer where each has kernels to compile.
SHORT = {"cpu_ref": 150, "opencl": 25, "vulkan": 25, "wgpu": 25}


@pytest.fixture(scope="module", params=list(SHORT))
def bench(request: pytest.FixtureRequest, require_backend: Callable[[str], Any]) -> Iterator[Bench]:
    require_backend(request.param)
    with Bench(request.param) as found:
        yield found


def test_short_run(bench: Bench) -> None:
    result = run(bench.backend, range(SHORT[bench.backend]), seed=1, real=False, bench=bench)
    first = {sign: f"{found[0][1]}: {found[0][2]}" for sign, found in result.findings.items()}
    assert not first, first
    # Were nothing run to the end on both sides, then nothing would have been compared.
    total = sum(result.classes.values())
    assert result.classes["equal: both run"] > total / 4, result.classes


CORPUS = list(load())


@pytest.mark.parametrize("kept", CORPUS, ids=[k.name for k in CORPUS])
def test_what_was_wrong_stays_mended(kept: Kept, bench: Bench) -> None:
    verdict = bench.judge(kept.content, kept.script)
    assert not verdict.is_finding, f"{verdict.sentence}\nonce: {kept.sentence}"


def test_a_number_makes_one_mutant() -> None:
    for number in range(20):
        made = [mutate.make(mutate.draw(3, number, real=False), real=False) for _ in range(2)]
        assert made[0] is not None and made[1] is not None
        assert made[0][0] == made[1][0]
        assert made[0][1] == made[1][1]


def _relu(op: str = "RELU") -> bytes:
    tensors = [TensorSpec("x", (5,)), TensorSpec("y", (5,))]
    return write_model(ModelSpec(tensors, [OperatorSpec(op, {}, (0,), (1,))], (0,), (1,)))


def _ok(*outputs: np.ndarray) -> Outcome:
    return Outcome(state="ok", outputs=[list(outputs)])


def _fact(ours: Outcome, theirs: Outcome) -> Fact:
    def ask(kernels: str) -> Any:
        return "nothing to ask" if kernels == "spread" or "quirks" in kernels else theirs

    return Fact(_relu(), Script(), theirs, ours, ask)


@pytest.mark.parametrize(
    "wrong",
    [
        _ok(np.array([1, 2, 3, 4, 5.001], np.float32)),
        _ok(np.array([1, 2, 3, 4, np.nan], np.float32)),
        _ok(np.array([1, 2, 3, 4, np.inf], np.float32)),
        _ok(np.array([1, 2, 3, 4, 5], np.float64)),
        _ok(np.array([[1, 2, 3, 4, 5]], np.float32)),
        _ok(),
        Outcome(state="crash", stage="?", error="SIGSEGV"),
        Outcome(state="hang", stage="?", error="hang"),
        Outcome(state="memory", stage="?", error="memory"),
        Outcome(state="raw", stage="invoke", error="ValueError", message="zip()"),
        Outcome(state="refused", stage="invoke", error="ModelError", message="no reason"),
        Outcome(state="refused", stage="invoke", error="DeviceError", message="it failed"),
    ],
    ids=lambda o: f"{o.state}-{o.error or [a.tolist() for a in o.outputs[0]]}"[:40],
)
def test_faults_are_findings(wrong: Outcome) -> None:
    right = _ok(np.array([1, 2, 3, 4, 5], np.float32))
    assert classify(_fact(wrong, right)) is None
    same = classify(_fact(right, right))
    assert same is not None and same.name == "equal: both run"


def test_classes_have_names_of_their_own_and_reasons() -> None:
    assert len({c.name for c in CLASSES}) == len(CLASSES)
    assert all(len(c.reason) > 10 for c in CLASSES)


def test_rounding_is_no_difference() -> None:
    a = np.array([1, 1e-6, 3], np.float32)
    b = np.nextafter(a, np.float32(9))
    assert difference(_ok(a), _ok(b), None, exact=False, rtol=2e-5) is None
    assert difference(_ok(a), _ok(b), None, exact=True, rtol=2e-5) is not None


def test_minimising_keeps_what_matters() -> None:
    found = next(
        (r, m)
        for number in range(200)
        if len((r := mutate.draw(5, number, real=False)).steps) > 2
        and (m := mutate.make(r, real=False)) is not None
        and b"RELU" not in m[0]
        and r.family == "recipe"
    )

    def two_runs(content: bytes, script: Script) -> bool:
        return len(content) > 600

    content, script = minimise(*found, two_runs, real=False)
    assert 600 < len(content) <= len(found[1][0])
    assert script.runs == ("usual",)


def test_an_interrupted_run_in_processes_reports(tmp_path: Path) -> None:
    log, cases = tmp_path / "log.json", tmp_path / "cases"
    command = [sys.executable, "-m", "tests.differential", "--backend", "cpu_ref", "--no-real",
               "--count", "100000", "--processes", "2", "--workers", "1",
               "--log", str(log), "--cases", str(cases)]  # fmt: skip

    def both_have_begun() -> bool:
        numbers = re.findall(r'"number": (\d+)', cases.read_text()) if cases.exists() else []
        return len({int(number) < 50_000 for number in numbers}) == 2

    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        late = time.monotonic() + 120
        while not both_have_begun() and time.monotonic() < late and process.poll() is None:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    summary = json.loads(log.read_text())
    assert summary["stopped"]
    assert "ended early" in said
    assert 0 < summary["mutants"] == sum(summary["classes"].values())
    assert process.returncode == (1 if summary["findings"] else 0)


def test_processes_share_all_numbers() -> None:
    for count, processes in ((10, 3), (2, 5), (20000, 16)):
        shares = parts(7, count, processes)
        assert [n for a, c in shares for n in range(a, a + c)] == list(range(7, 7 + count))


def test_a_deadline_ends_a_run() -> None:
    result = run("cpu_ref", range(100000), real=False, deadline=0.0)
    assert result.stopped
    assert result.summary()["mutants"] == 0


def test_a_refusal_without_a_name_is_a_finding() -> None:
    def refused(message: str, error: str = "ModelError") -> Outcome:
        return Outcome(state="refused", stage="allocate", error=error, message=message)

    theirs = refused("failed to prepare", "RuntimeError")
    assert classify(_fact(refused("it is wrong"), theirs)) is None
    assert classify(_fact(refused("operator 0 (RELU): it is wrong"), theirs)) is not None
    right = _ok(np.zeros(5, np.float32))
    for reason in ("it cannot", "ABS must be a constant"):  # no reason; an op that is not there
        assert classify(_fact(refused(reason, "UnsupportedError"), right)) is None


_READ = "model of 900 bytes in memory: "


@pytest.mark.parametrize(
    ("message", "excused"),
    [
        (_READ + "operator 0 (RELU): options of type AddOptions where ReluOptions belong", True),
        (_READ + "operator 0 (ADD): options of type AddOptions where MulOptions belong", False),
        (_READ + "subgraph 0, tensor 1 ('y'): buffer of 40 bytes for f32 of shape (5,), which",
        True),
        (_READ + "subgraph 0, tensor 1 ('y'): buffer of 20 bytes for f32 of shape (5,), which",
        False),
        (_READ + "subgraph 0, tensor 1 ('y'): buffer of 12 bytes for f32 of shape (5,), which",
        False),
    ],
)  # fmt: skip
def test_a_refused_file_is_excused_only_where_it_is_wrong(message: str, excused: bool) -> None:
    ours = Outcome(state="refused", stage="read", error="ModelError", message=message)
    found = classify(_fact(ours, _ok(np.zeros(5, np.float32))))
    assert (found is not None) is excused


def test_an_empty_window_is_excused_only_for_empty_results() -> None:
    message = "operator 0 (RELU): RELU: option filter_height is 0, must be >= 1"
    ours = Outcome(state="refused", stage="allocate", error="AllocationError", message=message)
    assert classify(_fact(ours, _ok(np.zeros(5, np.float32)))) is None
    assert classify(_fact(ours, _ok(np.zeros((0, 5), np.float32)))) is not None


def test_an_operator_is_excused_only_where_nothing_needs_it() -> None:
    tensors = [TensorSpec(n, (5,)) for n in "xyz"]
    operators = [OperatorSpec("RELU", {}, (0,), (1,)), OperatorSpec("ABS", {}, (0,), (2,))]
    content = write_model(ModelSpec(tensors, operators, (0,), (2,)))
    ours = _ok(np.zeros(5, np.float32))
    for name, number, excused in (("RELU", 0, True), ("ABS", 1, False), ("ABS", 0, False)):
        said = f"it is wrong.Node number {number} ({name}) failed to invoke."
        theirs = Outcome(state="refused", stage="invoke", error="RuntimeError", message=said)
        fact = Fact(content, Script(), theirs, ours, lambda kernels: None)
        assert (classify(fact) is not None) is excused


@pytest.mark.parametrize("wrong", [False, True])
def test_saturated_sums_are_excused_only_where_the_rest_is_right(wrong: bool) -> None:
    top = np.finfo(np.float32).max
    theirs = _ok(np.array([top, 1e38, 3, 4, 5], np.float32))
    clamped = _ok(np.array([top, -np.inf, 3, 4, 5 + wrong], np.float32))
    ours = _ok(np.array([np.inf, np.nan, 3, 4, 5 + wrong], np.float32))

    def ask(kernels: str) -> Any:
        made = {"quirks:": ours.outputs, "quirks:saturate": clamped.outputs}
        return made.get(kernels, "not known") if "quirks" in kernels else theirs

    fact = Fact(_relu(), Script(runs=("inf",)), theirs, ours, ask)
    assert fact.sums_of_saturated is not wrong


@pytest.mark.parametrize("as_defined", [True, False])
def test_a_scalar_transposed_is_excused_only_where_ours_is_as_defined(as_defined: bool) -> None:
    model = small_model({"x": (), "perm": np.zeros(0, np.int32), "y": ()}, "y = TRANSPOSE(x, perm)")
    ours, theirs = _ok(np.float32(2)), _ok(np.float32(np.inf))

    def ask(kernels: str) -> Any:
        if kernels == "quirks:" and as_defined:
            return ours.outputs
        return "not known" if kernels == "spread" or "quirks" in kernels else theirs

    found = classify(Fact(model, Script(), theirs, ours, ask))
    assert (found is not None) is as_defined


@pytest.mark.parametrize(("factor", "beyond"), [(3e7, True), (3.0, False)])
def test_factors_beyond_f32_are_seen_where_their_product_is_not(
    factor: float, beyond: bool
) -> None:
    model = small_model({"x": (12,), "axis": np.int32(0), "y": ()}, "y = REDUCE_PROD(x, axis)")
    x = np.array([factor] * 6 + [1 / factor] * 6, np.float32)
    found = spread(model, Script(values={0: x}))
    assert isinstance(found, Spread)
    assert found.overflows == [beyond]


def test_a_crash_of_a_child_is_an_outcome() -> None:
    with Bench("cpu_ref") as bench:
        first = bench.ours.ask(_relu(), Script())
        assert first.accepted, first
        assert bench.ours._process is not None
        bench.ours._process.kill()
        crashed = bench.ours.ask(_relu(), Script())
        assert crashed.state == "crash"
        assert crashed.error == "SIGKILL"
        assert bench.ours.ask(_relu(), Script()).accepted


def test_memory_that_grew_in_other_cases_is_not_a_finding() -> None:
    with Bench("cpu_ref") as bench:
        assert bench.ours.ask(_relu(), Script()).accepted
        bench.ours._base -= 0.75 * bench.ours._megabytes  # as if it had grown by that
        assert bench.ours.ask(_relu(), Script()).accepted
        assert (bench.ours.starts, bench.ours.recycled) == (2, 1)
