"""LSTM with the basic kernel, of floats and of whole numbers.

It has five operands (input, previous output, weights, biases, previous cell state) and four results
(output, cell state, and two intermediates: the input and the previous output joined, and the gates
before their functions). It keeps nothing; its activation is always TANH, and nothing is clipped.

On whole numbers it is as the first quantized models have it: u8 in and out, a cell state of i16
with 4 bits before the point. Gates are sums of 32 bits, brought to 16 with 3 bits before the point.
The input and the output have the scale 1 / 128 and the zero point 128; a file cannot say otherwise.

Sources: TFLite's `kernels/lstm.cc` (basic::Eval) and `kernels/internal/reference/reference_ops.h`
(LstmCell on whole numbers).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec
from tflgpu.ops.axes import present
from tflgpu.ops.base import Activation, Arrays, Fields, Operands
from tflgpu.ops.cell_steps import sigmoid
from tflgpu.ops.fixed_functions import divide, logistic, look_up, product, tanh
from tflgpu.ops.fixed_point import I16, Multiplier, Scales, clamped, times
from tflgpu.ops.products import PRODUCT_TYPES, floats, needed, take
from tflgpu.values import frozen

_NAMES = ("input", "previous output", "weights", "biases", "previous cell state")
INPUT, HIDDEN, WEIGHTS, BIASES, CELLS = range(5)
_TYPES = {INPUT: DType.U8, HIDDEN: DType.U8, WEIGHTS: DType.U8, BIASES: DType.I32, CELLS: DType.I16}
_BITS = 4
_MIDDLE = 128


@frozen
class BasicScales:
    """The weight that stands for 0, and what brings sums to a gate's scale."""

    weights_zero: int
    multiplier: Multiplier


@frozen
class BasicLstm:
    """The basic kernel on real numbers, or on ``stored`` ones."""

    stored: BasicScales | None = None


def basic_lstm(fields: Fields) -> BasicLstm:
    """What the options say.

    Raises:
        ModelError: they ask for what the kernel does not have.
        UnsupportedError: TFLite's kernel would not compute a node with such scales.
    """
    if fields.activation() is not Activation.TANH:
        raise ModelError(
            f"LSTM: the basic kernel has TANH as its activation, not {fields.activation().name}"
        )
    if fields.number("cell_clip") != 0 or fields.number("proj_clip") != 0:
        raise ModelError("LSTM: the basic kernel clips nothing")
    scales = Scales.of_fields(fields)
    if scales.real:
        return BasicLstm()
    scales.check_types(_TYPES)
    cells = scales.of(CELLS).step
    if abs(float(np.log2(float(cells))) - (_BITS - 15)) >= 1e-3:
        raise UnsupportedError(
            f"LSTM of u8: the cell state's scale is {cells}; TFLite's kernel takes 2**-11"
        )
    factor = np.float32(4096) * scales.of(BIASES).step
    return BasicLstm(BasicScales(scales.of(WEIGHTS).zero, Multiplier.of(float(factor))))


def infer_basic(attributes: BasicLstm, operands: Operands) -> list[TensorSpec]:
    """Output, cell state, joined input and gates.

    Raises:
        ModelError: the operands do not fit each other; names one.
    """
    stored = attributes.stored is not None
    types = frozenset(_TYPES.values()) if stored else PRODUCT_TYPES
    given = [
        needed("LSTM", operand, what, rank, types=types)
        for operand, what, rank in zip(
            take("LSTM", operands, _NAMES), _NAMES, (2, 2, 2, 1, 2), strict=True
        )
    ]
    (batch, inputs), units = given[INPUT].shape, given[HIDDEN].shape[1]
    wanted = {
        HIDDEN: (batch, units),
        WEIGHTS: (4 * units, inputs + units),
        BIASES: (4 * units,),
        CELLS: (batch, units),
    }
    for at, shape in wanted.items():
        if given[at].shape != shape:
            raise ModelError(
                f"LSTM: the {_NAMES[at]} of shape {list(given[at].shape)} should be {list(shape)}"
            )
    shapes = ((batch, units), (batch, units), (batch, inputs + units), (batch, 4 * units))
    whole = (DType.U8, DType.I16, DType.U8, DType.I16)
    dtypes = whole if stored else (given[INPUT].dtype,) * 4
    return [TensorSpec(s, dtype) for s, dtype in zip(shapes, dtypes, strict=True)]


def run_basic(attributes: BasicLstm, operands: Arrays) -> list[Array]:
    """The reference: output, cell state, joined input and gates."""
    arrays = [present(array) for array in operands]
    if attributes.stored is not None:
        return _run_on_stored(attributes.stored, arrays)
    source, hidden, weights, biases, cells = (floats("LSTM", array) for array in arrays)
    joined = np.concatenate([source, hidden], axis=1)
    gates = joined @ weights.T + biases
    admit, content, forget, show = np.split(gates, 4, axis=1)
    new = sigmoid(admit) * np.tanh(content) + sigmoid(forget) * cells
    output = sigmoid(show) * np.tanh(new)
    return [a.astype(arrays[INPUT].dtype, copy=False) for a in (output, new, joined, gates)]


def _run_on_stored(scales: BasicScales, arrays: Sequence[Array]) -> list[Array]:
    joined = np.concatenate([arrays[INPUT], arrays[HIDDEN]], axis=1)
    weights, biases, cells = (arrays[i].astype(np.int64) for i in (WEIGHTS, BIASES, CELLS))
    sums = (joined.astype(np.int64) - _MIDDLE) @ (weights - scales.weights_zero).T + biases
    gates = clamped(times(sums, scales.multiplier), I16)
    admit, content, forget, show = np.split(gates, 4, axis=1)
    made = product(look_up(logistic(), admit), look_up(tanh(3), content))
    kept = product(look_up(logistic(), forget), cells)
    new = clamped(divide(made, _BITS) + kept, I16)
    seen = look_up(tanh(3), clamped(new << 1, I16))  # of 3 bits before the point
    output = np.clip(divide(product(look_up(logistic(), show), seen), 8), -_MIDDLE, _MIDDLE - 1)
    return [
        (output + _MIDDLE).astype(np.uint8),
        new.astype(np.int16),
        joined,
        gates.astype(np.int16),
    ]
