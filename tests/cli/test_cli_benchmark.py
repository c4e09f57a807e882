"""`tflgpu benchmark`: tables, forms for other programs, exit codes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.cli_helpers import Tflgpu

SHORT = (
    "--backend",
    "cpu_ref",
    "--device",
    1,
    "--no-starts",
    "--duration",
    1e-3,
    "--warm-up",
    1e-3,
)


def test_tables(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("benchmark", scale, *SHORT)
    assert ran.exit_code == 0, ran.stderr
    assert f"{scale}: one call at a time; milliseconds, NumPy to NumPy" in ran.stdout
    for word in ("min", "p50", "p95", "p99", "mean", "deviation", "items/s", "of it device"):
        assert word in ran.stdout
    rows = [line.split("  ") for line in ran.stdout.splitlines() if line.startswith("tflgpu")]
    assert len(rows) == 5  # times, parts, why there are no copies, memory, note
    assert "".join(rows[1]).count("not told") == 2  # upload and download
    assert "tflgpu cpu_ref f32: nothing is copied: the device works in" in ran.stdout
    assert "tflgpu cpu_ref f32: 1 of 1 operators on NumPy kernel interpreter" in ran.stdout
    assert "opening tflgpu cpu_ref f32" in ran.stderr


def test_beside_litert(tflgpu: Tflgpu, scale: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    ran = tflgpu("benchmark", scale, *SHORT, "--compare", "litert")
    assert ran.exit_code == 0, ran.stderr
    (litert, *_) = (line for line in ran.stdout.splitlines() if line.startswith("LiteRT CPU"))
    assert litert.split()[-1] == "1.00x"


def test_json(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("benchmark", scale, scale, *SHORT, "--json")
    assert ran.exit_code == 0, ran.stderr
    first, second = json.loads(ran.stdout)
    assert first["model"] == second["model"] == str(scale)
    assert first["measurements"][0]["latency"]["p50"] > 0


def test_csv(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("benchmark", scale, *SHORT, "--csv")
    (row,) = csv.DictReader(io.StringIO(ran.stdout))
    assert float(row["latency_p50"]) > 0
    assert tflgpu("benchmark", scale, *SHORT, "--csv", "--json").exit_code == 2


def test_full_delegation(tflgpu: Tflgpu, scale: Path, mystery: Path) -> None:
    assert tflgpu("benchmark", scale, *SHORT, "--require-full-delegation").exit_code == 0
    ran = tflgpu("benchmark", scale, *SHORT, "--exclude", "0", "--require-full-delegation")
    assert ran.exit_code == 1
    assert "not every operator runs on the device" in ran.stderr
    assert tflgpu("benchmark", scale, *SHORT, "--exclude", "0").exit_code == 0


def test_errors(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("benchmark", scale, "--backend", "abacus", "--no-starts")
    assert ran.exit_code == 2
    assert "there is no backend 'abacus'" in ran.stderr
    ran = tflgpu("benchmark", scale, "--backend", "abacus", "--no-starts", "--all")
    assert ran.exit_code == 2
    assert "tflgpu abacus f16: there is no backend 'abacus'" in ran.stdout
    assert tflgpu("benchmark", "no.tflite", *SHORT).exit_code == 2
