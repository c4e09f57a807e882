"""`tflgpu shader`: lists dispatches, prints what runs, and says why there is nothing to print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.plugins.registry import Registry
from tflgpu.profiles import every
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec

from tests.cli.cli_helpers import Tflgpu
from tests.running import raising
from tests.small_models import small_spec

LANGUAGES = {"opencl": "__kernel", "vulkan": "OpEntryPoint", "wgpu": "@compute"}


def test_the_list_names_every_dispatch(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("shader", scale, "--backend", "cpu_ref", "--device", 1)
    assert ran.exit_code == 0
    assert "#0 MUL" in ran.stdout
    assert "64x1x1" in ran.stdout


@pytest.mark.parametrize("backend", LANGUAGES)
def test_a_backend_prints_its_own_language(tflgpu: Tflgpu, scale: Path, backend: str) -> None:
    ran = tflgpu("shader", scale, "--node", 0, "--backend", backend)
    assert ran.exit_code == 0
    assert ran.stdout.startswith("// #0 MUL: mul, ")
    assert LANGUAGES[backend] in ran.stdout


@pytest.mark.parametrize(
    ("language", "has"),
    [
        ("opencl-c", "__kernel"),
        ("spirv", "OpEntryPoint"),
        ("wgsl", "@compute"),
        ("tree", "kernel mul workgroup"),
    ],
)
def test_a_kernel_in_another_language(tflgpu: Tflgpu, scale: Path, language: str, has: str) -> None:
    """Of which no driver and no device need be there."""
    device = ("--backend", "cpu_ref", "--device", 1)
    ran = tflgpu("shader", scale, "--node", 0, *device, "--language", language)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.startswith("// #0 MUL: mul, ")
    assert has in ran.stdout


@pytest.mark.parametrize(("backend", "language"), [("opencl", "opencl-c"), ("wgpu", "wgsl")])
def test_what_a_device_runs_is_what_its_generator_makes(
    tflgpu: Tflgpu, scale: Path, backend: str, language: str
) -> None:  # fmt: skip
    asked = ("shader", scale, "--node", 0, "--backend", backend)
    assert tflgpu(*asked).stdout == tflgpu(*asked, "--language", language).stdout


def test_a_language_that_nobody_brings(tflgpu: Tflgpu, scale: Path) -> None:
    device = ("--backend", "cpu_ref", "--device", 1)
    ran = tflgpu("shader", scale, "--node", 0, *device, "--language", "metal")
    assert ran.exit_code == 2
    assert "known: opencl-c, spirv, tree, wgsl" in " ".join(ran.stderr.split())
    ran = tflgpu("shader", scale, *device, "--language", "metal")
    assert ran.exit_code == 2
    assert "--language is of an operator's kernels; name one by --node" in ran.stderr


def test_an_operator_that_is_not_there(tflgpu: Tflgpu, scale: Path) -> None:
    ran = tflgpu("shader", scale, "--node", 7, "--backend", "cpu_ref", "--device", 1)
    assert ran.exit_code == 2
    assert "there is no operator 7; the model has 1" in ran.stderr


def test_references_have_no_kernels(tflgpu: Tflgpu, scale: Path) -> None:
    for arguments in (["--backend", "cpu"], ["--backend", "cpu_ref", "--device", 0]):
        ran = tflgpu("shader", scale, *arguments)
        assert ran.exit_code == 2
        assert "kernels" in ran.stderr


# ``--numerics``: quantized operators in integers, where there is a kernel for it.


INTERPRETER = ("--backend", "cpu_ref", "--device", "1")


@pytest.fixture
def quantized(write: Any) -> Path:
    """``d = (a + b) * b`` of i8 tensors."""
    tensors = [
        TensorSpec(n, (2, 3), DType.I8, None, Quantization((0.5,), (i,)))
        for i, n in enumerate("abcd")
    ]
    operators = [
        OperatorSpec("ADD", {}, (0, 1), (2,), version=2),
        OperatorSpec("MUL", {}, (2, 1), (3,), version=2),
    ]
    return write("quantized", ModelSpec(tensors, operators, (0, 1), (3,)))


def test_inspect(tflgpu: Tflgpu, quantized: Path) -> None:
    result = tflgpu("inspect", quantized, *INTERPRETER, "--numerics", "integer", "--json")
    add, mul = json.loads(result.stdout)["operators"]
    assert (add["where"], add["numerics"], add["in_floats"]) == ("device", "integers", "")
    assert (mul["where"], mul["numerics"]) == ("device", "floats")
    assert mul["in_floats"] == "nothing computes MUL on stored numbers"
    shown = tflgpu("inspect", quantized, *INTERPRETER, "--numerics", "integer").stdout
    assert "device, integers" in shown
    assert "device, floats" in shown


def test_inspect_says_nothing_of_floats(tflgpu: Tflgpu, quantized: Path) -> None:
    result = tflgpu("inspect", quantized, *INTERPRETER, "--json")
    assert [o["numerics"] for o in json.loads(result.stdout)["operators"]] == ["", ""]


def test_run(tflgpu: Tflgpu, quantized: Path) -> None:
    result = tflgpu("run", quantized, *INTERPRETER, "--numerics", "integer", "-v")
    assert result.exit_code == 0
    assert "1 of them in integers" in result.stdout
    assert "in floats: MUL (#1): nothing computes MUL on stored numbers" in result.stdout


def test_shader(tflgpu: Tflgpu, quantized: Path) -> None:
    listed = tflgpu("shader", quantized, *INTERPRETER, "--numerics", "integer").stdout
    assert "quantized_add" in listed
    assert "quantized_add" not in tflgpu("shader", quantized, *INTERPRETER).stdout


def test_mistakes(tflgpu: Tflgpu, quantized: Path) -> None:
    wrong = tflgpu("run", quantized, *INTERPRETER, "--numerics", "int8")
    assert wrong.exit_code != 0
    assert "--numerics is one of FLOAT, INTEGER" in wrong.stderr
    cpu = tflgpu("run", quantized, "--backend", "cpu", "--numerics", "integer")
    assert "--numerics is for a GPU backend" in cpu.stderr


# `tflgpu profiles` and `tflgpu inspect MODEL --as NAME`.


@pytest.fixture
def squeezed(write: Any) -> Path:
    """TANH, SQUEEZE, EXP and ABS: the original does not take the second."""
    return write(
        "squeezed",
        small_spec(
            {"x": (1, 3, 1, 5), "a": (1, 3, 1, 5), **dict.fromkeys("bcd", (3, 5))},
            "a = TANH(x)",
            ("b = SQUEEZE(a)", {"squeeze_dims": (0, 2)}),
            "c = EXP(b)",
            "d = ABS(c)",
        ),
    )


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
    monkeypatch.setattr(Registry, "open_device", raising(AssertionError("a device was opened")))
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
def test_profiles_mistakes(
    tflgpu: Tflgpu, squeezed: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = tflgpu("inspect", squeezed, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
