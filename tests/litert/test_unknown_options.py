"""Options of operators that the schema known here lacks: what it cannot write again LiteRT's own
can; where nobody can, they are refused, since LiteRT would run something else."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tflgpu
from litert_models import between, litert, numbers, run
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import FileOptions
from tflgpu.tflite import schema
from tflgpu.tflite.encode import Record, finish
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import model_record, write_model
from tflgpu_litert.newer import repack

SHAPE = (2, 3, 5)
X = numbers(SHAPE, 7)
FIELDS = {"min": -1.0, "max": 1.0, "num_bits": 2}


@pytest.fixture
def without_a_field(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A model with an option that the reader does not know."""
    content = write_model(spec("FAKE_QUANT", FIELDS))
    (operator,) = read_model(content).main.operators
    assert operator.gap == ""
    real = schema.layout("FakeQuantOptions")
    known = {n: f for n, f in real.fields.items() if n != "num_bits"}
    older = schema.TableLayout(real.name, known)
    for module in ("flat", "operators"):
        monkeypatch.setattr(
            f"tflgpu.tflite.{module}.layout",
            lambda table: older if table == real.name else schema.layout(table),
        )
    (operator,) = read_model(content).main.operators
    assert "field 2, which the schema known here lacks" in operator.gap
    return content


def test_a_field_that_the_schema_lacks(without_a_field: bytes) -> None:
    (found,), _ = run(without_a_field, [X])
    np.testing.assert_array_equal(found, litert(without_a_field, [X])[0])
    assert len(np.unique(found)) <= 4  # of two bits


def test_a_field_that_nobody_knows(without_a_field: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.schema_py_generated", None)
    monkeypatch.delattr("ai_edge_litert.schema_py_generated", raising=False)
    with pytest.raises(UnsupportedError, match=r"#0 FAKE_QUANT.*cannot be written again: its opt"):
        run(without_a_field, [X])


def test_a_builtin_that_the_schema_lacks(
    delegate: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = np.array([2, 3], np.int32)
    given = [TensorSpec("c", (2,), DType.I32, data=lengths)]
    content = between("REVERSE_SEQUENCE", {"seq_dim": 1, "batch_dim": 0}, shape=SHAPE, given=given)
    code = schema.BUILTIN_CODES["REVERSE_SEQUENCE"]
    known = {c: n for c, n in schema.BUILTINS.items() if c != code}
    monkeypatch.setattr("tflgpu.tflite.operators.BUILTINS", known)
    (found,), report = run(content, [X], delegate)
    np.testing.assert_array_equal(found, litert(content, [X])[0])
    assert [r.op for r in report.refusals] == [f"BUILTIN_{code}"]


def test_a_builtin_that_litert_lacks_too() -> None:
    record, buffers = model_record(spec("NEG", {}))
    codes = [Record("OperatorCode", {"deprecated_builtin_code": 127, "builtin_code": 250})]
    content = finish(Record("Model", {**record.values, "operator_codes": codes}), buffers)
    with pytest.raises(UnsupportedError, match=r"#0 BUILTIN_250.*LiteRT does not take it"):
        run(content, [X])


@pytest.mark.parametrize("seed", range(30))
def test_damaged_options_are_an_error_of_ours(seed: int, without_a_field: bytes) -> None:
    """Whatever stands where LiteRT's schema reads, it is refused or runs, and nothing else."""
    rng = np.random.default_rng(seed)
    content = bytearray(without_a_field)
    for at in rng.integers(8, len(content), 4):
        content[at] = rng.integers(256)
    with contextlib.suppress(TflgpuError):
        read_model(bytes(content))
        for operator in read_model(bytes(content)).main.operators:
            if operator.place is not None:
                source = FileOptions(
                    operator.name, operator.is_custom, {}, gap="x", place=operator.place
                )
                packed = repack(source)
                assert packed is None or packed.builtin >= 0


def spec(name: str, fields: Mapping[str, Any]) -> ModelSpec:
    tensors = [TensorSpec("x", SHAPE), TensorSpec("y", SHAPE)]
    return ModelSpec(tensors, [OperatorSpec(name, fields, [0], [1])], [0], [1])
