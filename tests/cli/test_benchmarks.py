"""The benchmark program: a race that everyone ends, or is out of with a reason."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.default_device import is_slower

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "core" / "tflgpu" / "demo" / "digits.tflite"

pytest.importorskip("ai_edge_litert")


#: Calls a program with arguments: the lines that it prints.
Program = Callable[..., list[str]]


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    monkeypatch.setenv("COLUMNS", "400")  # wide enough that no table folds

    def call(name: str, *arguments: object) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        importlib.import_module(f"benchmarks.{name}").main()
        return capsys.readouterr().out.splitlines()

    return call


def test_a_race(program: Program, tmp_path: Path) -> None:
    report = tmp_path / "out.json"
    lines = program(
        "run", "--models", DIGITS, "--backends", "cpu_ref", "abacus", "--duration", 0.01,
        "--warm-up", 0.01, "--litert-threads", 1, "--json", report,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(report.read_text())
    assert found["versions"]["tflgpu"]
    assert found["machine"]["cpus"] >= 1
    litert, references, abacus = found["models"]["digits"]
    assert litert["runtime"] == "LiteRT CPU"
    assert len(litert["times"]) == litert["latency"]["count"] > 0
    assert litert["error"]["rms"] == 0
    assert 0 < references["error"]["rms"] < 1e-5
    assert references["latency"]["min"] <= references["latency"]["p50"]
    assert "7 of 7 operators" in references["note"]
    assert "there is no backend 'abacus'" in abacus["failure"]
    assert abacus["times"] == []
    assert "tflgpu abacus f32: there is no backend 'abacus'" in "\n".join(lines)


def test_buffers(program: Program) -> None:
    """A line for each way, and the reason where one is not there."""
    lines = program(
        "buffers", "--model", DIGITS, "--backends", "cpu_ref", "abacus", "--rounds", 2,
        "--warm-up", 1,
    )  # fmt: skip
    ways = ["set,", "invoke", "numpy", "numpy,", "buffers"]
    assert [line.split()[1] for line in lines[1:6]] == ways
    assert "no part of the model runs on one that runs kernels" in lines[5]
    assert "DIFFERENT" not in "".join(lines)
    assert "there is no backend 'abacus'" in lines[-1]


def test_a_pool(program: Program) -> None:
    """A line for each case, which says how many requests were answered and how."""
    lines = program(
        "pool", "--model", DIGITS, "--backend", "cpu_ref", "--precision", "f32", "--seconds", 0.2,
        "--repeats", 1, "--case", "threads=2 size=2", "--case",
        "threads=3 batch=4 size=1 sizes=4", "--case", "threads=1 ahead=4 batch=2",
    )  # fmt: skip
    assert lines[0].startswith("digits cpu_ref f32")
    assert "2 in flight, one thread" in lines[1]
    assert "of 2 in flight" in lines[2]
    assert "items a run" in lines[3]
    assert "with 4 in the queue" in lines[4]
    assert all("results within" in line for line in lines[2:])


def test_where_no_backend_is_named(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    """A line says where a model ran, and whether that was slower than LiteRT."""
    with pytest.raises(SystemExit) as end:
        program("default_device", "--models", DIGITS, "--threads", 1, "--seconds", 0.01)
    line = capsys.readouterr().out.splitlines()[1]
    name, ours, theirs, ratio, verdict = line.split()[:5]
    assert name == "digits"
    assert float(ratio) == pytest.approx(float(ours) / float(theirs), rel=0.05)
    assert "7 of 7 operators" in line
    assert (verdict, end.value.code) in {("SLOWER", 1), ("ok", 0)}


@pytest.mark.parametrize(
    ("ours", "theirs", "slower"),
    [(1.04, 1.0, False), (1.06, 1.0, True), (0.5, 1.0, False), (4e-6, 2.5e-6, False),
     (5e-6, 2.5e-6, True)],
)  # fmt: skip
def test_who_is_slower(ours: float, theirs: float, slower: bool) -> None:
    assert is_slower(ours, theirs) is slower


def test_a_model_that_is_not_there(program: Program) -> None:
    with pytest.raises(SystemExit, match="there is no model no_such_model"):
        program("run", "--models", "no_such_model")


def test_no_time_at_all(program: Program) -> None:
    with pytest.raises(SystemExit) as end:
        program("run", "--models", DIGITS, "--duration", 0)
    assert end.value.code == 2


def test_images_in_flight(program: Program) -> None:
    """A line for each number in flight and batch, with results as by invoke."""
    lines = program(
        "inflight", "--models", DIGITS, "--backend", "cpu_ref", "--precision", "f32", "--batch", 1,
        3, "--input", "u8", "--in-flight", 1, 2, "--seconds", 0.01, "--repeats", 1,
    )  # fmt: skip
    assert [line.split(" u8 ")[0][-7:] for line in lines if " us, host " in line] == [
        *["batch 1"] * 3,
        *["batch 3"] * 3,
    ]
    assert sum("results as by invoke" in line for line in lines) == 6
    assert sum("by steps" in line for line in lines) == 2


def test_a_page_of_what_was_kept(program: Program, tmp_path: Path) -> None:
    """Rows of one model are put together, and the worst step is the one that costs most."""
    growth = {"label": "a", "by_side": False, "sizes": [1, 2, 8], "items": [1, 2, 8]}
    kept = [
        {"where": "here", "times": {"a": {"one": 1.25}}, "growth": []},
        {
            "where": "there",
            "times": {"a": {"two": 20.04}, "b": {"two": 3}},
            "growth": [growth | {"milliseconds": [1, 1.5, 9]}],
        },
    ]
    for number, each in enumerate(kept):
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    kept_files = tmp_path / "0.json", tmp_path / "1.json"
    program("performance", "--page", tmp_path / "page.md", "--from", *kept_files)
    page = (tmp_path / "page.md").read_text()
    assert "on here; there." in page
    assert "| a | 1.250 | 20.0 |" in page
    assert "| b |  | 3.000 |" in page
    assert "| a | 1.000 | 1.500 | 9.000 | 1.50 |" in page
    assert (tmp_path / "growth_batches.svg").read_text().startswith("<svg")
