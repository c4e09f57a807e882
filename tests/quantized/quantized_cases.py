"""Models of one quantized operator, calibrated as a converter would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ops.base import Fields
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model


@attrs.frozen
class Input:
    """A runtime operand of real numbers between ``low`` and ``high``."""

    shape: tuple[int, ...]
    low: float = -3.0
    high: float = 4.0


@attrs.frozen
class Weights:
    """Constants: int8 with a scale for each index along ``axis``, or uint8 with one scale."""

    shape: tuple[int, ...]
    axis: int


@attrs.frozen
class Bias:
    """int32 constants, on the scale of operand ``x`` times that of operand ``weights``."""

    count: int
    x: int = 0
    weights: int = 1


@attrs.frozen
class Whole:
    """int32 constants without a scale: axes, sizes, paddings."""

    values: Any


Operand = Union[Input, Weights, Bias, Whole]


@attrs.frozen
class Case:
    """One operator.

    Attributes:
        op: Its name.
        operands: What it reads.
        fields: Its options.
        version: Its version.
        fixed: (scale, zero point as int8) of the result where TFLite prescribes it.
        moves: Whether results have the first input's quantization.
        label: Tells cases of one op apart.
    """

    op: str
    operands: tuple[Operand, ...]
    fields: Mapping[str, Any] = attrs.Factory(dict)
    version: int = 2
    fixed: tuple[float, int] | None = None
    moves: bool = False
    label: str = ""

    @property
    def id(self) -> str:
        """For pytest."""
        return self.op + (f"-{self.label}" if self.label else "")


def covering(low: float, high: float, dtype: DType) -> Quantization:
    """The quantization that a converter gives a tensor of that range; 0 is exact."""
    low, high = min(low, 0.0), max(high, 0.0)
    info = np.iinfo(dtype.numpy)
    scale = float(np.float32(max(high - low, 1e-3) / (int(info.max) - int(info.min))))
    return Quantization((scale,), (round(int(info.min) - low / scale),))


def _quantize_weights(real: Array, axis: int, dtype: DType) -> tuple[Array, Quantization]:
    if dtype is DType.U8:
        quant = covering(float(real.min()), float(real.max()), dtype)
    else:
        others = tuple(i for i in range(real.ndim) if i != axis)
        scales = np.abs(real).max(axis=others) / 127
        quant = Quantization(tuple(map(float, scales.astype(np.float32))), (0,) * scales.size, axis)
    scale, zero = quant.broadcast(real.ndim)
    info = np.iinfo(dtype.numpy)
    return np.clip(np.rint(real / scale) + zero, info.min, info.max).astype(dtype.numpy), quant


@attrs.frozen(eq=False)
class Built:
    """A model and what to run it on: by tensor index, stored numbers."""

    content: bytes
    inputs: Mapping[int, Array]
    outputs: Sequence[int]


def build(case: Case, dtype: DType, seed: int = 0) -> Built:
    """The case as a model whose activations are of ``dtype``, with random operands."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype.numpy)
    tensors: list[TensorSpec] = []
    reals: list[Array] = []
    inputs: dict[int, Array] = {}
    for index, operand in enumerate(case.operands):
        name, quant, kind, data = f"operand{index}", None, dtype, None
        if isinstance(operand, Input):
            shape, quant = operand.shape, covering(operand.low, operand.high, dtype)
            inputs[index] = rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
            reals.append(quant.dequantize(inputs[index]))
        elif isinstance(operand, Weights):
            shape = operand.shape
            spread = np.exp(rng.uniform(-1, 1, shape[operand.axis]))
            spread = spread.reshape([-1 if i == operand.axis else 1 for i in range(len(shape))])
            data, quant = _quantize_weights(rng.normal(size=shape) * spread, operand.axis, dtype)
            reals.append(quant.dequantize(data))
        elif isinstance(operand, Bias):
            shape, kind = (operand.count,), DType.I32
            x, weights = (tensors[i].quantization for i in (operand.x, operand.weights))
            assert x is not None and weights is not None
            scales = tuple(float(np.float32(x.scale[0]) * np.float32(s)) for s in weights.scale)
            quant = Quantization(scales, (0,) * len(scales))
            data = rng.integers(-2000, 2000, shape, np.int32)
            reals.append(quant.dequantize(data))
        else:
            data, kind = np.asarray(operand.values, np.int32), DType.I32
            shape = data.shape
            reals.append(data)
        tensors.append(TensorSpec(name, shape, kind, data, quant))
    op = builtin_ops()[case.op]
    results = op.reference(op.parse(Fields(case.op, case.fields)), reals)
    outputs = []
    for index, real in enumerate(results):
        outputs.append(len(tensors))
        quant = _result_quantization(case, dtype, tensors[next(iter(inputs))], real)
        tensors.append(TensorSpec(f"result{index}", real.shape, dtype, None, quant))
    operator = OperatorSpec(
        case.op, case.fields, range(len(case.operands)), outputs, version=case.version
    )
    model = ModelSpec(tensors, [operator], list(inputs), outputs)
    return Built(write_model(model), inputs, outputs)


