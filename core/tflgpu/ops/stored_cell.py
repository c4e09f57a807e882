"""The arithmetic of a long short-term memory cell on stored numbers, as TFLite computes it: i8 in
and out, gates of 16 bits, a cell state of i16 whose scale is a power of two.

    gate  = W x + R h + P * c            each product summed in 32 bits, brought to the gate's
                                         scale, added to what is there in 16 bits, and clamped
    gate  = normalised, where it has a layer norm
    c'    = forget * c + input * tanh(content)
    hid   = sigmoid(output) * tanh(c')   as 8 bits, on the scale of an intermediate in the file
    h'    = projection of hid, or hid

A gate's scale is 2 ** -12, but where there is a layer norm: then the file gives it too. Biases are
i32; without layer norms they are on the scale of the input's products.

A file with twelve intermediates means another kernel, of 8-bit products: each product is brought to
a scale of its own and clamped to 8 bits before it goes to the gate's scale, hid stays 16 bits wide,
and functions and layer norms are computed in f32. It has neither peepholes nor weights of an input
gate, and always layer norms and a projection with a bias: TFLite's kernel reads these without
looking whether they are there. It leaves the output state's product out of the output gate: its
multiplier to the gate's scale is never set. What is the same bit for bit but for tanh, which is the
C library's there: of its 65536 results some dozen are a step off.

Sources: TFLite's `kernels/lstm.cc` (PopulateQuantizedLstmParams8x8_16,
PopulateQuantizedLstmParams8x8_8), `kernels/lstm_eval.cc` (LstmStepInteger8x8_16,
LstmStepInteger8x8_8) and `kernels/internal/reference/portable_tensor_utils.cc`.
"""

from __future__ import annotations

import numpy as np

from tflgpu.errors import UnsupportedError
from tflgpu.ir.dtypes import DType
from tflgpu.ops.cell_operands import FORGET_GATE, INPUT_GATE, LSTM, OUTPUT_GATE, PEEPHOLE_GATES
from tflgpu.ops.fixed_functions import MOST_BITS
from tflgpu.ops.fixed_point import I8, I16, Multiplier, Scales, TensorScale
from tflgpu.values import frozen

#: Intermediates of a cell of 8-bit products: by gate the sum's, the input's, the output state's.
INTERMEDIATES = 12
_F32 = np.float32
_GATE_SCALE = _F32(2.0**-12)
#: Bits of a fraction between -1 and 1 that a gate's function gives.
_FRACTION = 15
_TYPES = dict(
    sorted(
        {
            **dict.fromkeys(
                (0, *LSTM.weights, *LSTM.recurrent, LSTM.projection[0], LSTM.states[0]), DType.I8
            ),
            **dict.fromkeys((*LSTM.peepholes, *LSTM.norms, LSTM.states[1]), DType.I16),
            **dict.fromkeys((*LSTM.biases, LSTM.projection[1]), DType.I32),
        }.items()
    )
)


@frozen
class GateProduct:
    """What brings the sums of a product to a gate's scale, or to 8 bits: then ``zero`` stands for 0
    in them, and ``to_gate`` brings those to the gate's scale."""

    scale: Multiplier
    zero: int = 0
    to_gate: Multiplier | None = None


@frozen
class GateNorm:
    """A layer norm: its coefficients' scale, and what stands for a variance below 1."""

    scale: Multiplier
    least: int


@frozen
class StoredGate:
    """Products of the input, of the output state and of the cells, and a layer norm; None where
    there is none."""

    weights: GateProduct
    recurrent: GateProduct | None
    peephole: Multiplier | None
    norm: GateNorm | None


@frozen
class StoredCell:
    """The arithmetic.

    Attributes:
        gates: Input, forget, content and output; None for an input gate that is 1 - forget.
        input_zero: The stored number that stands for 0 in the input.
        output_zero: The same in the output.
        bits: Bits before the point of the cell state.
        hidden: From 30 bits behind the point to the scale of the hidden values; None in a cell of
            8-bit products, where these keep 15 bits.
        hidden_zero: The stored number that stands for 0 in these.
        projection: From products to the output's scale; None without projection.
        cell_clip: Stored numbers to which the cell state is limited; 0 for no limit.
        projection_clip: The same of what is projected.
    """

    gates: tuple[StoredGate | None, ...]
    input_zero: int
    output_zero: int
    bits: int
    hidden: Multiplier | None
    hidden_zero: int
    projection: Multiplier | None
    cell_clip: int
    projection_clip: int


