"""The long short-term memory cell on whole numbers whose gates are sums of two products of 8 bits, which a
file tells by twelve intermediates. Functions and layer norms are computed in f32 between.

    x8    = W x, h8 = R h                each brought to a scale of its own, clamped to 8 bits
    gate  = x8 + h8                      brought to the gate's scale, 16 bits; then normalised
    c'    = forget * c + (1 - forget) * tanh(content)
    h'    = projection of sigmoid(output) * tanh(c'), 16 bits

TFLite's kernel leaves the output state's product out of the output gate: its multiplier to the gate's
scale is never set. What is the same bit for bit but for tanh, which is the C library's there: of its 65536
results some dozen are a step off.

It has neither peepholes nor weights of an input gate, and always layer norms and a projection with a
bias: TFLite's kernel reads these without looking whether they are there.

Sources: TFLite's `kernels/lstm.cc` (PopulateQuantizedLstmParams8x8_8), `kernels/lstm_eval.cc`
(LstmStepInteger8x8_8) and `kernels/internal/reference/portable_tensor_utils.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array
from tflgpu.ops.axes import present
from tflgpu.ops.fixed_functions import divide
from tflgpu.ops.fixed_point import Multiplier, multiply
from tflgpu.ops.integer_cell import TYPES
from tflgpu.ops.integer_scales import Scales
from tflgpu.ops.lstm_cell import (
    BIASES,
    CELL_STATE,
    INPUT,
    LAYER_NORM,
    OUTPUT_STATE,
    PROJECTION,
    PROJECTION_BIAS,
    RECURRENT,
    WEIGHTS,
)

#: Intermediates of such a cell: of each gate the sum's, the input's and the output state's.
INTERMEDIATES = 12
_F32 = np.float32
_I16, _I8 = (-(1 << 15), (1 << 15) - 1), (-(1 << 7), (1 << 7) - 1)
_FORGET, _CONTENT, _OUTPUT = 1, 2, 3


@attrs.frozen
class Product:
    """A product of 8 bits: what brings its sums there, what stands for 0 in it, and what brings it to
    the gate's scale."""

    scale: Multiplier
    zero: int
    to_gate: Multiplier


@attrs.frozen
class Gate8:
    """A gate: its two products, and the scale of its layer norm's coefficients."""

    weights: Product
    recurrent: Product
    norm: float


@attrs.frozen
class IntegerCell8:
    """The arithmetic; ``gates`` are forget, content and output. Clips are stored numbers, 0 for none."""

    gates: tuple[Gate8, Gate8, Gate8]
    input_zero: int
    output_zero: int
    projection: Multiplier
    cell_clip: int
    projection_clip: int


def integer_cell_8(scales: Scales, cell_clip: float, projection_clip: float) -> IntegerCell8:
    """The arithmetic of a node with such scales.

    Raises:
        UnsupportedError: TFLite's kernel would not compute it.
    """
    needed = (LAYER_NORM + _FORGET, LAYER_NORM + _CONTENT, LAYER_NORM + _OUTPUT, PROJECTION)
    if not all(scales.has(index) for index in (*needed, PROJECTION_BIAS)):
        raise UnsupportedError(
            f"{scales.op} of i8 with {INTERMEDIATES} intermediates has layer norms and a projection "
            "with a bias, of which one is absent"
        )
    scales.check_types({i: t for i, t in TYPES.items() if not RECURRENT + 4 <= i < BIASES})
    if float(scales.of(CELL_STATE)) != 2.0**-15:
        raise UnsupportedError(
            f"{scales.op} of i8: the cell state's scale is {scales.of(CELL_STATE)}, not 2**-15"
        )
    source, state = scales.of(INPUT), scales.of(OUTPUT_STATE)

    def product(first: int, gate: int, of: np.float32, told: int) -> Product:
        own, total = scales.told(told), scales.told(3 * gate)
        return Product(
            Multiplier.of(float(scales.of(first + gate) * of / own)),
            scales.told_zero(told),
            Multiplier.of(float(own / total)),
        )

    def gate(index: int) -> Gate8:
        norm = Multiplier.of(float(scales.of(LAYER_NORM + index)))
        return Gate8(
            product(WEIGHTS, index, source, 3 * index + 1),
            product(RECURRENT, index, state, 3 * index + 2),
            float(_F32(norm.value * 2.0 ** (norm.shift - 31))),
        )

    projection = _F32(float(scales.of(PROJECTION)) * 2.0**-15 / float(state))
    limited = 0 < cell_clip < 1
    return IntegerCell8(
        (gate(_FORGET), gate(_CONTENT), gate(_OUTPUT)),
        scales.zero(INPUT),
        scales.zero(OUTPUT_STATE),
        Multiplier.of(float(projection)),
        int(_F32(cell_clip) / scales.of(CELL_STATE)) if limited else 0,
        int(_F32(projection_clip) / scales.result) if projection_clip > 0 else 0,
    )


