"""The long short-term memory cell on whole numbers, as TFLite computes it: i8 in and out, gates of 16
bits, a cell state of i16 whose scale is a power of two.

    gate  = W x + R h + P * c            each product summed in 32 bits, brought to the gate's scale and
                                         added to what is there in 16 bits, clamped
    gate  = normalised, where it has a layer norm
    c'    = forget * c + input * tanh(content)
    hid   = sigmoid(output) * tanh(c')   as 8 bits, on a scale that the file gives beside the operands
    h'    = projection of hid, or hid

A gate's scale is 2 ** -12, but where there is a layer norm: then the file gives it too. Biases are i32;
without layer norms they are on the scale of the input's products.

Sources: TFLite's `kernels/lstm.cc` (PopulateQuantizedLstmParams8x8_16), `kernels/lstm_eval.cc`
(LstmStepInteger8x8_16) and `kernels/internal/reference/portable_tensor_utils.cc`.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.axes import present
from tflgpu.ops.fixed_functions import MOST_BITS, divide, inverse_root, logistic, look_up, tanh
from tflgpu.ops.fixed_point import Multiplier, multiply
from tflgpu.ops.integer_scales import Scales
from tflgpu.ops.lstm_cell import (
    BIASES,
    CELL_STATE,
    INPUT,
    LAYER_NORM,
    OUTPUT_STATE,
    PEEPHOLES,
    PROJECTION,
    PROJECTION_BIAS,
    RECURRENT,
    WEIGHTS,
)

_F32 = np.float32
_GATE_SCALE = _F32(2.0**-12)
_I16 = (-(1 << 15), (1 << 15) - 1)
_I8 = (-(1 << 7), (1 << 7) - 1)
#: Bits of a fraction between -1 and 1 that a gate's function gives.
_FRACTION = 15
#: Where a gate's peephole is, counted from the first; the new content has none.
PEEPHOLE = (0, 1, None, 2)
_INPUT_GATE, _FORGET, _CONTENT, _OUTPUT = range(4)
#: Of the operands, by position.
TYPES = {
    INPUT: DType.I8,
    **dict.fromkeys(range(WEIGHTS, PEEPHOLES), DType.I8),
    **dict.fromkeys(range(PEEPHOLES, BIASES), DType.I16),
    **dict.fromkeys(range(BIASES, PROJECTION), DType.I32),
    PROJECTION: DType.I8, PROJECTION_BIAS: DType.I32, OUTPUT_STATE: DType.I8, CELL_STATE: DType.I16,
    **dict.fromkeys(range(LAYER_NORM, LAYER_NORM + 4), DType.I16),
}  # fmt: skip


@attrs.frozen
class Norm:
    """Of a layer norm: its coefficients' scale, and what stands for a variance below 1."""

    scale: Multiplier
    least: int


@attrs.frozen
class Gate:
    """What brings products to a gate's scale: of the input, of the output state, and of the cells
    (None without a peephole)."""

    weights: Multiplier
    recurrent: Multiplier
    peephole: Multiplier | None = None
    norm: Norm | None = None


@attrs.frozen
class IntegerCell:
    """The arithmetic.

    Attributes:
        gates: Input, forget, content and output; None for an input gate that is 1 - forget.
        input_zero: The stored number that stands for 0 in the input.
        output_zero: The same in the output.
        bits: Bits before the point of the cell state.
        hidden: From 30 bits behind the point to the scale of the hidden values.
        hidden_zero: The stored number that stands for 0 in these.
        projection: From products to the output's scale; None without projection.
        cell_clip: Stored numbers to which the cell state is limited; 0 for no limit.
        projection_clip: The same of what is projected.
    """

    gates: tuple[Gate | None, Gate, Gate, Gate]
    input_zero: int
    output_zero: int
    bits: int
    hidden: Multiplier
    hidden_zero: int
    projection: Multiplier | None = None
    cell_clip: int = 0
    projection_clip: int = 0


