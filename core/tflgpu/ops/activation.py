"""RELU family, and the activations fused into other ops.

RELU: TFLite versions 1-3; RELU6: 1-3; RELU_N1_TO_1 and RELU_0_TO_1: 1; LEAKY_RELU: 1-2; PRELU: 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import take_operands
from tflgpu.ops.base import (
    Activation,
    Arg,
    Arithmetic,
    Fields,
    FileForm,
    NoAttrs,
    OpDef,
    Operands,
    Quantized,
    Sample,
    no_attrs,
)
from tflgpu.ops.elementwise import (
    FLOATS,
    QUANTIZED,
    broadcast_shape,
    check_dtype,
    infer_unary,
    reference_of,
    widen,
)
from tflgpu.ops.stored_functions import by_steps, clamped, leaky
from tflgpu.ops.stored_pair import prelu
from tflgpu.values import frozen

_TYPES = FLOATS | QUANTIZED


def computable_activation(fields: Fields) -> Activation:
    """The fused activation of an op.

    Raises:
        UnsupportedError: SIGN_BIT, which is not computed here.
    """
    activation = fields.activation()
    if activation is Activation.SIGN_BIT:
        raise UnsupportedError(f"{fields.op}: fused activation SIGN_BIT is not supported")
    return activation


def fused_clamp(fields: Fields) -> Activation:
    """The fused activation of arithmetic, a convolution or pooling, of which TFLite's kernels
    compute clamps only: they leave TANH and SIGN_BIT out without a word, and so does this."""
    activation = fields.activation()
    unknown = activation in (Activation.TANH, Activation.SIGN_BIT)
    return Activation.NONE if unknown else activation


def apply_activation(activation: Activation, x: Array) -> Array:
    """What a fused activation makes of an op's result; the result has ``x``'s type.

    Raises:
        UnsupportedError: SIGN_BIT, which no TFLite kernel computes.
    """
    if activation is Activation.NONE:
        return x
    if activation is Activation.TANH:
        return np.asarray(np.tanh(widen(x))).astype(x.dtype, copy=False)
    limits = {
        Activation.RELU: (0.0, np.inf),
        Activation.RELU_N1_TO_1: (-1.0, 1.0),
        Activation.RELU6: (0.0, 6.0),
    }
    if activation not in limits:
        raise UnsupportedError(f"fused activation {activation.name} is defined by no kernel")
    return _clip(x, *limits[activation])


def _clip(x: Array, low: float, high: float) -> Array:
    kind = x.dtype.type
    floor = np.maximum(x, kind(low))
    return np.asarray(floor if high == np.inf else np.minimum(floor, kind(high)))


def _clamp(op: str, low: float, high: float) -> Callable[..., list[Array]]:
    return reference_of(op, lambda attributes, x: _clip(x, low, high))


@frozen
class LeakyRelu:
    """The slope of negative values."""

    alpha: float


def _parse_leaky(fields: Fields) -> LeakyRelu:
    return LeakyRelu(fields.number("alpha"))


def _leaky(attributes: LeakyRelu, x: Array) -> Array:
    return np.asarray(np.where(x > 0, x, x * x.dtype.type(attributes.alpha)))


def _infer_prelu(attributes: NoAttrs, operands: Operands) -> list[TensorSpec]:
    x, alpha = take_operands("PRELU", operands, 2)
    check_dtype("PRELU", x.dtype, _TYPES)
    # Slopes of 16-bit data may be weights, of 8 bits.
    if alpha.dtype is not x.dtype and (x.dtype, alpha.dtype) != (DType.I16, DType.I8):
        raise ModelError(f"PRELU: alpha is {alpha.dtype.value}, the operand {x.dtype.value}")
    return [TensorSpec(broadcast_shape("PRELU", x.shape, alpha.shape), x.dtype)]


def _prelu(attributes: NoAttrs, x: Array, alpha: Array) -> Any:
    return np.where(x >= 0, x, x * alpha)


def _wide(*shape: int) -> Arg:
    return Arg(shape, low=-8, high=8)


def _shapes(fields: dict[str, Any]) -> list[Sample]:
    return [
        Sample("rank4", fields, (_wide(1, 5, 7, 3),)),
        Sample("rank4_batch", fields, (_wide(2, 3, 5, 8),)),
        Sample("rank3", fields, (_wide(3, 7, 5),)),
        Sample("rank2", fields, (_wide(3, 13),)),
        Sample("rank1", fields, (_wide(5),)),
        Sample("rank5", fields, (_wide(2, 3, 2, 3, 5),)),
        Sample("one", fields, (_wide(1, 1, 1, 1),)),
    ]


def _leaky_samples() -> list[Sample]:
    return [
        *_shapes({"alpha": 0.2}),
        Sample("negative_slope", {"alpha": -0.5}, (_wide(1, 3, 5, 6),)),
        Sample("steep", {"alpha": 2.5}, (_wide(1, 3, 5, 6),)),
        Sample("flat", {"alpha": 0.0}, (_wide(1, 3, 5, 6),)),
    ]


def _prelu_samples() -> list[Sample]:
    def alpha(*shape: int) -> Arg:
        return Arg(shape, low=-0.5, high=0.9, const=True)

    return [
        Sample("channels", {}, (_wide(1, 5, 7, 6), alpha(6))),
        Sample("channels_1x1", {}, (_wide(2, 3, 5, 7), alpha(1, 1, 7))),
        Sample("full", {}, (_wide(1, 3, 5, 6), alpha(3, 5, 6))),
        Sample("scalar", {}, (_wide(1, 3, 5, 6), alpha(1))),
        Sample("per_row", {}, (_wide(2, 3, 5, 6), alpha(3, 1, 1))),
        Sample("rank3", {}, (_wide(3, 5, 4), alpha(4))),
        Sample("rank2", {}, (_wide(3, 13), alpha(13))),
        Sample("runtime_alpha", {}, (_wide(1, 3, 5, 6), Arg((1, 1, 6), low=-0.5, high=0.9))),
    ]


def _clamp_op(
    name: str, low: float, high: float, version: int, computes: Activation = Activation.NONE
) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        infer_unary(name, _TYPES),
        _clamp(name, low, high),
        lambda: _shapes({}),
        file=FileForm(max_version=version),
        elementwise=True,
        arithmetic=Arithmetic(computes=computes),
        quantized=Quantized(
            results=by_steps(clamped(low, high), lambda attributes, x: _clip(x, low, high))
        ),
    )


OPS = (
    _clamp_op("RELU", 0.0, np.inf, 3, Activation.RELU),
    _clamp_op("RELU6", 0.0, 6.0, 3, Activation.RELU6),
    _clamp_op("RELU_N1_TO_1", -1.0, 1.0, 1, Activation.RELU_N1_TO_1),
    _clamp_op("RELU_0_TO_1", 0.0, 1.0, 1),
    OpDef(
        "LEAKY_RELU", _parse_leaky, infer_unary("LEAKY_RELU", _TYPES),
        reference_of("LEAKY_RELU", _leaky), _leaky_samples, file=FileForm(max_version=2),
        elementwise=True, quantized=Quantized(results=by_steps(leaky, _leaky))
    ),
    OpDef(
        "PRELU", no_attrs, _infer_prelu, reference_of("PRELU", _prelu), _prelu_samples,
        elementwise=True, quantized=Quantized(results=prelu), file=FileForm(result_type=0)
    ),
)  # fmt: skip