def stored_cell(
    scales: Scales, cell_clip: float, projection_clip: float, *, eight: bool
) -> StoredCell:
    """The arithmetic of a node with such scales, whose clips are real numbers; ``eight`` says that
    its products are of 8 bits.

    Raises:
        UnsupportedError: TFLite's kernel would not compute it, or on numbers that are not known.
    """
    power = _power_of_eight_bits(scales) if eight else _power(scales)
    source, state = scales.of(0), scales.of(LSTM.states[0])
    gates = tuple(
        _gate(scales, index, 2.0**power, eight=eight)
        if (index != INPUT_GATE if eight else scales.has(LSTM.weights[index]))
        else None
        for index in range(4)
    )
    if None in gates[FORGET_GATE:]:
        raise UnsupportedError(f"{scales.op}: weights of a gate are absent")
    hidden, projection, made = None, None, TensorScale(_F32(2.0**-_FRACTION), 0)
    if not eight:
        made = scales.intermediate(4)
        hidden = Multiplier.of(float(_F32(2.0**-15 / float(made.step) * 2.0**-15)))
    if scales.has(LSTM.projection[0]):
        matrix = scales.of(LSTM.projection[0])
        projection = Multiplier.of(float(matrix.step * made.step / state.step))
    if eight and cell_clip >= 1:
        cell_clip = 0  # TFLite's kernel leaves such a limit out
    result = _F32(1) if eight and projection_clip == 0 else scales.result.step
    return StoredCell(
        gates,
        source.zero,
        state.zero,
        _FRACTION + power,
        hidden,
        made.zero,
        projection,
        _stored_clip(cell_clip, _F32(2.0**power), I16[1]),
        _stored_clip(projection_clip, result, np.inf if eight else I8[1]),
    )


def _gate(scales: Scales, index: int, cells: float, *, eight: bool) -> StoredGate:
    """A gate that has weights; ``cells`` is the scale of the cell state."""
    total, peephole, norm = _GATE_SCALE, None, None
    if scales.has(LSTM.norms[FORGET_GATE]):
        total = scales.intermediate(3 * index if eight else index).step
        own = scales.of(LSTM.norms[index]).step
        norm = GateNorm(Multiplier.of(float(own)), max(1, int(_F32(10000) * own)))
    if index in PEEPHOLE_GATES and not eight:
        at = LSTM.peepholes[PEEPHOLE_GATES.index(index)]
        if scales.has(at):
            factor = _F32(cells * float(scales.of(at).step) / float(total))
            peephole = Multiplier.of(float(factor))

    def product(weights: int, operand: int, told: int) -> GateProduct:
        step = scales.of(weights).step * scales.of(operand).step
        if not eight:
            return GateProduct(Multiplier.of(float(step / total)))
        own = scales.intermediate(told)
        to_gate = Multiplier.of(float(own.step / total))
        return GateProduct(Multiplier.of(float(step / own.step)), own.zero, to_gate)

    weights = product(LSTM.weights[index], 0, 3 * index + 1)
    recurrent = product(LSTM.recurrent[index], LSTM.states[0], 3 * index + 2)
    left_out = eight and index == OUTPUT_GATE
    return StoredGate(weights, None if left_out else recurrent, peephole, norm)


def _power(scales: Scales) -> int:
    """The scale of the cell state, a power of two."""
    scales.check_types(_TYPES)
    found = float(scales.of(LSTM.states[1]).step)
    power = round(float(np.log2(found)))
    if abs(float(np.log2(found)) - power) >= 1e-3 or not 0 <= _FRACTION + power <= MOST_BITS:
        raise UnsupportedError(
            f"{scales.op}: the cell state's scale is {found}, not a power of two from 2**-15 to "
            "2**-9"
        )
    return power


def _power_of_eight_bits(scales: Scales) -> int:
    """The same of a cell of 8-bit products, which has what its kernel reads."""
    if not all(scales.has(index) for index in (*LSTM.norms[FORGET_GATE:], *LSTM.projection)):
        raise UnsupportedError(
            f"{scales.op} of i8 with {INTERMEDIATES} intermediates has layer norms and a "
            "projection with a bias, of which one is absent"
        )
    scales.check_types({i: t for i, t in _TYPES.items() if i not in LSTM.peepholes})
    found = scales.of(LSTM.states[1]).step
    if float(found) != 2.0**-_FRACTION:
        raise UnsupportedError(f"{scales.op} of i8: the cell state's scale is {found}, not 2**-15")
    return -_FRACTION


def _stored_clip(limit: float, step: np.float32, most: float) -> int:
    return int(min(_F32(limit) / step, most)) if limit > 0 else 0
