"""MEAN and SUM of 8 bits whose axes are no constant of the file: XNNPACK does not take them, so
that their results are those of LiteRT's own kernels, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

_S = (9, 5, 7, 3)
#: Operator, type, zero points and scales of operand and result, axes, whether they are kept.
CASES: tuple[tuple[str, DType, tuple[int, int], tuple[float, float], list[int], bool], ...] = (
    ("MEAN", DType.I8, (-9, 5), (0.5, 1.0), [1], False),
    ("MEAN", DType.I8, (0, 1), (0.0371, 0.0371), [3], True),
    ("MEAN", DType.U8, (119, 133), (0.1, 0.4), [2, -1], True),
    # LiteRT has a kernel of its own for planes that are kept.
    ("MEAN", DType.I8, (-9, 5), (0.5, 1.0), [1, 2], True),
    ("MEAN", DType.U8, (119, 133), (0.1, 0.05), [-2, 1], True),
    ("MEAN", DType.I8, (-9, 5), (0.5, 1.0), [1, 2], False),
    ("SUM", DType.I8, (-9, 5), (0.5, 8.0), [1], False),
    ("SUM", DType.U8, (119, 133), (0.1, 0.4), [2, 3], True),
    ("SUM", DType.I8, (100, -3), (0.0371, 0.4), [3], False),
)


@pytest.mark.parametrize("device", [0, 1])
def test_as_the_default_interpreter(device: int) -> None:
    rng = np.random.default_rng(7)
    tensors: list[TensorSpec] = []
    operators, feeds, outputs = [], {}, []
    for op, dtype, zeros, scales, axes, keep in CASES:
        at, kept = len(tensors), [a % 4 for a in axes]
        shape = tuple(1 if i in kept else n for i, n in enumerate(_S) if keep or i not in kept)
        x, y = (
            Quantization((float(np.float32(s)),), (z,)) for s, z in zip(scales, zeros, strict=True)
        )
        tensors += [
            TensorSpec(f"x{at}", _S, dtype, quantization=x),
            TensorSpec(f"axes{at}", (len(axes),), DType.I32),
            TensorSpec(f"y{at}", shape, dtype, quantization=y),
        ]
        operators.append(OperatorSpec(op, {"keep_dims": keep}, (at, at + 1), (at + 2,), version=2))
        info = np.iinfo(dtype.numpy)
        feeds[at] = rng.integers(info.min, info.max + 1, _S, dtype.numpy)
        feeds[at + 1] = np.array(axes, np.int32)
        outputs.append(at + 2)
    content = write_model(ModelSpec(tensors, operators, tuple(feeds), tuple(outputs)))
    results: list[list[Any]] = []
    with tflgpu.GpuDelegate(backend="cpu_ref", device=device) as delegate:
        theirs = litert.Interpreter(model_content=content)
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for interpreter in (theirs, ours):
            interpreter.allocate_tensors()
            for index, array in feeds.items():
                interpreter.set_tensor(index, array)
            interpreter.invoke()
            results.append([np.array(interpreter.get_tensor(i)) for i in outputs])
        ours.close()
    wrong = [
        f"{case}: {int((got != want).sum())} of {want.size}"
        for case, want, got in zip(CASES, *results, strict=True)
        if not np.array_equal(got, want)
    ]
    assert not wrong


def test_axes_that_the_file_computes() -> None:
    """A constant for this project, none for XNNPACK."""
    quant = Quantization((0.5,), (-9,)), Quantization((1.0,), (5,))
    tensors = [
        TensorSpec("x", _S, DType.I8, quantization=quant[0]),
        TensorSpec("one", (1,), DType.I32, np.array([1], np.int32)),
        TensorSpec("axes", (1,), DType.I32),
        TensorSpec("y", (9, 5, 1, 3), DType.I8, quantization=quant[1]),
    ]
    operators = [
        OperatorSpec("ADD", {}, (1, 1), (2,)),
        OperatorSpec("MEAN", {"keep_dims": True}, (0, 2), (3,), version=2),
    ]
    content = write_model(ModelSpec(tensors, operators, (0,), (3,)))
    x = np.random.default_rng(7).integers(-128, 128, _S, np.int8)
    results = []
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        theirs = litert.Interpreter(model_content=content)
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        for interpreter in (theirs, ours):
            interpreter.allocate_tensors()
            interpreter.set_tensor(0, x)
            interpreter.invoke()
            results.append(np.array(interpreter.get_tensor(3)))
        ours.close()
    np.testing.assert_array_equal(results[1], results[0])
