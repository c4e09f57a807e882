"""PAD, PADV2 and MIRROR_PAD take paddings of the types that TFLite takes, and no others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import set_and_run

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


PADDINGS = np.array([[1, 2], [2, 1]])
TYPES = (DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.F32)
#: That of the padded tensor, whose zero point is what PAD fills with.
SCALED = Quantization((0.5,), (7,))
#: That of the paddings, which means nothing: they would be others by it.
MEANINGLESS = Quantization((0.25,), (-1,))


def model_padding(
    op: str, paddings: DType, data: DType = DType.F32, *, scaled_paddings: bool = False
) -> bytes:
    """A 5 x 4 tensor with a border; a quantized one where it is of 8 or 16 bits."""
    quant = SCALED if data in (DType.I8, DType.U8) else None
    if data is DType.I16:
        quant = Quantization((0.5,), (0,))
    tensors = [
        TensorSpec("x", (5, 4), data, None, quant),
        TensorSpec(
            "paddings", (2, 2), paddings, PADDINGS.astype(paddings.numpy),
            MEANINGLESS if scaled_paddings else None,
        ),
    ]  # fmt: skip
    if op == "PADV2":
        tensors.append(TensorSpec("value", (), data, np.array(3, data.numpy), quant))
    reads = range(len(tensors))
    tensors.append(TensorSpec("y", (8, 7), data, None, quant))
    fields = {"mode": 0} if op == "MIRROR_PAD" else {}
    operators = [OperatorSpec(op, fields, reads, [len(reads)], version=2)]
    return write_model(ModelSpec(tensors, operators, [0], [len(reads)]))


def run(interpreter: Any) -> Array:
    """On different numbers in every place."""
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    set_and_run(interpreter, {given["index"]: np.arange(20).reshape(5, 4).astype(given["dtype"])})
    return interpreter.get_tensor(made["index"])


def by_litert(content: bytes) -> Array | None:
    """TFLite's answer; None where it refuses."""
    try:
        return run(litert.Interpreter(model_content=content))
    except (RuntimeError, ValueError):
        return None


@pytest.mark.parametrize("backend", [None, "cpu_ref"])
@pytest.mark.parametrize("paddings", TYPES, ids=lambda d: str(d.value))
@pytest.mark.parametrize("op", ["PAD", "PADV2", "MIRROR_PAD"])
def test_as_tflite(op: str, paddings: DType, backend: str | None) -> None:
    content = model_padding(op, paddings)
    wanted = by_litert(content)
    delegates = [] if backend is None else [tflgpu.GpuDelegate(backend=backend)]
    if wanted is None:
        with pytest.raises(tflgpu.errors.ModelError, match=r"paddings .* are \w+; they may be"):
            run(tflgpu.Interpreter(model_content=content, experimental_delegates=delegates))
        return
    with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as ours:
        np.testing.assert_array_equal(run(ours), wanted)
        if backend is not None:
            assert ours.report.fully_delegated
    for delegate in delegates:
        delegate.close()


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "scaled"])
@pytest.mark.parametrize("data", [DType.I8, DType.U8, DType.I16], ids=lambda d: str(d.value))
@pytest.mark.parametrize("paddings", [DType.I8, DType.I16], ids=lambda d: str(d.value))
@pytest.mark.parametrize("op", ["PAD", "PADV2"])
def test_of_quantized_tensors(op: str, paddings: DType, data: DType, scaled: bool) -> None:
    """The float view makes real numbers of 8- and 16-bit tensors, but not of paddings."""
    content = model_padding(op, paddings, data, scaled_paddings=scaled)
    wanted = by_litert(content)
    assert wanted is not None
    with tflgpu.Interpreter(model_content=content) as ours:
        np.testing.assert_array_equal(run(ours), wanted)
