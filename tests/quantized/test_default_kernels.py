"""Operators on quantized tensors of unlike and of round scales: equal to what LiteRT's interpreter
gives by default, to the last bit. Round scales put every other result half way between two
steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, side_by_side
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

_S = (1, 5, 7, 3)
_RELU6 = {"fused_activation_function": 3}
_SLOPES = np.array([[[-128, 5, 77]]], np.int8)
_WIDE_SLOPES = np.array([[[-12345, 5000, 77]]], np.int16)
_PLANE = np.array([1, 2], np.int32)
_SIZE, _LARGE = np.array([9, 13], np.int32), (1, 9, 13, 3)
#: Operators by name, type of the result and scales, the result's last; shapes other than `_S` with
#: them; constants as arrays; options; version.
OPERATORS: tuple[tuple[str, DType, list[Any], Any, dict[str, Any], int], ...] = (
    ("ADD", DType.I8, [0.5, 0.25], 1.0, {}, 2),
    ("ADD", DType.U8, [0.05, (0.02, (3,))], 0.07, _RELU6, 2),
    ("SUB", DType.I8, [0.5, 0.25], 0.5, {}, 3),
    ("SUB", DType.U8, [0.013, 0.4], 0.3, {}, 3),
    ("MUL", DType.I8, [0.5, 0.25], 8.0, {}, 2),
    ("MUL", DType.U8, [0.02, (0.05, (3,))], 0.06, _RELU6, 2),
    ("SQUARED_DIFFERENCE", DType.I8, [0.03, 0.05], 0.4, {}, 2),
    ("PRELU", DType.I8, [0.25, (0.125, _SLOPES)], 0.5, {}, 1),
    ("PRELU", DType.I16, [1e-4, (0.007, _SLOPES)], 2e-4, {}, 1),
    # Each byte is taken for a slope.
    ("PRELU", DType.I16, [1e-4, (1e-4, _WIDE_SLOPES)], 2e-4, {}, 1),
    ("MEAN", DType.I8, [0.5, (np.array([2], np.int32),)], (1.0, (1, 5, 3)), {}, 2),
    ("MEAN", DType.U8, [0.1, (_PLANE,)], (0.05, (1, 1, 1, 3)), {"keep_dims": True}, 2),
    ("MEAN", DType.I16, [1e-4, (_PLANE,)], (0.3e-4, (1, 3)), {}, 3),
    ("MEAN", DType.I8, [0.1, (np.array([3], np.int32),)], (0.1, (1, 5, 7)), {}, 2),
    ("SUM", DType.I8, [0.5, (np.array([2], np.int32),)], (4.0, (1, 5, 3)), {}, 2),
    ("ABS", DType.I16, [1e-4], 0.97e-4, {}, 5),
    ("HARD_SWISH", DType.I8, [0.05], 0.025, {}, 1),
    ("HARD_SWISH", DType.I8, [(129 / 4096, (4, 128))], (1 / 64, (4, 128)), {}, 1),
    ("HARD_SWISH", DType.U8, [0.1], 0.1, {}, 1),
    ("BATCH_MATMUL", DType.I8, [(0.05, (2, 5, 7)), (0.02, (2, 7, 3))], (0.05, (2, 5, 3)), {}, 4),
    ("BATCH_MATMUL", DType.I16, [(1e-4, (2, 5, 7)), (1e-4, (2, 7, 3))], (1e-3, (2, 5, 3)), {}, 4),
    ("CONCATENATION", DType.I16, [1e-4, 3e-4], (1e-4, (1, 5, 7, 6)), {"axis": 3}, 3),
    ("QUANTIZE", DType.I8, [(None, _S)], 0.5, {}, 1),
    ("QUANTIZE", DType.U8, [(None, _S)], 0.25, {}, 1),
    ("RESIZE_BILINEAR", DType.I8, [0.1, (_SIZE,)], (0.1, _LARGE), {}, 3),
    ("RESIZE_BILINEAR", DType.U8, [0.1, (_SIZE,)], (0.1, _LARGE), {"half_pixel_centers": True}, 3),
    ("RESIZE_BILINEAR", DType.I16, [1e-4, (_SIZE,)], (1e-4, _LARGE), {"align_corners": True}, 4),
    ("RESIZE_BILINEAR", DType.I16, [1e-4, (_SIZE,)], (1e-4, _LARGE), {"half_pixel_centers": True},
    4),
)  # fmt: skip


def _quant(dtype: DType, scale: float, index: int) -> Quantization:
    zero = {DType.I8: -9, DType.U8: 119, DType.I16: 0}[dtype]
    return Quantization((float(np.float32(scale)),), (zero + 7 * index * (dtype is not DType.I16),))


def _models() -> tuple[bytes, list[int], list[str], list[TensorSpec]]:
    tensors: list[TensorSpec] = []
    operators, inputs, outputs = [], [], []

    def add(
        shape: tuple[int, ...], dtype: DType, scale: float, index: int, data: Any = None
    ) -> int:
        quant = _quant(dtype if data is None else DType.I16, scale, index)
        tensors.append(TensorSpec("", shape, dtype, data, quant))
        return len(tensors) - 1

    for op, dtype, given, result, fields, version in OPERATORS:
        read = []
        for index, operand in enumerate(given):
            scale, *rest = operand if isinstance(operand, tuple) else (operand, _S)
            read.append(len(tensors))
            if not rest:  # numbers without a scale
                tensors.append(TensorSpec("", scale.shape, DType.I32, scale))
            elif isinstance(rest[0], np.ndarray):
                add(rest[0].shape, DType.from_numpy(rest[0].dtype), scale, 0, rest[0])
            else:
                inputs.append(read[-1])
                if scale is None:
                    tensors.append(TensorSpec("", rest[0], DType.F32))
                else:
                    add(rest[0], dtype, scale, index)
        scale, shape = result if isinstance(result, tuple) else (result, _S)
        # Operators of one operand that move or mix numbers take those of its scale.
        outputs.append(add(shape, dtype, scale, 0 if op.startswith("RESIZE") else 2))
        operators.append(OperatorSpec(op, fields, read, [outputs[-1]], version=version))
    content = write_model(ModelSpec(tensors, operators, inputs, outputs))
    return content, inputs, [f"{o[0]} of {o[1].value}" for o in OPERATORS], tensors


@pytest.mark.parametrize("device", [0, 1])
def test_as_the_default_interpreter(device: int) -> None:
    rng = np.random.default_rng(5)
    content, inputs, names, tensors = _models()
    data: dict[int, Any] = {}
    for i in inputs:
        spec = tensors[i]
        if spec.dtype is DType.F32:
            data[i] = (rng.integers(-99, 99, spec.shape) / 4).astype(np.float32)
        else:
            info = np.iinfo(spec.dtype.numpy)
            data[i] = rng.integers(info.min, info.max + 1, spec.shape, spec.dtype.numpy)
    results = side_by_side(content, data, device=device, allow_fallback=False)
    for name, want, got in zip(names, *results, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=name)
        assert len(np.unique(want)) > 2, name


# MEAN and SUM of 8 bits whose axes are no constant of the file: XNNPACK does not take them, so
# that their results are those of LiteRT's own kernels, to the last bit.


_AXES_S = (9, 5, 7, 3)
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
def test_axes_as_the_default_interpreter(device: int) -> None:
    rng = np.random.default_rng(7)
    tensors: list[TensorSpec] = []
    operators, feeds, outputs = [], {}, []
    for op, dtype, zeros, scales, axes, keep in CASES:
        at, kept = len(tensors), [a % 4 for a in axes]
        shape = tuple(1 if i in kept else n for i, n in enumerate(_AXES_S) if keep or i not in kept)
        x, y = (
            Quantization((float(np.float32(s)),), (z,)) for s, z in zip(scales, zeros, strict=True)
        )
        tensors += [
            TensorSpec(f"x{at}", _AXES_S, dtype, quantization=x),
            TensorSpec(f"axes{at}", (len(axes),), DType.I32),
            TensorSpec(f"y{at}", shape, dtype, quantization=y),
        ]
        operators.append(OperatorSpec(op, {"keep_dims": keep}, (at, at + 1), (at + 2,), version=2))
        info = np.iinfo(dtype.numpy)
        feeds[at] = rng.integers(info.min, info.max + 1, _AXES_S, dtype.numpy)
        feeds[at + 1] = np.array(axes, np.int32)
        outputs.append(at + 2)
    content = write_model(ModelSpec(tensors, operators, tuple(feeds), tuple(outputs)))
    results = side_by_side(content, feeds, device=device)
    wrong = [
        f"{case}: {int((got != want).sum())} of {want.size}"
        for case, want, got in zip(CASES, *results, strict=True)
        if not np.array_equal(got, want)
    ]
    assert not wrong


def test_axes_that_the_file_computes() -> None:
    """A constant for this project, none for XNNPACK."""
    quant = Quantization((0.5,), (-9,)), Quantization((1.0,), (5,))
    content = small_model(
        {
            "x": tensor_of(_AXES_S, DType.I8, quantization=quant[0]),
            "one": tensor_of((1,), DType.I32, np.array([1], np.int32)),
            "axes": tensor_of((1,), DType.I32),
            "y": tensor_of((9, 5, 1, 3), DType.I8, quantization=quant[1]),
        },
        "axes = ADD(one, one)",
        ("y = MEAN(x, axes)", {"keep_dims": True}, {"version": 2}),
    )
    x = np.random.default_rng(7).integers(-128, 128, _AXES_S, np.int8)
    (wanted,), (got,) = side_by_side(content, {0: x}, device=1)
    np.testing.assert_array_equal(got, wanted)


# How LiteRT's kernels round by default where one number in a thousand shows it: many numbers, no
# step off.


def _tensor(
    dtype: DType, shape: tuple[int, ...], scale: float, zero_point: int = 0, data: Any = None
) -> TensorSpec:
    quantization = Quantization((float(np.float32(scale)),), (zero_point,))
    return TensorSpec("", shape, dtype, data, quantization)


def _axes(*axes: int) -> TensorSpec:
    return TensorSpec("", (len(axes),), DType.I32, np.array(axes, np.int32))


def _dense(
    bias: DType | None, scales: int = 1, said: DType = DType.F32
) -> tuple[str, list[TensorSpec], dict[str, Any], int]:
    rng = np.random.default_rng(2)
    each = tuple(float(np.float32(0.0077 + 1e-4 * i)) for i in range(scales))
    data = rng.integers(-127, 128, (29, 47), np.int8)
    tensors = [
        _tensor(DType.I16, (60, 47), 4.3e-5),
        TensorSpec("", (29, 47), DType.I8, data, Quantization(each, (0,) * scales, 0)),
    ]
    if bias is not None:
        offsets = rng.integers(-20000, 20000, 29).astype(bias.numpy)
        steps = tuple(float(np.float32(4.3e-5 * scale)) for scale in each)
        tensors.append(TensorSpec("", (29,), bias, offsets, Quantization(steps, (0,) * scales, 0)))
    tensors.append(_tensor(DType.I16, (60, 29), 2.1e-4))
    fields = {"quantized_bias_type": (bias if bias is DType.I32 else said).tflite}
    return "FULLY_CONNECTED", tensors, fields, 13


_BIG = (12, 15, 20)
#: Operator, its operands and at last the result, options, version.
ROUNDING_CASES: dict[str, tuple[str, list[TensorSpec], dict[str, Any], int]] = {
    "product_i8": (
        "REDUCE_PROD",
        [_tensor(DType.I8, (9, 4, 7), 0.02, 9), _axes(1), _tensor(DType.I8, (9, 7), 0.03, -5)],
        {}, 2,
    ),
    "product_i16": (
        "REDUCE_PROD",
        [_tensor(DType.I16, (30, 3, 5), 1e-4), _axes(-1), _tensor(DType.I16, (30, 3), 0.005)],
        {}, 2,
    ),
    "dense_without_bias": _dense(None),
    "dense_with_32_bits": _dense(DType.I32),
    "dense_with_64_bits": _dense(DType.I64),
    # As the converter writes what has no bias.
    "dense_said_without_bias": _dense(None, 29, DType.I64),
    "dense_channels_with_64_bits": _dense(DType.I64, 29),
    **{
        op: (op, [_tensor(DType.I16, _BIG, s) for s in (8.8e-5, 6.2e-5, 9.2e-5)],
        {"pot_scale_int16": False}, version)
        for op, version in (("ADD", 3), ("SUB", 5))
    },
    "MUL": ("MUL", [_tensor(DType.I16, _BIG, s) for s in (9.3e-5, 4.2e-4, 3.6e-4)], {}, 6),
    "SOFTMAX": (
        "SOFTMAX", [_tensor(DType.I16, (400, 7), 2.4e-4), _tensor(DType.I16, (400, 7), 2.0**-15)],
        {"beta": 2.0}, 3,
    ),
    "unit": (
        "L2_NORMALIZATION",
        [_tensor(DType.U8, (400, 9), 0.02, 77), _tensor(DType.U8, (400, 9), 1 / 128, 128)], {}, 2,
    ),
    **{
        f"requantize_{b.value}": (
            "QUANTIZE", [_tensor(a, _BIG, s, x), _tensor(b, _BIG, t, y)], {}, 4,
        )
        for a, s, x, b, t, y in (
            (DType.I32, 1e-3, 0, DType.I8, 0.7, -20),
            (DType.I32, 1e-3, 0, DType.I16, 0.0031, 0),
        )
    },
}  # fmt: skip


def _run_rounding(interpreter: Any, data: dict[int, Array], output: int) -> Array:
    allocate_and_run(interpreter, data)
    return np.array(interpreter.get_tensor(output))


@pytest.mark.parametrize("id", ROUNDING_CASES)
def test_no_step_off(id: str) -> None:
    op, tensors, fields, version = ROUNDING_CASES[id]
    last = len(tensors) - 1
    inputs = [i for i, t in enumerate(tensors[:-1]) if t.data is None]
    operands = [*range(last), *([-1] if id.endswith("without_bias") else [])]
    operator = OperatorSpec(op, fields, operands, [last], version=version)
    content = write_model(ModelSpec(tensors, [operator], inputs, [last]))
    rng = np.random.default_rng(5)
    data: dict[int, Array] = {}
    for i in inputs:
        info = np.iinfo(tensors[i].dtype.numpy)
        drawn = rng.integers(max(info.min, -(10**5)), min(info.max, 10**5) + 1, tensors[i].shape)
        data[i] = drawn.astype(tensors[i].dtype.numpy)
    wanted = _run_rounding(litert.Interpreter(model_content=content), data, last)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref") as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as ours,
    ):
        np.testing.assert_array_equal(_run_rounding(ours, data, last), wanted)
    assert len(np.unique(wanted)) > 20