def integer_cell(scales: Scales, cell_clip: float, projection_clip: float) -> IntegerCell:
    """The arithmetic of a node with such scales.

    Raises:
        UnsupportedError: TFLite's kernel would not compute it, or on numbers that nobody knows.
    """
    scales.check_types(TYPES)
    normalised = scales.has(LAYER_NORM + _FORGET)
    power = _power(scales, CELL_STATE)
    source, state = scales.of(INPUT), scales.of(OUTPUT_STATE)
    gates: list[Gate | None] = []
    for index in range(4):
        if not scales.has(WEIGHTS + index):
            gates.append(None)
            continue
        to = scales.told(index) if normalised else _GATE_SCALE
        peephole, norm, at = None, None, PEEPHOLE[index]
        if at is not None and scales.has(PEEPHOLES + at):
            factor = _F32(2.0**power * float(scales.of(PEEPHOLES + at)) / float(to))
            peephole = Multiplier.of(float(factor))
        if normalised:
            own = scales.of(LAYER_NORM + index)
            norm = Norm(Multiplier.of(float(own)), max(1, int(_F32(10000) * own)))
        gates.append(
            Gate(
                Multiplier.of(float(scales.of(WEIGHTS + index) * source / to)),
                Multiplier.of(float(scales.of(RECURRENT + index) * state / to)),
                peephole,
                norm,
            )
        )
    input_gate, forget, content, output = gates
    if forget is None or content is None or output is None:
        raise UnsupportedError(f"{scales.op}: weights of a gate are absent")
    hidden, projection = scales.told(4), None
    if scales.has(PROJECTION):
        projection = Multiplier.of(float(scales.of(PROJECTION) * hidden / state))
    return IntegerCell(
        (input_gate, forget, content, output),
        scales.zero(INPUT),
        scales.zero(OUTPUT_STATE),
        _FRACTION + power,
        Multiplier.of(float(_F32(2.0**-15 / float(hidden) * 2.0**-15))),
        scales.told_zero(4),
        projection,
        _clip(cell_clip, _F32(2.0**power), _I16),
        _clip(projection_clip, scales.result, _I8),
    )


def _power(scales: Scales, index: int) -> int:
    """The scale of the cell state as a power of two."""
    found = float(scales.of(index))
    power = round(float(np.log2(found)))
    if abs(float(np.log2(found)) - power) >= 1e-3 or not 0 <= _FRACTION + power <= MOST_BITS:
        raise UnsupportedError(
            f"{scales.op}: the cell state's scale is {found}, not a power of two from 2**-15 to 2**-9"
        )
    return power


def _clip(limit: float, scale: np.float32, bounds: tuple[int, int]) -> int:
    return int(np.clip(_F32(limit) / scale, *bounds)) if limit > 0 else 0


