"""DIV and comparisons of 8-bit tensors: every pair of stored numbers, as LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.quant import Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

#: Scales and zero points of dividend, divisor and result, and a fused activation.
CASES = [
    ((0.05, 3), (0.02, -7), (0.03, 5), 0),
    ((0.01, 0), (0.03, 0), (0.5, 0), 0),
    ((0.016, -10), (0.024, -128), (2.3, -120), 1),
]


def _run(it: Any, xs: list[Array]) -> Array:
    it.allocate_tensors()
    for i, x in enumerate(xs):
        it.set_tensor(i, x)
    it.invoke()
    return np.array(it.get_tensor(2))


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_pair(case: tuple[Any, ...], device: int) -> None:
    *quants, activation = case
    tensors = [
        TensorSpec(n, (256, 256), DType.I8, None, Quantization((s,), (z,)))
        for n, (s, z) in zip("aby", quants, strict=True)
    ]
    fields = {"fused_activation_function": activation}
    content = write_model(
        ModelSpec(tensors, [OperatorSpec("DIV", fields, [0, 1], [2], version=2)], [0, 1], [2])
    )
    every = np.broadcast_to(np.arange(-128, 128, dtype=np.int8), (256, 256))
    zero = quants[1][1]
    xs = [every.T.copy(), np.where(every == zero, np.int8(zero + 1), every)]
    wanted = _run(litert.Interpreter(model_content=content), xs)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(_run(ours, xs), wanted)
    assert len(np.unique(wanted)) > 20


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    "scales", [(0.05, 0.02), (0.001, 0.0013), (0.0867, 0.1734), (0.87, 0.261)], ids=str
)
def test_comparisons(scales: tuple[float, float], device: int) -> None:
    """What lies within one 256th of 1 is equal to LiteRT."""
    ops = ("LESS", "EQUAL", "GREATER_EQUAL")
    tensors = [
        TensorSpec(n, (256, 256), DType.I8, None, Quantization((s,), (z,)))
        for n, s, z in zip("ab", scales, (3, -7), strict=True)
    ]
    tensors += [TensorSpec(op, (256, 256), DType.BOOL) for op in ops]
    operators = [OperatorSpec(op, {}, [0, 1], [i], version=2) for i, op in enumerate(ops, 2)]
    content = write_model(ModelSpec(tensors, operators, [0, 1], [2, 3, 4]))
    every = np.broadcast_to(np.arange(-128, 128, dtype=np.int8), (256, 256))
    xs = [every.T.copy(), every.copy()]
    theirs = litert.Interpreter(model_content=content)
    _run(theirs, xs)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        _run(ours, xs)
        for i in (2, 3, 4):
            np.testing.assert_array_equal(ours.get_tensor(i), theirs.get_tensor(i))
            assert 0 < theirs.get_tensor(i).sum() < 256 * 256


@pytest.mark.parametrize("device", [0, 1])
def test_comparisons_of_words(device: int) -> None:
    """Which is larger is said of the stored numbers, whatever their scales; whether they are equal,
    of 256ths."""
    ops = ("LESS", "EQUAL", "GREATER")
    tensors = [
        TensorSpec(n, (41, 41), DType.I16, None, Quantization((s,), (0,)))
        for n, s in zip("ab", (0.002, 0.0003), strict=True)
    ]
    tensors += [TensorSpec(op, (41, 41), DType.BOOL) for op in ops]
    operators = [OperatorSpec(op, {}, [0, 1], [i], version=2) for i, op in enumerate(ops, 2)]
    operators[1] = OperatorSpec("EQUAL", {}, [0, 1], [3], version=5)
    content = write_model(ModelSpec(tensors, operators, [0, 1], [2, 3, 4]))
    every = np.broadcast_to(np.arange(-20, 21, dtype=np.int16), (41, 41))
    xs = [every.T.copy(), every.copy()]
    theirs = litert.Interpreter(model_content=content)
    _run(theirs, xs)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        _run(ours, xs)
        for i in (2, 3, 4):
            np.testing.assert_array_equal(ours.get_tensor(i), theirs.get_tensor(i))
            assert 0 < theirs.get_tensor(i).sum() < 41 * 41