def _result_quantization(case: Case, dtype: DType, source: TensorSpec, real: Array) -> Quantization:
    if case.moves:
        assert source.quantization is not None
        return source.quantization
    if case.fixed is not None:
        scale, zero_point = case.fixed
        return Quantization((scale,), (zero_point + (128 if dtype is DType.U8 else 0),))
    # A little less than the range, as calibration leaves it: some results are clamped.
    return covering(float(real.min()) * 0.9, float(real.max()) * 0.9, dtype)


_X = Input((1, 7, 11, 5))
_CONV = {"padding": 0, "stride_h": 1, "stride_w": 1}
_POOL = {"padding": 0, "stride_h": 2, "stride_w": 2, "filter_height": 3, "filter_width": 3}

CASES = (
    Case("CONV_2D", (_X, Weights((6, 3, 3, 5), 0), Bias(6)), _CONV, 3),
    Case("CONV_2D", (_X, Weights((7, 1, 1, 5), 0), Bias(7)),
         {**_CONV, "fused_activation_function": 3}, 3, label="relu6"),
    Case("CONV_2D", (_X, Weights((6, 3, 2, 5), 0), Bias(6)),
         {"padding": 1, "stride_h": 2, "stride_w": 1, "fused_activation_function": 1}, 3,
         label="strided_relu"),
    Case("DEPTHWISE_CONV_2D", (_X, Weights((1, 3, 3, 5), 3), Bias(5)),
         {**_CONV, "depth_multiplier": 1}, 3),
    Case("DEPTHWISE_CONV_2D", (_X, Weights((1, 3, 3, 10), 3), Bias(10)),
         {**_CONV, "depth_multiplier": 2, "fused_activation_function": 3}, 3, label="multiplier"),
    Case("FULLY_CONNECTED", (Input((3, 29)), Weights((11, 29), 0), Bias(11)), {}, 5),
    Case("FULLY_CONNECTED", (Input((1, 61)), Weights((7, 61), 0), Bias(7)),
         {"fused_activation_function": 1}, 5, label="relu"),
    Case("ADD", (_X, Input((1, 7, 11, 5), -9.0, 2.0))),
    Case("ADD", (_X, Input((5,), 0.0, 6.0)), {"fused_activation_function": 1}, label="broadcast"),
    Case("SUB", (_X, Input((1, 7, 11, 5), -9.0, 2.0))),
    Case("MUL", (_X, Input((1, 7, 11, 5), -9.0, 2.0))),
    Case("MUL", (_X, Input((1, 1, 1, 5), 0.0, 1.0)), label="broadcast"),
    Case("CONCATENATION", (_X, Input((1, 7, 11, 3))), {"axis": 3}, moves=True),
    Case("AVERAGE_POOL_2D", (_X,), _POOL, moves=True),
    Case("MAX_POOL_2D", (_X,), _POOL, moves=True),
    Case("MAX_POOL_2D", (_X,), {**_POOL, "fused_activation_function": 3}, moves=True,
         label="relu6"),
    Case("SOFTMAX", (Input((3, 13), -8.0, 8.0),), {"beta": 1.0}, fixed=(1 / 256, -128)),
    Case("LOGISTIC", (Input((1, 7, 11, 5), -6.0, 7.0),), fixed=(1 / 256, -128)),
    Case("TANH", (Input((1, 7, 11, 5), -2.5, 3.0),), fixed=(1 / 128, 0)),
    Case("L2_NORMALIZATION", (_X,), fixed=(1 / 128, 0)),
    Case("RELU", (_X,)),
    Case("RELU6", (Input((1, 7, 11, 5), -4.0, 9.0),)),
    Case("LEAKY_RELU", (_X,), {"alpha": 0.2}),
    Case("RESHAPE", (_X, Whole([11, 35])), {"new_shape": [11, 35]}, 1, moves=True),
    Case("TRANSPOSE", (_X, Whole([0, 3, 1, 2])), moves=True),
    Case("STRIDED_SLICE", (_X, Whole([0, 1, 2, 0]), Whole([1, 6, 9, 4]), Whole([1, 1, 2, 1])),
         moves=True),
    Case("SPLIT", (Whole(3), Input((1, 3, 5, 6))), {"num_splits": 2}, moves=True),
    Case("PAD", (_X, Whole([[0, 0], [1, 2], [3, 0], [0, 0]])), moves=True),
    Case("MAXIMUM", (_X, Input((1, 7, 11, 5))), moves=True),
    Case("MEAN", (_X, Whole([1, 2])), {"keep_dims": True}),
    Case("RESIZE_BILINEAR", (_X, Whole([10, 17])), {"half_pixel_centers": True}, 3, moves=True),
    Case("RESIZE_NEAREST_NEIGHBOR", (_X, Whole([10, 17])), {}, 3, moves=True),
)  # fmt: skip
