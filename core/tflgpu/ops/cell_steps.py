"""A step of a recurrent cell, on real numbers or on stored ones.

    i, f, o = sigmoid(norm(W x + R h + P * c) + b)      input, forget and output gate
    g       = act(norm(W x + R h) + b)                  new content
    c'      = f * c + i * g                             clipped to the cell clip
    h'      = projection(o * act(c'))                   clipped to the projection clip

P (peepholes; the output gate sees c'), norm (layer normalisation) and the projection may be absent.
Without input gate weights the gates are coupled: i = 1 - f. A cell of one gate has no c: it is

    h'      = act(W x + R h + b)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import Activation
from tflgpu.ops.cell_operands import (
    FORGET_GATE,
    INPUT_GATE,
    NEW_CONTENT,
    OUTPUT_GATE,
    CellWeights,
)
from tflgpu.ops.fixed_functions import (
    divide,
    inverse_root,
    logistic,
    logistic_by_f32,
    look_up,
    tanh,
    tanh_by_f32,
)
from tflgpu.ops.fixed_point import I8, I16, Multiplier, clamped, times
from tflgpu.ops.quantize_on_the_fly import rounded
from tflgpu.ops.quantized import Rounding
from tflgpu.ops.stored_cell import GateNorm, GateProduct, StoredCell
from tflgpu.values import frozen

_NORM_EPSILON = 1e-8


@frozen
class Cell:
    """Options of a cell on real numbers; a clip of 0 clips nothing.

    ``rounding`` is that of floats that meet 8-bit weights; where ``rounds``, the hidden state and
    what is projected are rounded so before they are multiplied, a row at a time.
    """

    activation: Activation
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    rounding: Rounding = Rounding.SYMMETRIC
    rounds: bool = False


class CellStep:
    """A cell on real numbers with its weights, in f32, stepped through time."""

    #: What a gate is that lets everything through.
    one: int = 1

    def __init__(self, cell: Any, weights: CellWeights) -> None:
        self.cell, self.weights = cell, weights

    def step(self, x: Array, states: Sequence[Array]) -> list[Array]:
        """New output state [batch, outputs] and cell state [batch, cells], from the input [batch,
        inputs] and the old ones; of a cell of one gate only the first."""
        hidden = self.seen(states[0])
        if len(states) == 1:
            return [self.content(self.gate(0, x, hidden, hidden))]
        cells = states[1]
        forget = self.sigmoid(self.gate(FORGET_GATE, x, hidden, cells))
        content = self.content(self.gate(NEW_CONTENT, x, hidden, cells))
        if self.coupled:
            admit = self.one - forget
        else:
            admit = self.sigmoid(self.gate(INPUT_GATE, x, hidden, cells))
        new = _clipped(self.renewed(forget, cells, admit, content), self.cell.cell_clip)
        output = self.shown(self.sigmoid(self.gate(OUTPUT_GATE, x, hidden, new)), new)
        if self.weights.projection is not None:
            output = _clipped(self.projected(output), self.cell.projection_clip)
        return [output, new]

    @property
    def coupled(self) -> bool:
        """Whether the input gate is what the forget gate leaves."""
        return self.weights.weights[INPUT_GATE] is None

    def seen(self, rows: Array) -> Array:
        """A hidden state as weights meet it."""
        return rounded(rows, (1,), self.cell.rounding) if self.cell.rounds else rows

    def gate(self, index: int, x: Array, hidden: Array, cells: Array) -> Array:
        """A gate before its function."""
        own = self.weights
        recurrent, peephole, norm = own.recurrent[index], own.peepholes[index], own.norms[index]
        assert recurrent is not None
        back = hidden * recurrent if recurrent.ndim == 1 else hidden @ recurrent.T
        sums = np.asarray(x @ present(own.weights[index]).T + back)
        if peephole is not None:
            sums += cells * peephole
        if norm is not None:
            centred = sums - sums.mean(axis=1, keepdims=True)
            variance = np.mean(centred * centred, axis=1, keepdims=True)
            sums = centred / np.sqrt(variance + np.float32(_NORM_EPSILON)) * norm
        return sums + present(own.biases[index])

    def sigmoid(self, gate: Array) -> Array:
        """What a gate lets through."""
        return sigmoid(gate)

    def content(self, gate: Array) -> Array:
        """The new content."""
        return apply_activation(self.cell.activation, gate)

    def renewed(self, forget: Array, cells: Array, admit: Array, content: Array) -> Array:
        """The new cells."""
        return np.asarray(forget * cells + admit * content)

    def shown(self, show: Array, cells: Array) -> Array:
        """What the output gate lets out of the cells."""
        return show * apply_activation(self.cell.activation, cells)

    def projected(self, output: Array) -> Array:
        """The outputs of a cell with a projection."""
        output = self.seen(output) @ present(self.weights.projection).T
        bias = self.weights.projection_bias
        return output if bias is None else output + bias


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)), x.dtype)


def _clipped(x: Array, limit: float) -> Array:
    return np.clip(x, -limit, limit) if limit > 0 else x


class StoredCellStep(CellStep):
    """A cell on stored numbers, whose arrays are of 64 bits."""

    one = I16[1]
    cell: StoredCell

    def __init__(self, cell: StoredCell, weights: CellWeights, *, together: bool) -> None:
        """``together`` says that TFLite's kernel steps all rows of a batch at once."""
        super().__init__(cell, weights)
        self._together = together
        if cell.hidden is None:
            functions = logistic_by_f32(), tanh_by_f32(3), tanh_by_f32(cell.bits)
        else:
            functions = logistic(), tanh(3), tanh(cell.bits)
        self._logistic, self._tanh, self._tanh_of_cells = functions

    @property
    def coupled(self) -> bool:
        """Whether the input gate is what the forget gate leaves."""
        return self.cell.gates[INPUT_GATE] is None

    def seen(self, rows: Array) -> Array:
        """The hidden state, as it is."""
        return rows

    def gate(self, index: int, x: Array, hidden: Array, cells: Array) -> Array:
        """A gate before its function, of 16 bits."""
        gate, own = self.cell.gates[index], self.weights
        assert gate is not None
        bias = present(own.biases[index])
        sums = (x - self.cell.input_zero) @ present(own.weights[index]).T
        total = _brought(sums if gate.norm else sums + bias, gate.weights)
        if gate.weights.to_gate is None:
            total = clamped(total, I16)
        if gate.recurrent is not None:
            sums = (hidden - self.cell.output_zero) @ present(own.recurrent[index]).T
            total = _brought(sums, gate.recurrent) + total
        total = clamped(total, I16)
        if gate.peephole is not None:
            peephole = present(own.peepholes[index])
            total = self._with_cells(total, cells, peephole, hidden.shape[1], gate.peephole)
        if gate.norm is None:
            return total
        normalised = _normalised_by_f32 if self.cell.hidden is None else _normalised
        return normalised(total, present(own.norms[index]), bias, gate.norm)

    def _with_cells(
        self, total: Array, cells: Array, weights: Array, outputs: int, by: Multiplier
    ) -> Array:
        """A gate that sees the cells. TFLite's kernel counts them by the outputs: with a projection
        it goes over the first cells only, of all rows that it steps together one after another.
        (Where there are more outputs than cells it leaves its memory; all cells are seen here.)"""
        outputs = min(outputs, cells.shape[1])
        rows, size = (1, len(cells)) if self._together else (len(cells), 1)
        seen = outputs * size
        flat, old = total.reshape(rows, -1).copy(), cells.reshape(rows, -1)[:, :seen]
        products = old * np.tile(weights[:outputs], size)
        flat[:, :seen] = clamped(times(products, by) + flat[:, :seen], I16)
        return np.asarray(flat.reshape(total.shape))

    def sigmoid(self, gate: Array) -> Array:
        """What a gate lets through, a fraction of 15 bits."""
        return look_up(self._logistic, gate)

    def content(self, gate: Array) -> Array:
        """The new content, a fraction of 15 bits."""
        return look_up(self._tanh, gate)

    def renewed(self, forget: Array, cells: Array, admit: Array, content: Array) -> Array:
        """The new cells: a fraction of 30 bits brought to their scale."""
        new = divide(forget * cells, 15) + divide(admit * content, 15 + self.cell.bits)
        return clamped(new, I16)

    def shown(self, show: Array, cells: Array) -> Array:
        """What the output gate lets out of the cells: 8 bits, or 16 in a cell of 8-bit products."""
        value = show * look_up(self._tanh_of_cells, cells)
        if self.cell.hidden is None:
            return divide(value, 15)
        return clamped(times(value, self.cell.hidden) + self.cell.hidden_zero, I8)

    def projected(self, output: Array) -> Array:
        """The outputs of a cell with a projection."""
        by, bias = self.cell.projection, self.weights.projection_bias
        assert by is not None
        sums = (output - self.cell.hidden_zero) @ present(self.weights.projection).T
        sums = sums if bias is None else sums + bias
        made = _times_wide(sums, by) if self.cell.hidden is None else times(sums, by)
        return clamped(made + self.cell.output_zero, I8)


