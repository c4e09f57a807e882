"""Functions of 8 and 16 bits that TFLite's kernels do not round: every stored operand, against
LiteRT."""

from __future__ import annotations

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


def run(interpreter: object, x: Array) -> Array:
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return np.array(interpreter.get_tensor(1))


@pytest.mark.parametrize("where", ["cpu_ref", "opencl"])
@pytest.mark.parametrize(
    ("op", "dtype", "scales", "zeros"),
    [
        ("SQRT", DType.I8, (0.05, 0.02), (5, -128)),
        ("SQRT", DType.I8, (0.0003, 0.0017), (-10, 3)),
        ("SQRT", DType.I16, (0.07, 0.013), (0, 0)),
        ("LOG", DType.I8, (0.031, 1 / 64), (5, 0)),
        ("LOG", DType.I8, (0.031, 1 / 64), (-127, 0)),  # a single one has no logarithm
        ("EXP", DType.I8, (0.05, 0.02), (5, -128)),
    ],
)
def test_every_stored_number(
    op: str, dtype: DType, scales: tuple[float, float], zeros: tuple[int, int], where: str
) -> None:
    info = np.iinfo(dtype.numpy)
    size = int(info.max) - int(info.min) + 1
    tensors = [
        TensorSpec(name, (size,), dtype, None, Quantization((scale,), (zero,)))
        for name, scale, zero in zip("xy", scales, zeros, strict=True)
    ]
    content = write_model(ModelSpec(tensors, [OperatorSpec(op, {}, [0], [1], version=2)], [0], [1]))
    x = np.arange(info.min, info.max + 1).astype(dtype.numpy)
    if op == "SQRT":  # LiteRT refuses to run what has no root
        x = np.maximum(x, dtype.numpy.type(zeros[0]))
    wanted = run(litert.Interpreter(model_content=content), x)
    with (
        tflgpu.GpuDelegate(backend=where) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        found = run(ours, x)
    assert len(np.unique(wanted)) > 30
    np.testing.assert_array_equal(found, wanted)
