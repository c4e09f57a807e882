"""Weights that f16 does not hold well, those of files and those that passes would make: not stored
in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.types import Scalar
from tflgpu.lowering.precision import Precision
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

CHANNELS = 16
FILTERS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "CONV_2D": ((CHANNELS, 3, 3, CHANNELS), {"stride_w": 1, "stride_h": 1}),
    "DEPTHWISE_CONV_2D": ((1, 3, 3, CHANNELS), {"stride_w": 1, "stride_h": 1,
    "depth_multiplier": 1}),
    "TRANSPOSE_CONV": ((CHANNELS, 3, 3, CHANNELS), {"stride_w": 2, "stride_h": 2}),
    "FULLY_CONNECTED": ((CHANNELS, CHANNELS), {}),
}  # fmt: skip
#: Of the factor, the weights and the input. Products of the first two overflow f16, or are among
#: its subnormals; none of the three is, and neither are the results.
SIZES = [(1e4, 20.0, 1e-3), (1e-4, 1e-2, 1e3)]


def scaled(op: str, factor: float, size: float, before: bool) -> tuple[bytes, tuple[int, ...]]:
    """A filter of SAME padding, and a MUL by a factor a channel before or behind it."""
    shape, options = FILTERS[op]
    rng = np.random.default_rng(3)
    weights = (rng.normal(size=shape) * size).astype(np.float32)
    factors = (rng.uniform(0.5, 1, CHANNELS) * factor).astype(np.float32)
    x = (64, CHANNELS) if op == "FULLY_CONNECTED" else (1, 8, 8, CHANNELS)
    y = (1, 16, 16, CHANNELS) if op == "TRANSPOSE_CONV" else x
    tensors = [
        TensorSpec("x", x), TensorSpec("between", x if before else y), TensorSpec("y", y),
        TensorSpec("w", shape, data=weights), TensorSpec("factors", (CHANNELS,), data=factors),
        TensorSpec("b", (CHANNELS,), data=np.zeros(CHANNELS, np.float32)),
        TensorSpec("shape", (len(y),), DType.I32, data=np.array(y, np.int32)),
    ]  # fmt: skip
    source, target = (1, 2) if before else (0, 1)
    operands = (6, 3, source, 5) if op == "TRANSPOSE_CONV" else (source, 3, 5)
    operators = [
        OperatorSpec(op, options, operands, (target,)),
        OperatorSpec("MUL", {}, (0 if before else 1, 4), (1 if before else 2,)),
    ]
    if before:
        operators.reverse()
    return write_model(ModelSpec(tensors, operators, (0,), (2,))), x


@pytest.mark.parametrize("backend", ["cpu_ref", "vulkan", "wgpu"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("op", FILTERS)
def test_factors_stay_out_of_weights_that_f16_would_spoil(
    op: str, before: bool, backend: str, require_backend: Callable[[str], Any]
) -> None:
    require_backend(backend)
    for factor, size, of_input in SIZES:
        content, shape = scaled(op, factor, size, before)
        x = (np.random.default_rng(4).normal(size=shape) * of_input).astype(np.float32)
        results = []
        for precision in ("f32", "f16"):
            with (
                tflgpu.GpuDelegate(
                    backend=backend, device=1 if backend == "cpu_ref" else 0, precision=precision
                ) as delegate,
                tflgpu.Interpreter(
                    model_content=content, experimental_delegates=[delegate]
                ) as interpreter,
            ):
                interpreter.allocate_tensors()
                interpreter.set_tensor(0, x)
                interpreter.invoke()
                assert interpreter.report.fully_delegated
                results.append(interpreter.get_tensor(2))
        exact, half = results
        # f16 rounds inputs, factors, sums and results to 11 bits each.
        assert np.abs(half - exact).max() < 6 * 2**-11 * np.abs(exact).max()


@pytest.mark.parametrize("precision", [Precision.F16, Precision.F32_F16])
@pytest.mark.parametrize(
    ("largest", "stored"),
    [
        (1.0, Scalar.F16), (65504.0, Scalar.F16), (65519.0, Scalar.F16), (65520.0, Scalar.F32),
        (2**-14, Scalar.F16), (2**-15, Scalar.F32), (0.0, Scalar.F16), (np.inf, Scalar.F16),
    ],
)  # fmt: skip
def test_what_weights_are_stored_as(precision: Precision, largest: float, stored: Scalar) -> None:
    weights = np.full(1 << 16, largest / 1000, np.float32)
    weights[7] = -largest
    assert precision.weight_storage(weights, DeviceCaps(cache_bytes=0)) is stored
