"""Sums of products that XNNPACK leaves to LiteRT's own kernels, which round them otherwise, and
their neighbours: equal to what its interpreter gives by default, to the last bit.

Of scales like these one sum in four lies half way between two steps.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import first_results

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")


_CONV = {"padding": 0, "stride_h": 1, "stride_w": 1}
#: By name: input, filter, its type and the axis of its channels, result, options, version. 13
#: channels are eight and five.
SUMS_CASES: dict[str, tuple[Any, ...]] = {
    "CONV_2D": ((1, 5, 7, 3), (6, 3, 3, 3), DType.I4, 0, (1, 5, 7, 6), _CONV, 7),
    "DEPTHWISE_CONV_2D": (
        (1, 5, 7, 13), (1, 2, 3, 13), DType.I4, 3, (1, 5, 7, 13), {**_CONV, "depth_multiplier": 1},
        7,
    ),
    "FULLY_CONNECTED": ((19, 27), (6, 27), DType.I4, 0, (19, 6), {}, 10),
    "TRANSPOSE_CONV": (
        (1, 5, 4, 6), (9, 1, 2, 6), DType.I8, 0, (1, 10, 12, 9), {"padding": 0, "stride_h": 2,
        "stride_w": 3},
        3,
    ),
}  # fmt: skip


def _model(op: str) -> bytes:
    shape, filters, dtype, axis, result, fields, version = SUMS_CASES[op]
    rng, channels = np.random.default_rng(3), filters[axis]
    most = 8 if dtype is DType.I4 else 128
    scales = tuple(0.25 * 2.0 ** (c % 2) for c in range(channels))
    weights = Quantization(scales, (0,) * channels, axis)
    bias = rng.integers(-99, 99, channels, np.int32)
    tensors = [
        TensorSpec("", shape, DType.I8, None, Quantization((0.5,), (-9,))),
        TensorSpec("", filters, dtype, rng.integers(1 - most, most, filters, np.int8), weights),
        TensorSpec("", (channels,), DType.I32, bias, attrs.evolve(weights, axis=0)),
        TensorSpec("", result, DType.I8, None, Quantization((2.0 if most == 8 else 16.0,), (5,))),
        TensorSpec("", (len(result),), DType.I32, np.array(result, np.int32)),
    ]
    inputs = [4, 1, 0, 2] if op == "TRANSPOSE_CONV" else [0, 1, 2]
    return write_model(
        ModelSpec(tensors, [OperatorSpec(op, fields, inputs, [3], version=version)], [0], [3])
    )


#: Products of two tensors that are computed: op, types, the second one's zero point, the factor of
#: a sum, options.
_WIDE, _NARROW = DType.I16, DType.I8
PRODUCTS: tuple[tuple[str, DType, DType, int, float, dict[str, Any], int], ...] = (
    ("FULLY_CONNECTED", _NARROW, _NARROW, 0, 1 / 4, {"fused_activation_function": 1}, 4),
    ("FULLY_CONNECTED", _NARROW, _NARROW, 5, 1 / 4, {}, 4),
    ("FULLY_CONNECTED", _WIDE, _NARROW, 0, 1 / 32, {}, 4),
    # Not half steps: the factor's lower half is rounded away.
    ("FULLY_CONNECTED", _WIDE, _WIDE, 0, 0.7e-5, {}, 4),
    # XNNPACK's, and LiteRT's own.
    ("BATCH_MATMUL", _NARROW, _NARROW, 0, 1 / 4, {"adj_y": True}, 4),
    ("BATCH_MATMUL", _NARROW, _NARROW, -5, 1 / 4, {"adj_y": True}, 4),
)


def _product(case: int) -> bytes:
    op, left, right, zero, factor, fields, version = PRODUCTS[case]
    tensors = [
        TensorSpec("", (19, 23), left, None, Quantization((0.5,), (0,))),
        TensorSpec("", (11, 23), right, None, Quantization((0.25,), (zero,))),
        TensorSpec("", (19, 11), left, None, Quantization((0.125 / factor,), (0,))),
    ]
    operator = OperatorSpec(op, fields, [0, 1], [2], version=version)
    return write_model(ModelSpec(tensors, [operator], [0, 1], [2]))


def _run(interpreter: Any, *data: Array) -> Array:
    return np.array(first_results(interpreter, data)[0])


def _check(content: bytes, device: int, *data: Array) -> None:
    want = _run(litert.Interpreter(model_content=content), *data)
    with tflgpu.GpuDelegate(backend="cpu_ref", device=device, allow_fallback=False) as delegate:
        ours = tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        got = _run(ours, *data)
        ours.close()
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(want)) > 40


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("op", SUMS_CASES)
def test_as_litert_s_own_kernel(op: str, device: int) -> None:
    data = np.random.default_rng(7).integers(-128, 128, SUMS_CASES[op][0], np.int8)
    _check(_model(op), device, data)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("case", range(len(PRODUCTS)))
def test_products_of_what_is_computed(case: int, device: int) -> None:
    rng, data = np.random.default_rng(7), []
    for dtype, rows in zip(PRODUCTS[case][1:3], (19, 11), strict=True):
        most = 12 if dtype is _NARROW else 32767  # few bits, so that many sums are half way
        data.append(rng.integers(-most, most + 1, (rows, 23), dtype.numpy))
    _check(_product(case), device, *data)


@pytest.mark.parametrize("op", SUMS_CASES)
def test_the_cpu_side_has_the_file_s_own_types(op: str) -> None:
    """4-bit weights that were written as 8-bit ones would be XNNPACK's."""
    content = _model(op)
    data = np.random.default_rng(7).integers(-128, 128, SUMS_CASES[op][0], np.int8)
    want = _run(litert.Interpreter(model_content=content), data)
    with tflgpu.Interpreter(
        model_content=content, experimental_delegates=[], cpu_backend="litert"
    ) as interpreter:
        got = _run(interpreter, data)
        assert "LiteRT" in str(interpreter.report)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(want)) > 40


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("dtype", [DType.I8, DType.I16], ids=lambda d: str(d.value))
def test_a_product_of_one_number_is_what_is_stored(dtype: DType, device: int) -> None:
    zero = 3 if dtype is DType.I8 else 0
    tensors = [
        TensorSpec("", (1, 9, 13), dtype, None, Quantization((0.02,), (zero,))),
        TensorSpec("", (1,), DType.I32, np.array([0], np.int32)),
        TensorSpec("", (9, 13), dtype, None, Quantization((0.031,), (zero,))),
    ]
    operator = OperatorSpec("REDUCE_PROD", {"keep_dims": False}, [0, 1], [2], version=2)
    content = write_model(ModelSpec(tensors, [operator], [0], [2]))
    info = np.iinfo(dtype.numpy)
    rng = np.random.default_rng(7)
    _check(content, device, rng.integers(info.min, info.max + 1, (1, 9, 13), dtype.numpy))