class Runner8:
    """A cell with its weights, stepped through time."""

    def __init__(self, cell: IntegerCell8, arrays: Sequence[Array | None]) -> None:
        self._cell = cell
        self._arrays = [None if a is None else a.astype(np.int64) for a in arrays]

    def step(self, x: Array, hidden: Array, cells: Array) -> tuple[Array, Array]:
        """As `IntegerRunner.step`."""
        cell, (x, hidden, cells) = self._cell, (a.astype(np.int64) for a in (x, hidden, cells))
        forget, content, show = (self._gate(i, x, hidden) for i in (_FORGET, _CONTENT, _OUTPUT))
        forget, content, show = _sigmoid(forget), _tanh(content, -12), _sigmoid(show)
        new = divide(forget * cells, 15) + divide((_I16[1] - forget) * content, 15)
        new = np.clip(new, *_I16)
        if cell.cell_clip > 0:
            new = np.clip(new, -cell.cell_clip, cell.cell_clip)
        value = divide(show * _tanh(new, -15), 15)
        sums = value @ present(self._arrays[PROJECTION]).T + present(self._arrays[PROJECTION_BIAS])
        output = np.clip(_times_wide(sums, cell.projection) + cell.output_zero, *_I8)
        if cell.projection_clip > 0:
            output = np.clip(output, -cell.projection_clip, cell.projection_clip)
        return output.astype(np.int8), new.astype(np.int16)

    def _gate(self, index: int, x: Array, hidden: Array) -> Array:
        cell, gate = self._cell, self._cell.gates[index - 1]
        products = [(WEIGHTS, gate.weights, x - cell.input_zero)]
        if index != _OUTPUT:
            products.append((RECURRENT, gate.recurrent, hidden - cell.output_zero))
        total = np.zeros((len(x), 1), np.int64)
        for first, by, steps in products:
            sums = steps @ present(self._arrays[first + index]).T
            stored = np.clip(_times(sums, by.scale) + by.zero, *_I8)
            total = total + _times(stored - by.zero, by.to_gate)
        weights, bias = (present(self._arrays[i + index]) for i in (LAYER_NORM, BIASES))
        return _normalised(np.clip(total, *_I16), weights, bias, _F32(gate.norm))


def _times(x: Array, by: Multiplier) -> Array:
    return multiply(x, by.value, by.left, by.right)


def _times_wide(x: Array, by: Multiplier) -> Array:
    """A sum of 64 bits, for which TFLite has a multiplier of 16."""
    value = min((by.value + (1 << 15)) >> 16, (1 << 15) - 1)
    shift = 15 - by.shift
    return np.asarray((x * value + (1 << (shift - 1))) >> shift)


def _normalised(x: Array, weights: Array, bias: Array, scale: np.float32) -> Array:
    """A gate [batch, cells] after its layer norm, on the scale 2 ** -12; sums in TFLite's order."""
    values = x.astype(_F32)
    count = _F32(x.shape[1])
    mean = np.cumsum(values, axis=1, dtype=_F32)[:, -1:] / count
    square = np.cumsum(values * values, axis=1, dtype=_F32)[:, -1:] / count
    variance = square - mean * mean
    flat = variance == 0
    inverse = np.where(flat, 1e4, 1 / np.sqrt(np.where(flat, _F32(1), variance))).astype(_F32)
    shift = bias.astype(_F32) * _F32(2.0**-10 * float(scale))
    found = (values - mean) * inverse * weights.astype(_F32) * scale + shift
    wide = found.astype(np.float64) * 2.0**12
    whole = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    return np.asarray(np.clip(whole, *_I16).astype(np.int64))


def _sigmoid(x: Array) -> Array:
    real = (x * 2.0**-12).astype(_F32)
    power = np.exp(-real.astype(np.float64)).astype(_F32)
    return _stored(_F32(1) / (_F32(1) + power))


def _tanh(x: Array, power: int) -> Array:
    real = (x * 2.0**power).astype(_F32)
    return _stored(np.tanh(real.astype(np.float64)).astype(_F32))


def _stored(x: Array) -> Array:
    """Of 16 bits, cut off towards 0."""
    return np.asarray(np.clip(np.trunc(x * _F32(1 << 15)), *_I16).astype(np.int64))
