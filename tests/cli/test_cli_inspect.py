"""`tflgpu inspect`: tensors, operators, where each would go, with and without a device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tflgpu.cli.app import make_app
from tflgpu.ir.dtypes import DType
from typer.testing import CliRunner

from tests.cli.cli_helpers import Tflgpu
from tests.interpreter.cache_models import language_model
from tests.small_models import small_spec, tensor_of

INTERPRETER = ("--backend", "cpu_ref", "--device", "1")


def test_tables(tflgpu: Tflgpu, scale: Path) -> None:
    result = tflgpu("inspect", scale, *INTERPRETER)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["input", "0", "x", "f32[?,3]"] in lines
    assert ["output", "2", "y/out", "f32[?,3]"] in lines
    assert ["0", "MUL", "1", "f32[?,3]", "=f32[3]", "f32[?,3]", "device"] in lines
    assert "signature serve: image -> scores" in result.stdout
    assert "description: three factors" in result.stdout
    assert (
        "1 operators judged by cpu_ref (NumPy kernel interpreter, f32): 1 device" in result.stdout
    )


def test_json(tflgpu: Tflgpu, scale: Path) -> None:
    found = json.loads(tflgpu("inspect", scale, *INTERPRETER, "--json").stdout)
    assert found["inputs"] == [
        {"index": 0, "name": "x", "dtype": "f32", "shape": [1, 3], "shape_signature": [-1, 3],
         "scale": [], "zero_point": []}
    ]  # fmt: skip
    assert found["signatures"] == [
        {"key": "serve", "inputs": {"image": 0}, "outputs": {"scores": 2}}
    ]
    (operator,) = found["operators"]
    assert operator["op"] == "MUL"
    assert operator["where"] == "device"
    assert operator["part"] == 0
    assert found["totals"] == {"device": 1}
    assert found["note"] == ""


def test_refused_operators_have_a_reason(tflgpu: Tflgpu, mystery: Path) -> None:
    result = tflgpu("inspect", mystery, *INTERPRETER, "--json")
    assert result.exit_code == 0
    custom, relu = json.loads(result.stdout)["operators"]
    assert custom["where"] == "nowhere"
    assert "Mystery" in custom["reason"]
    assert relu["where"] == "device"
    assert "The model cannot run" in tflgpu("inspect", mystery, *INTERPRETER).stdout


def test_what_only_the_cpu_takes(tflgpu: Tflgpu, write: Any) -> None:
    """f64 has a reference but no kernel; the RELU after it has both."""
    path = write(
        "double",
        small_spec(
            {"x": tensor_of((2, 3), DType.F64), "m": (2, 3), "y": (2, 3)},
            "m = CAST(x)",
            "y = RELU(m)",
        ),
    )
    result = tflgpu("inspect", path, *INTERPRETER, "--json")
    cast, relu = json.loads(result.stdout)["operators"]
    assert cast["where"] == "CPU"
    assert cast["reason"]
    assert relu["where"] == "device"


def test_folded_operators(tflgpu: Tflgpu, write: Any) -> None:
    path = write(
        "folded",
        small_spec(
            {"x": (3,), "a": tensor_of((3,), data=np.ones(3, np.float32)), "b": (3,), "y": (3,)},
            "b = ABS(a)",
            "y = ADD(x, b)",
        ),
    )
    result = tflgpu("inspect", path, *INTERPRETER, "--json")
    assert [o["where"] for o in json.loads(result.stdout)["operators"]] == ["folded", "device"]


def test_without_a_device_it_says_so(
    tflgpu: Tflgpu, scale: Path, install: Any, cpu_ref: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFLGPU_BACKEND", raising=False)
    install(cpu_ref=cpu_ref)
    result = tflgpu("inspect", scale)
    assert result.exit_code == 0
    assert "there is no GPU here (see `tflgpu devices`), so `tflgpu run` uses the CPU" in (
        result.stderr
    )
    assert "judged by cpu_ref (NumPy kernel interpreter" in result.stdout
    note = json.loads(tflgpu("inspect", scale, "--json").stdout)["note"]
    assert "there is no GPU here" in note


def test_what_computes_on_the_cpu_stands_in_for_a_gpu(
    tflgpu: Tflgpu, scale: Path, require_backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `run` does, `inspect` takes such a device only by its name."""
    require_backend("opencl")
    for variable in ("TFLGPU_BACKEND", "TFLGPU_DEVICE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TFLGPU_DEFAULT_DELEGATE", "1")
    ran = tflgpu("run", scale, "--runs", 1)
    said = "there is no GPU here (see `tflgpu devices`), so `tflgpu run` uses the CPU"
    on_cpu = "run on the CPU" in ran.stdout
    result = tflgpu("inspect", scale)
    assert (said in result.stderr) == on_cpu
    assert ("runs it there" in result.stderr) == on_cpu
    assert said not in tflgpu("inspect", scale, "--backend", "opencl").stderr
    monkeypatch.setenv("TFLGPU_BACKEND", "opencl")
    assert said not in tflgpu("inspect", scale).stderr
    assert "run on opencl" in tflgpu("run", scale, "--runs", 1).stdout