class IntegerRunner:
    """A cell with its weights, stepped through time."""

    def __init__(
        self, cell: IntegerCell, arrays: Sequence[Array | None], *, together: bool
    ) -> None:
        """``together`` says that TFLite's kernel steps all rows of a batch at once."""
        self._cell, self._together = cell, together
        self._arrays = [None if a is None else a.astype(np.int64) for a in arrays]

    def step(self, x: Array, hidden: Array, cells: Array) -> tuple[Array, Array]:
        """New output state i8 [batch, outputs] and cell state i16 [batch, cells], from the input i8
        [batch, inputs] and the old ones."""
        cell, (x, hidden, cells) = self._cell, (a.astype(np.int64) for a in (x, hidden, cells))
        forget = look_up(logistic(), self._gate(_FORGET, x, hidden, cells))
        content = look_up(tanh(3), self._gate(_CONTENT, x, hidden, cells))
        if cell.gates[_INPUT_GATE] is None:
            admit = _I16[1] - forget
        else:
            admit = look_up(logistic(), self._gate(_INPUT_GATE, x, hidden, cells))
        # A fraction of 30 bits to the cell's scale.
        new = divide(forget * cells, _FRACTION) + divide(admit * content, _FRACTION + cell.bits)
        new = np.clip(new, *_I16)
        if cell.cell_clip > 0:
            new = np.clip(new, -cell.cell_clip, cell.cell_clip)
        show = look_up(logistic(), self._gate(_OUTPUT, x, hidden, new))
        value = show * look_up(tanh(cell.bits), new)
        output = np.clip(_times(value, cell.hidden) + cell.hidden_zero, *_I8)
        if cell.projection is not None:
            weights = present(self._arrays[PROJECTION])
            sums = (output - cell.hidden_zero) @ weights.T
            bias = self._arrays[PROJECTION_BIAS]
            sums = sums if bias is None else sums + bias
            output = np.clip(_times(sums, cell.projection) + cell.output_zero, *_I8)
            if cell.projection_clip > 0:
                output = np.clip(output, -cell.projection_clip, cell.projection_clip)
        return output.astype(np.int8), new.astype(np.int16)

    def _gate(self, index: int, x: Array, hidden: Array, cells: Array) -> Array:
        gate, cell = self._cell.gates[index], self._cell
        assert gate is not None
        bias = present(self._arrays[BIASES + index])
        sums = (x - cell.input_zero) @ present(self._arrays[WEIGHTS + index]).T
        sums = sums if gate.norm is not None else sums + bias
        total = np.clip(_times(sums, gate.weights), *_I16)
        sums = (hidden - cell.output_zero) @ present(self._arrays[RECURRENT + index]).T
        total = np.clip(_times(sums, gate.recurrent) + total, *_I16)
        at = PEEPHOLE[index]
        if gate.peephole is not None and at is not None:
            peephole = present(self._arrays[PEEPHOLES + at])
            total = self._see(total, cells, peephole, hidden.shape[1], gate.peephole)
        if gate.norm is None:
            return total
        return normalised(total, present(self._arrays[LAYER_NORM + index]), bias, gate.norm)

    def _see(
        self, total: Array, cells: Array, weights: Array, outputs: int, by: Multiplier
    ) -> Array:
        """A gate that sees the cells. TFLite's kernel counts them by the outputs: with a projection it
        goes over the first cells only, of all rows that it steps together one after another. (Where
        there are more outputs than cells it leaves its memory; all cells are seen here.)"""
        outputs = min(outputs, cells.shape[1])
        rows, size = (1, len(cells)) if self._together else (len(cells), 1)
        seen = outputs * size
        flat, old = total.reshape(rows, -1).copy(), cells.reshape(rows, -1)[:, :seen]
        products = old * np.tile(weights[:outputs], size)
        flat[:, :seen] = np.clip(_times(products, by) + flat[:, :seen], *_I16)
        return np.asarray(flat.reshape(total.shape))


def _times(x: Array, by: Multiplier) -> Array:
    return multiply(x, by.value, by.left, by.right)


def normalised(x: Array, weights: Array, bias: Array, norm: Norm) -> Array:
    """A gate [batch, cells] after its layer norm, with 10 bits more in between."""
    cells = x.shape[1]
    found = np.empty_like(x)
    for row, out in zip(x, found, strict=True):
        mean = _truncated(int(row.sum()) * 1024, cells)
        spread = int((row * row).sum()) * ((1 << 20) // cells) - mean * mean
        variance = _truncated(spread, 1 << 20)
        inverse = inverse_root(norm.least if variance < 1 else variance)
        value = _times(1024 * row - mean, inverse) * weights + bias
        value = (np.abs(value) + 512) // 1024 * np.sign(value)
        scale = Multiplier(norm.scale.value, norm.scale.shift + 12)
        out[:] = np.clip(_times(value, scale), *_I16)
    return found


def _truncated(number: int, by: int) -> int:
    """Divided as C divides: towards zero."""
    return number // by if number >= 0 else -(-number // by)
