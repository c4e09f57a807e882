"""Functions of 16-bit tensors: every operand there is, against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

FULL = 1 << 15
#: Op, the ends of its operand's range and of its result's; LiteRT takes no zero points.
CASES = [
    ("EXP", 9.0, 8103.0), ("EXP", 3.0, 2.8),
    ("LOG", 100.0, 4.6), ("LOG", 1.0, 6.6),
    # The last piece climbs over all of the range: TFLite's slope has no room for that.
    ("LOG", 1.001, 1e-3),
    ("RSQRT", 20.0, 3.2), ("RSQRT", 1.0, 90.0), ("GELU", 6.0, 6.0), ("TANH", 4.0, 1.0), ("TANH",
    5.3, 1.0),
    ("LOGISTIC", 11.0, 1.0), ("LOGISTIC", 2.9, 1.0),
    # Powers of two, which are computed by other means.
    ("TANH", 8.0, 1.0), ("TANH", 16.0, 1.0), ("LOGISTIC", 8.0, 1.0),
]  # fmt: skip


def tensor(name: str, reach: float) -> TensorSpec:
    quant = Quantization((float(np.float32(reach / FULL)),), (0,), 0)
    return TensorSpec(name, (1 << 16,), DType.I16, quantization=quant)


def model(op: str, x: TensorSpec, y: TensorSpec) -> bytes:
    operator = OperatorSpec(op, {}, [0], [1], version=builtin_ops()[op].file.max_version)
    return write_model(ModelSpec([x, y], [operator], [0], [1]))


def run(interpreter: object, x: Array) -> Array:
    it = interpreter
    it.allocate_tensors()  # type: ignore[attr-defined]
    it.set_tensor(0, x)  # type: ignore[attr-defined]
    it.invoke()  # type: ignore[attr-defined]
    return np.array(it.get_tensor(1))  # type: ignore[attr-defined]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(("op", "reach", "result"), CASES)
def test_every_operand(op: str, reach: float, result: float, device: int) -> None:
    """One step where C's functions and NumPy's round apart, and none where whole numbers are all
    there is; a rounded function is up to 65535 steps off."""
    content = model(op, tensor("x", reach), tensor("y", result))
    x = np.arange(-FULL, FULL, dtype=np.int16)
    if op == "RSQRT":
        x = np.maximum(x, 0)  # LiteRT refuses to run others
    wanted = run(litert.Interpreter(model_content=content), x)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as it,
    ):
        got = run(it, x)
    apart = np.abs(got.astype(np.int64) - wanted)
    assert apart.max() <= (0 if op in ("TANH", "LOGISTIC") else 1)
    assert len(np.unique(wanted)) > 100