def _brought(sums: Array, by: GateProduct) -> Array:
    """Sums of a product on the gate's scale."""
    made = times(sums, by.scale)
    if by.to_gate is None:
        return made
    return times(clamped(made + by.zero, I8) - by.zero, by.to_gate)


def _times_wide(x: Array, by: Multiplier) -> Array:
    """A sum of 64 bits, for which TFLite has a multiplier of 16."""
    value = min((by.value + (1 << 15)) >> 16, (1 << 15) - 1)
    shift = 15 - by.shift
    return np.asarray((x * value + (1 << (shift - 1))) >> shift)


def _normalised(x: Array, weights: Array, bias: Array, norm: GateNorm) -> Array:
    """A gate [batch, cells] after its layer norm, with 10 bits more in between."""
    cells = x.shape[1]
    found = np.empty_like(x)
    for row, out in zip(x, found, strict=True):
        mean = _truncated(int(row.sum()) * 1024, cells)
        spread = int((row * row).sum()) * ((1 << 20) // cells) - mean * mean
        variance = _truncated(spread, 1 << 20)
        inverse = inverse_root(norm.least if variance < 1 else variance)
        value = times(1024 * row - mean, inverse) * weights + bias
        value = (np.abs(value) + 512) // 1024 * np.sign(value)
        scale = Multiplier(norm.scale.value, norm.scale.shift + 12)
        out[:] = clamped(times(value, scale), I16)
    return found


def _truncated(number: int, by: int) -> int:
    """Divided as C divides: towards zero."""
    return number // by if number >= 0 else -(-number // by)


def _normalised_by_f32(x: Array, weights: Array, bias: Array, norm: GateNorm) -> Array:
    """A gate [batch, cells] after its layer norm, on the scale 2 ** -12; sums in TFLite's order."""
    scale = np.float32(norm.scale.value * 2.0 ** (norm.scale.shift - 31))
    values = x.astype(np.float32)
    count = np.float32(x.shape[1])
    mean = np.cumsum(values, axis=1, dtype=np.float32)[:, -1:] / count
    square = np.cumsum(values * values, axis=1, dtype=np.float32)[:, -1:] / count
    variance = square - mean * mean
    flat = variance == 0
    inverse = np.where(flat, 1e4, 1 / np.sqrt(np.where(flat, np.float32(1), variance)))
    shift = bias.astype(np.float32) * np.float32(2.0**-10 * float(scale))
    found = (values - mean) * inverse.astype(np.float32) * weights.astype(
        np.float32
    ) * scale + shift
    wide = found.astype(np.float64) * 2.0**12
    whole = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
    return np.asarray(clamped(whole, I16).astype(np.int64))
