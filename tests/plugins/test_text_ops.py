"""A plugin's op on texts (strings): the host runs its reference, and the rest of the model is
compiled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.ops.base import Accuracy, Contents, OpDef, Operand, no_attrs
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

sys.path.insert(0, str(Path(__file__).parent))
from third_party_toys import install, plugin_of

GIVEN = [b"a", b"", b"ccc"]


def _infer(attributes: Any, operands: Sequence[Operand | None]) -> list[Spec]:
    (texts,) = operands
    if texts is None or texts.dtype is not DType.STRING:
        raise ModelError("ToyLengths takes texts")
    return [Spec(texts.shape, DType.F32)]


def _lengths(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    (texts,) = arrays
    assert texts is not None
    return [np.array([len(text) for text in texts.flat], np.float32).reshape(texts.shape)]


def op(name: str = "ToyLengths", *, texts: bool = True) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        _infer,
        _lengths,
        tuple,
        accuracy=Accuracy.EXACT,
        is_custom=True,
        contents=Contents(texts=texts),
    )


def model(name: str = "ToyLengths") -> bytes:
    """The lengths of three texts, negated."""
    tensors = [
        TensorSpec("texts", (3,), DType.STRING),
        TensorSpec("n", (3,)),
        TensorSpec("y", (3,)),
    ]
    lengths = OperatorSpec(name, {}, (0,), (1,), custom_options=b"\1")
    operators = [lengths, OperatorSpec("NEG", {}, (1,), (2,))]
    return write_model(ModelSpec(tensors, operators, (0,), (2,)))


def test_the_host_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin_of(register_ops=lambda: [op()]))
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate,
        tflgpu.Interpreter(model_content=model(), experimental_delegates=[delegate]) as interpreter,
    ):
        interpreter.allocate_tensors()
        interpreter.set_tensor(0, np.array(GIVEN, np.object_))
        interpreter.invoke()
        assert interpreter.get_tensor(2).tolist() == [-1, 0, -3]
        report = interpreter.report
        assert report.delegated_nodes == 1
        (refusal,) = report.refusals
        assert refusal.op == "ToyLengths"
        assert "texts (strings)" in refusal.reason


@pytest.mark.parametrize("ops", [[], [op(texts=False)]], ids=["not defined", "without texts"])
def test_no_other_is_run(ops: list[OpDef], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin_of(register_ops=lambda: ops))
    reason = "takes texts|does not take texts" if ops else "not defined; a plugin can define it"
    with (
        tflgpu.Interpreter(model_content=model()) as interpreter,
        pytest.raises(UnsupportedError, match=reason),
    ):
        interpreter.allocate_tensors()
