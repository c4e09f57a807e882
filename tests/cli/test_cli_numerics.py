"""``--numerics``: quantized operators in integers, where there is a kernel for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import Tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec

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