def test_without_any_backend_it_is_an_error(tflgpu: Tflgpu, scale: Path, install: Any) -> None:
    install()
    result = tflgpu("inspect", scale)
    assert result.exit_code == 2
    assert "nothing that could stand in" in result.stderr


@pytest.mark.needs("opencl")
def test_opencl(tflgpu: Tflgpu, scale: Path) -> None:
    assert "judged by opencl" in tflgpu("inspect", scale, "--backend", "opencl").stdout


@pytest.fixture
def mixed(write: Any) -> Path:
    """Two operators that no device takes, one that it does, and shapes that only a run tells."""
    return write(
        "mixed",
        small_spec(
            {
                **dict.fromkeys(("x", "a"), tensor_of((2, 3), DType.F64)),
                "b": (2, 3),
                "c": tensor_of((2, 3), DType.F64),
                "d": (2, 3),
                "e": tensor_of((2, 3), DType.BOOL),
                "where": tensor_of((1, 2), DType.I64),
            },
            "a = ABS(x)",
            "b = CAST(a)",
            "d = CAST(a)",
            "e = LESS(b, d)",
            "where = WHERE(e)",
            inputs="x",
        ),
    )


def test_equal_reasons_are_counted(tflgpu: Tflgpu, mixed: Path) -> None:
    shown = tflgpu("inspect", mixed, *INTERPRETER).stdout
    found = json.loads(tflgpu("inspect", mixed, *INTERPRETER, "--json").stdout)["operators"]
    reason = found[1]["reason"]
    assert reason == found[2]["reason"] != ""
    assert re.search(rf"\(\d\) 2 CAST \(#1, #2\): {re.escape(reason)}", shown)
    assert shown.count(reason) == 1


def test_shapes_that_are_not_known_are_marked(tflgpu: Tflgpu, mixed: Path) -> None:
    shown = tflgpu("inspect", mixed, *INTERPRETER).stdout
    assert re.search(r"^output +6 +where +i64\[\?\]", shown, re.MULTILINE)
    assert re.search(r"^4 +WHERE +1 +bool\[2,3\] +i64\[\?\]", shown, re.MULTILINE)


@pytest.mark.parametrize("place", ["cpu", "CPU", "device"])
def test_only_operators_of_a_place(tflgpu: Tflgpu, mixed: Path, place: str) -> None:
    whole = json.loads(tflgpu("inspect", mixed, *INTERPRETER, "--json").stdout)
    some = json.loads(tflgpu("inspect", mixed, *INTERPRETER, "--only", place, "--json").stdout)
    expected = [o for o in whole["operators"] if o["where"].lower() == place.lower()]
    assert some["operators"] == expected != whole["operators"]
    assert some["totals"] == whole["totals"]


