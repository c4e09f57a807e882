"""Normalizations along the last axis: SOFTMAX, LOG_SOFTMAX, L2_NORMALIZATION.

TFLite versions: SOFTMAX 1-4, LOG_SOFTMAX 1-2, L2_NORMALIZATION 1-2. Of quantized numbers of 8 bits
SOFTMAX may make ones of 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops import draws, stored_unit
from tflgpu.ops.activation import apply_activation, computable_activation
from tflgpu.ops.axes import take_operands
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Composed,
    Fields,
    FileForm,
    NoAttrs,
    OpDef,
    Operands,
    Quantized,
    Reading,
    Sample,
    no_attrs,
)
from tflgpu.ops.composed import there
from tflgpu.ops.elementwise import FLOATS, QUANTIZED, check_dtype, reference_of
from tflgpu.ops.items import each_row
from tflgpu.ops.positions import of_rows
from tflgpu.ops.quantize_and_dequantize import QuantizeAndDequantize
from tflgpu.ops.quantized import Replacement
from tflgpu.ops.quantized_softmax import (
    LONGEST,
    STEP,
    QuantizedSoftmax,
    exponentials,
    reciprocals,
)
from tflgpu.ops.quantized_softmax import OP as BY_TABLES
from tflgpu.values import frozen

#: TFLite's lower bound of a norm.
L2_EPSILON = 1e-6


@frozen
class Softmax:
    """What the operand is multiplied by first, and whether 8-bit numbers become ones of 16 bits."""

    beta: float
    widens: bool = False


@frozen
class L2Normalization:
    """The activation applied to the result."""

    activation: Activation = Activation.NONE


def _parse_softmax(fields: Fields) -> Softmax:
    quantized = all(fields.get(f"{end}_quantization") for end in ("input", "output"))
    widens = quantized and fields.get("output_dtype") is DType.I16
    return Softmax(fields.number("beta", 1.0), widens)


def _read_softmax(fields: Fields, operands: Operands) -> list[Reading]:
    (x,) = there(operands, 1, 1)
    if fields.integer("axis", -1) not in (-1, x.rank - 1):
        raise UnsupportedError("it is not over the last axis")
    return [Reading(Softmax(1.0))]


def _parse_l2(fields: Fields) -> L2Normalization:
    return L2Normalization(computable_activation(fields))


def _infer_softmax(attributes: Softmax, operands: Operands) -> list[TensorSpec]:
    (made,) = _infer("SOFTMAX")(attributes, operands)
    if attributes.widens and made.dtype in (DType.I8, DType.U8):
        return [TensorSpec(made.shape, DType.I16)]
    return [made]


def _infer(op: str) -> Callable[..., list[TensorSpec]]:
    def infer(attributes: Any, operands: Operands) -> list[TensorSpec]:
        (x,) = take_operands(op, operands, 1)
        check_dtype(op, x.dtype, FLOATS | QUANTIZED)
        if x.rank < 1:
            raise ModelError(f"{op} needs a last axis, the operand is a scalar")
        return [x.spec]

    return infer


def _softmax(attributes: Softmax, x: Array) -> Array:
    shifted = np.exp(
        (x - x.max(-1, keepdims=True, initial=-np.inf)) * x.dtype.type(attributes.beta)
    )
    if attributes.beta < 0:  # then the largest term comes from the smallest element
        shifted = np.exp(
            (x - x.min(-1, keepdims=True, initial=np.inf)) * x.dtype.type(attributes.beta)
        )
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def _log_softmax(attributes: NoAttrs, x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True, initial=-np.inf)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _l2(attributes: L2Normalization, x: Array) -> Array:
    # Squares beyond the operand's type are infinite, as in TFLite, and their row becomes zeros.
    squares = np.square(x).astype(np.float64).sum(-1, keepdims=True).astype(x.dtype)
    norm = np.sqrt(squares)
    y = (x / np.maximum(norm, L2_EPSILON)).astype(x.dtype)
    return apply_activation(attributes.activation, y)


def _as_stored(node: Node) -> Replacement | None:
    """Of 16-bit numbers TFLite goes by tables."""
    x, y = node.input(0), node.outputs[0]
    if not all(v.dtype is DType.I16 and v.quant is not None for v in (x, y)):
        return None
    assert x.quant is not None
    assert y.quant is not None
    beta, rows = node.attrs.beta, x.shape[-1]
    # LiteRT takes no other result.
    if (y.quant.scale, y.quant.zero_point) != ((STEP,), (0,)) or not beta > 0 or rows >= LONGEST:
        return None
    operand = QuantizeAndDequantize.of_value(x)
    tables = exponentials(x.quant.scale[0], beta), reciprocals()
    return Replacement(BY_TABLES, QuantizedSoftmax(operand), tables)


def _samples(fields: dict[str, Any]) -> list[Sample]:
    def sample(name: str, *shape: int, reach: float = 4.0, middle: float = 0.0) -> Sample:
        arg = Arg(shape, low=middle - reach, high=middle + reach)
        return Sample(name, fields, (arg,), accumulates=shape[-1])

    return [
        sample("rank4", 1, 5, 7, 6),
        sample("rank4_batch", 2, 3, 5, 21),
        sample("rank3", 3, 7, 5),
        sample("rank2", 3, 13),
        sample("rank2_vector", 2, 64),
        sample("rank1", 11),
        sample("classes", 1, 1001),
        sample("classes_batch", 3, 333),
        sample("one_channel", 1, 3, 5, 1),
        sample("far_apart", 3, 10, reach=60.0),
        # Zeros beside the channels are far above them.
        sample("far_below", 3, 13, middle=-500.0),
    ]


def _softmax_samples() -> list[Sample]:
    # Far apart: exponentials of anything but what is left of the scaled maximum leave f32.
    scaled = [
        Sample(name, {"beta": 0.25}, (Arg((3, 17), low=-reach, high=reach),))
        for name, reach in (("beta", 9), ("beta_far_apart", 240))
    ]
    return _samples({"beta": 1.0}) + scaled


def _l2_samples() -> list[Sample]:
    # Rows without a length are divided by the epsilon.
    return [*_samples({}), Sample("zeros", {}, (Arg((3, 7), low=0.0, high=0.0),), accumulates=7)]


OPS = (
    OpDef(
        "SOFTMAX", _parse_softmax, _infer_softmax, reference_of("SOFTMAX", _softmax),
        _softmax_samples, generate=draws.softmax, accuracy=Accuracy.TRANSCENDENTAL,
        file=FileForm(
            max_version=4,
            composed=(Composed(("odml.softmax",), _read_softmax, frozenset({"axis"})),),
        ),
        batch=each_row(0, rank=2), positions=of_rows(-math.inf, clears=True),
        quantized=Quantized(results=_as_stored)
    ),
    OpDef(
        "LOG_SOFTMAX", no_attrs, _infer("LOG_SOFTMAX"), reference_of("LOG_SOFTMAX", _log_softmax),
        lambda: _samples({}), accuracy=Accuracy.TRANSCENDENTAL, file=FileForm(max_version=2),
        batch=each_row(0, rank=2), positions=of_rows(-math.inf)
    ),
    OpDef(
        "L2_NORMALIZATION", _parse_l2, _infer("L2_NORMALIZATION"),
        reference_of("L2_NORMALIZATION", _l2), _l2_samples,
        arithmetic=Arithmetic(activation_field="activation"), accuracy=Accuracy.TRANSCENDENTAL,
        file=FileForm(max_version=2), batch=each_row(0, rank=2), positions=of_rows(0),
        quantized=Quantized(results=stored_unit.as_stored)
    ),
)  # fmt: skip
