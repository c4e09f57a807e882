"""`tflgpu profiles` and `tflgpu inspect MODEL --as NAME`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Tflgpu
from tflgpu.plugins.registry import Registry
from tflgpu.profiles import every
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec


@pytest.fixture
def squeezed(write: Any) -> Path:
    """TANH, SQUEEZE, EXP and ABS: the original does not take the second."""
    tensors = [TensorSpec("x", (1, 3, 1, 5)), TensorSpec("a", (1, 3, 1, 5))]
    tensors += [TensorSpec(n, (3, 5)) for n in "bcd"]
    operators = [
        OperatorSpec("TANH", {}, (0,), (1,)),
        OperatorSpec("SQUEEZE", {"squeeze_dims": (0, 2)}, (1,), (2,)),
        OperatorSpec("EXP", {}, (2,), (3,)),
        OperatorSpec("ABS", {}, (3,), (4,)),
    ]
    return write("squeezed", ModelSpec(tensors, operators, (0,), (4,)))


def test_the_table(tflgpu: Tflgpu) -> None:
    result = tflgpu("profiles")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for profile in every():
        (row,) = [line for line in lines if line.startswith(f"{profile.name} ")]
        assert profile.title in row
    for source in {source for profile in every() for source in profile.sources}:
        assert source in result.stdout
    adreno = next(line for line in lines if line.startswith("adreno-740"))
    assert adreno.split()[4:9] == ["opencl", "arithmetic", "256", "32", "64"]


def test_as_list_is_the_same_and_needs_no_model(tflgpu: Tflgpu) -> None:
    assert tflgpu("inspect", "--as", "list").stdout == tflgpu("profiles").stdout


def test_json(tflgpu: Tflgpu) -> None:
    found = {p["name"]: p for p in json.loads(tflgpu("profiles", "--json").stdout)}
    assert found["adreno-740"]["caps"]["max_workgroup"] == 256
    assert found["adreno-740"]["ops"] is None
    assert "CONV_2D" in found["tflite-gpu"]["ops"]
    assert found["tflite-gpu"]["caps"] is None


def test_inspect_as_another_delegate(tflgpu: Tflgpu, squeezed: Path) -> None:
    found = json.loads(tflgpu("inspect", squeezed, "--as", "tflite-gpu", "--json").stdout)
    assert [(o["where"], o["part"]) for o in found["operators"]] == [
        ("CPU", None), ("CPU", None), ("device", 0), ("device", 0),
    ]  # fmt: skip
    assert found["operators"][1]["reason"] == "the op SQUEEZE is not taken"
    assert found["judged_by"] == "the rules of TFLite's GPU delegate (V2)"
    assert found["totals"] == {"device": 2, "CPU": 2}
    result = tflgpu("inspect", squeezed, "--as", "tflite-gpu")
    assert result.exit_code == 0
    assert "4 operators judged by the rules of TFLite's GPU delegate (V2): 2 device, 2 CPU" in (
        result.stdout
    )
    assert "judged by the profile tflite-gpu: no device was opened" in result.stdout


def test_inspect_as_a_device(
    tflgpu: Tflgpu, squeezed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("a device was opened")

    monkeypatch.setattr(Registry, "open_device", opened)
    found = json.loads(tflgpu("inspect", squeezed, "--as", "mali-g715", "--json").stdout)
    assert found["judged_by"] == "opencl (Arm Mali-G715, by its profile, f32)"
    assert found["totals"] == {"device": 4}
    assert found["notes"][0] == "judged by the profile mali-g715: no device was opened"


def test_integers_by_a_profile(tflgpu: Tflgpu, squeezed: Path) -> None:
    result = tflgpu("inspect", squeezed, "--as", "apple-m1", "--numerics", "integer")
    assert result.exit_code == 0
    assert "4 operators judged by wgpu (Apple M1, by its profile, f32): 4 device" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--as", "adreno-74"), "did you mean adreno-740?"),
        (("--as", "adreno-740", "--backend", "opencl"), "leave out --backend and --device"),
        (("--as", "adreno-740", "--device", "0"), "leave out --backend and --device"),
    ],
)
def test_mistakes(tflgpu: Tflgpu, squeezed: Path, arguments: tuple[str, ...], message: str) -> None:
    result = tflgpu("inspect", squeezed, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