def test_it_fits_80_columns(tflgpu: Tflgpu, mixed: Path, scale: Path) -> None:
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"})
    for path in (mixed, scale):
        lines = runner.invoke(make_app(), ["inspect", str(path), *INTERPRETER]).stdout.splitlines()
        start = next(i for i, line in enumerate(lines) if line.startswith("Operators"))
        rows = lines[start + 1 : lines.index("", start)]
        assert max(len(line.rstrip()) for line in rows) <= 80
        for cell in ("f32[?,3]",) if path == scale else ("f64[2,3]", "bool[2,3]", "i64[?]"):
            assert any(cell in row for row in rows), cell  # in one piece


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "gpu"), "--only is one of device, folded, cpu, host, nowhere, not 'gpu'"),
        (("--only", "cqu"), "not 'cqu' (did you mean cpu?)"),
        (("--backend", "abacus"), "there is no backend 'abacus'"),
        (("--backend", "cpu"), "the CPU takes all the rest"),
        (("--backend", "cpu_ref", "--device", "9"), "has no device 9"),
        (("--backend", "cpu_ref", "--device", "²"), "has no device '²'"),
        (("--memory", "--backend", "cpu_ref", "--device", "²"), "has no device '²'"),
    ],
)
def test_mistakes(tflgpu: Tflgpu, scale: Path, arguments: tuple[str, ...], message: str) -> None:
    result = tflgpu("inspect", scale, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_that_is_not_there(tflgpu: Tflgpu, tmp_path: Path) -> None:
    result = tflgpu("inspect", tmp_path / "absent.tflite")
    assert result.exit_code == 2
    assert "no such file" in result.stderr


def test_memory(tflgpu: Tflgpu, scale: Path) -> None:
    found = json.loads(tflgpu("inspect", scale, *INTERPRETER, "--memory", "--json").stdout)
    (line,) = found["devices"]
    assert found["file_bytes"] == scale.stat().st_size
    assert line["total"] == {
        "arena": 0, "weights": 16, "staging": 24, "buffers": 0, "total": 40,
    }  # fmt: skip
    assert line["dispatches"] == 1
    table = tflgpu("inspect", scale, *INTERPRETER, "--memory").stdout
    (row,) = [line.split() for line in table.splitlines() if line.startswith("cpu_ref")]
    assert row[-7:] == ["1", "1", "0", "0", "16", "24", "40"]
    every = tflgpu("inspect", scale, "--memory").stdout
    assert f"The file has {scale.stat().st_size:,} bytes" in every
    assert "runs operators itself" in every
    assert tflgpu("inspect", scale, "--memory", "--as", "adreno-740").exit_code != 0


def test_metadata(tflgpu: Tflgpu, model_path: Any, scale: Path) -> None:
    path = model_path("mobilenet_v2_1.0_224_ptq_int8")
    shown = tflgpu("inspect", path, *INTERPRETER).stdout
    assert re.search(r"^metadata: name ImageClassifier; ", shown, re.MULTILINE)
    assert re.search(r"^  input 0 .*: image, rgb, \(x - [\d.]+\) / [\d.]+", shown, re.MULTILINE)
    assert re.search(r"^  output 0 .* labels, from ", shown, re.MULTILINE)
    found = json.loads(tflgpu("inspect", path, *INTERPRETER, "--json").stdout)["metadata"]
    assert found["name"] == "ImageClassifier"
    assert len(found["outputs"][0]["labels"]) > 900
    assert "metadata:" not in tflgpu("inspect", scale, *INTERPRETER).stdout
    assert json.loads(tflgpu("inspect", scale, "--json").stdout)["metadata"] is None


def test_a_signature(tflgpu: Tflgpu, tmp_path: Path) -> None:
    path = tmp_path / "language.tflite"
    path.write_bytes(language_model())
    counts = {}
    for key in ("prefill_4", "decode"):
        result = tflgpu("inspect", path, *INTERPRETER, "--signature", key)
        assert result.exit_code == 0
        counts[key] = int(re.search(r"(\d+) operators judged by", result.stdout)[1])
    assert counts == {"prefill_4": 4, "decode": 10}
    assert "FULLY_CONNECTED" in result.stdout
    assert "2 subgraphs; number 1 is shown" in result.stdout
    found = json.loads(
        tflgpu("inspect", path, *INTERPRETER, "--signature", "decode", "--json").stdout
    )
    assert [tensor["name"] for tensor in found["outputs"]] == ["logits", "kv_cache_k_0_output"]
    for arguments, said in (
        (("--signature", "nothing"), "--signature nothing: the model has prefill_4, decode"),
        (("--signature", "decode", "--memory"), "leave out --as and --memory"),
    ):
        result = tflgpu("inspect", path, *INTERPRETER, *arguments)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.split())
