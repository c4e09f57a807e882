"""The basic kernel of LSTM on whole numbers, as the first quantized models have it: u8 in and out, a cell
state of i16 with 4 bits before the point.

Gates are sums of 32 bits, brought to 16 with 3 bits before the point. The input and the output have the scale
1 / 128 and stand around 128, whatever the file says.

Sources: TFLite's `kernels/lstm.cc` (basic::Eval) and `kernels/internal/reference/reference_ops.h` (LstmCell on
whole numbers).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.fixed_functions import divide, logistic, look_up, product, tanh
from tflgpu.ops.fixed_point import Multiplier, multiply
from tflgpu.ops.integer_scales import Scales

_SOURCE, _HIDDEN, _WEIGHTS, _BIASES, _CELLS = range(5)
_TYPES = {
    _SOURCE: DType.U8, _HIDDEN: DType.U8, _WEIGHTS: DType.U8, _BIASES: DType.I32, _CELLS: DType.I16
}  # fmt: skip
BASIC_TYPES = frozenset(_TYPES.values())
_I16 = (-(1 << 15), (1 << 15) - 1)
_BITS = 4
_MIDDLE = 128


@attrs.frozen
class IntegerBasicLstm:
    """The arithmetic: the weight that stands for 0, and what brings sums to a gate's scale."""

    weights_zero: int
    multiplier: Multiplier


def integer_basic_lstm(scales: Scales) -> IntegerBasicLstm:
    """The arithmetic of a node with such scales.

    Raises:
        UnsupportedError: TFLite's kernel would not compute it.
    """
    scales.check_types(_TYPES)
    if abs(float(np.log2(float(scales.of(_CELLS)))) - (_BITS - 15)) >= 1e-3:
        raise UnsupportedError(
            f"LSTM of u8: the cell state's scale is {scales.of(_CELLS)}; TFLite's kernel takes 2**-11"
        )
    factor = np.float32(4096) * scales.of(_BIASES)
    return IntegerBasicLstm(scales.zero(_WEIGHTS), Multiplier.of(float(factor)))


def step_on_stored(attributes: IntegerBasicLstm, arrays: Sequence[Array]) -> list[Array]:
    """A step: output u8, cell state i16, the joined input u8 and the gates i16."""
    joined = np.concatenate([arrays[_SOURCE], arrays[_HIDDEN]], axis=1)
    weights, biases, cells = (arrays[i].astype(np.int64) for i in (_WEIGHTS, _BIASES, _CELLS))
    sums = (joined.astype(np.int64) - _MIDDLE) @ (weights - attributes.weights_zero).T + biases
    by = attributes.multiplier
    gates = np.clip(multiply(sums, by.value, by.left, by.right), *_I16)
    admit, content, forget, show = np.split(gates, 4, axis=1)
    made = product(look_up(logistic(), admit), look_up(tanh(3), content))
    kept = product(look_up(logistic(), forget), cells)
    new = np.clip(divide(made, _BITS) + kept, *_I16)
    seen = look_up(tanh(3), np.clip(new << 1, *_I16))  # of 3 bits before the point
    output = np.clip(divide(product(look_up(logistic(), show), seen), 8), -_MIDDLE, _MIDDLE - 1)
    return [
        (output + _MIDDLE).astype(np.uint8), new.astype(np.int16), joined, gates.astype(np.int16)
    ]  # fmt: skip
