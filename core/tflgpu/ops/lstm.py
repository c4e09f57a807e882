"""LSTM, versions 1-5, and UNIDIRECTIONAL_SEQUENCE_LSTM, versions 1-4, of floats and of whole numbers.

LSTM has two kernels that share nothing but the name. The full one, and the sequence op, keep
their output and cell states in variables (operands 18 and 19) between runs. The basic one has
five operands (input, previous output, weights, biases, previous cell state) and four results
(output, cell state, and two intermediates), and keeps nothing.

On whole numbers `ops/integer_cell.py` is the cell, and `ops/integer_basic_lstm.py` the basic kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Union

import attrs
import numpy as np

from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import apply_activation, computable_activation
from tflgpu.ops.axes import present
from tflgpu.ops.base import Accuracy, Activation, Fields, OpDef, Operand
from tflgpu.ops.facets import Hybrid, Work
from tflgpu.ops.integer_basic_lstm import (
    BASIC_TYPES,
    IntegerBasicLstm,
    integer_basic_lstm,
    step_on_stored,
)
from tflgpu.ops.integer_cell import IntegerCell, IntegerRunner, integer_cell
from tflgpu.ops.integer_cell_8 import INTERMEDIATES, IntegerCell8, Runner8, integer_cell_8
from tflgpu.ops.integer_scales import Scales
from tflgpu.ops.lstm_cell import (
    CELL_STATE,
    OUTPUT_STATE,
    Cell,
    CellRunner,
    Sizes,
    check_operands,
    hybrid_cell,
    sigmoid,
)
from tflgpu.ops.lstm_samples import basic_samples, full_samples, sequence_samples
from tflgpu.ops.products import PRODUCT_TYPES, floats, needed, take
from tflgpu.ops.quantize_on_the_fly import rounding_of

_BASIC_NAMES = ("input", "previous output", "weights", "biases", "previous cell state")


@attrs.frozen
class BasicLstm:
    """The basic kernel; its activation is always TANH and nothing is clipped."""


#: The basic kernel, on real numbers or on stored ones.
AnyBasic = Union[BasicLstm, IntegerBasicLstm]
#: A cell on real numbers, or on stored ones.
AnyCell = Union[Cell, IntegerCell, IntegerCell8]


@attrs.frozen
class SequenceLstm:
    """A cell run along time, which is the first dimension where ``time_major``, else the
    second."""

    cell: AnyCell
    time_major: bool


def _cell(fields: Fields) -> AnyCell:
    for name in ("cell_clip", "proj_clip"):
        if not fields.number(name) >= 0:
            raise ModelError(f"{fields.op}: option {name} is {fields.number(name)}, must be >= 0")
    clips = fields.number("cell_clip"), fields.number("proj_clip")
    scales = Scales.of_fields(fields)
    if not scales.real:
        eight = fields.op == "LSTM" and len(scales.intermediates) == INTERMEDIATES
        return (integer_cell_8 if eight else integer_cell)(scales, *clips)
    return Cell(computable_activation(fields), *clips, rounding_of(fields))


def _parse_lstm(fields: Fields) -> AnyBasic | AnyCell:
    kind = fields.integer("kernel_type")
    if kind == 0:
        return _cell(fields)
    if kind != 1:
        raise ModelError(f"LSTM: unknown kernel type {kind}")
    if fields.activation() is not Activation.TANH:
        raise ModelError(
            f"LSTM: the basic kernel has TANH as its activation, not {fields.activation().name}"
        )
    if fields.number("cell_clip") != 0 or fields.number("proj_clip") != 0:
        raise ModelError("LSTM: the basic kernel clips nothing")
    scales = Scales.of_fields(fields)
    return BasicLstm() if scales.real else integer_basic_lstm(scales)


def _parse_sequence(fields: Fields) -> SequenceLstm:
    return SequenceLstm(_cell(fields), fields.flag("time_major"))


def _infer_lstm(
    attributes: AnyBasic | AnyCell, operands: Sequence[Operand | None]
) -> list[TensorSpec]:
    if isinstance(attributes, (BasicLstm, IntegerBasicLstm)):
        return _infer_basic(attributes, operands)
    source = needed("LSTM", operands[0] if operands else None, "input", 2)
    stored = not isinstance(attributes, Cell)
    sizes = check_operands("LSTM", operands, source.shape[0], source.shape[1], stored=stored)
    return [TensorSpec((sizes.batch, sizes.outputs), source.dtype)]


def _infer_basic(attributes: AnyBasic, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    stored = isinstance(attributes, IntegerBasicLstm)
    given = take("LSTM", operands, _BASIC_NAMES)
    types = BASIC_TYPES if stored else PRODUCT_TYPES
    source, hidden, weights, biases, cells = (
        needed("LSTM", operand, what, rank, types=types)
        for operand, what, rank in zip(given, _BASIC_NAMES, (2, 2, 2, 1, 2), strict=True)
    )
    batch, inputs = source.shape
    units = hidden.shape[1]
    wanted = {
        "previous output": (hidden, (batch, units)),
        "weights": (weights, (4 * units, inputs + units)),
        "biases": (biases, (4 * units,)),
        "previous cell state": (cells, (batch, units)),
    }
    for what, (operand, shape) in wanted.items():
        if operand.shape != shape:
            raise ModelError(
                f"LSTM: the {what} of shape {list(operand.shape)} should be {list(shape)}"
            )
    shapes = ((batch, units), (batch, units), (batch, inputs + units), (batch, 4 * units))
    whole = (DType.U8, DType.I16, DType.U8, DType.I16)
    dtypes = whole if stored else (source.dtype,) * 4
    return [TensorSpec(s, dtype) for s, dtype in zip(shapes, dtypes, strict=True)]


def _sequence_sizes(
    attributes: SequenceLstm, operands: Sequence[Operand | None]
) -> tuple[Operand, Sizes]:
    op = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    source = needed(op, operands[0] if operands else None, "input", 3)
    batch = source.shape[1 if attributes.time_major else 0]
    stored = not isinstance(attributes.cell, Cell)
    sizes = check_operands(op, operands, batch, source.shape[2], stored=stored, diagonals=True)
    return source, sizes


def _infer_sequence(
    attributes: SequenceLstm, operands: Sequence[Operand | None]
) -> list[TensorSpec]:
    source, sizes = _sequence_sizes(attributes, operands)
    return [TensorSpec((*source.shape[:2], sizes.outputs), source.dtype)]


def _reference_lstm(attributes: AnyBasic | AnyCell, arrays: Sequence[Array | None]) -> list[Array]:
    if isinstance(attributes, BasicLstm):
        return _reference_basic(arrays)
    if isinstance(attributes, IntegerBasicLstm):
        return step_on_stored(attributes, [present(array) for array in arrays])
    outputs, states = _run("LSTM", attributes, present(arrays[0])[None], arrays)
    return [outputs[0], *states]


def _reference_sequence(attributes: SequenceLstm, arrays: Sequence[Array | None]) -> list[Array]:
    op = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    source = present(arrays[0])
    steps = source if attributes.time_major else source.swapaxes(0, 1)
    together = attributes.time_major
    outputs, states = _run(op, attributes.cell, steps, arrays, together=together)
    outputs = outputs if attributes.time_major else outputs.swapaxes(0, 1)
    return [np.ascontiguousarray(outputs), *states]


def _run(
    op: str, cell: AnyCell, steps: Array, arrays: Sequence[Array | None], *, together: bool = True
) -> tuple[Array, list[Array]]:
    """Outputs [time, batch, outputs] of inputs [time, batch, inputs], and the new states;
    ``together`` as `IntegerRunner` takes it."""
    olds = [present(arrays[OUTPUT_STATE]), present(arrays[CELL_STATE])]
    runner: CellRunner | IntegerRunner | Runner8
    if isinstance(cell, IntegerCell8):
        runner, given = Runner8(cell, arrays), olds
    elif isinstance(cell, IntegerCell):
        runner, given = IntegerRunner(cell, arrays, together=together), olds
    else:
        runner, given = CellRunner(op, cell, arrays), [floats(op, old) for old in olds]
    hidden, cells = (old.reshape(steps.shape[1], -1) for old in given)
    outputs = np.empty((*steps.shape[:2], hidden.shape[1]), steps.dtype)
    for time, x in enumerate(steps):
        x = floats(op, x) if isinstance(cell, Cell) else x  # noqa: PLW2901
        hidden, cells = runner.step(x, hidden, cells)
        outputs[time] = hidden
    states = [
        new.reshape(old.shape).astype(old.dtype)
        for new, old in zip((hidden, cells), olds, strict=True)
    ]
    return outputs, states


def _reference_basic(arrays: Sequence[Array | None]) -> list[Array]:
    source, hidden, weights, biases, cells = (floats("LSTM", array) for array in arrays)
    joined = np.concatenate([source, hidden], axis=1)
    gates = joined @ weights.T + biases
    admit, content, forget, show = np.split(gates, 4, axis=1)
    new = sigmoid(admit) * np.tanh(content) + sigmoid(forget) * cells
    output = sigmoid(show) * apply_activation(Activation.TANH, new)
    given = present(arrays[0])
    return [a.astype(given.dtype, copy=False) for a in (output, new, joined, gates)]


def _hybrid(node: Node) -> Hybrid:
    found = node.attrs
    if isinstance(found, BasicLstm):
        return Hybrid(())  # TFLite's kernel has no hybrid form
    if isinstance(found, Cell):
        return hybrid_cell(node, found, lambda cell: cell)
    assert isinstance(found.cell, Cell)  # an integer cell has no float data
    return hybrid_cell(node, found.cell, lambda cell: attrs.evolve(found, cell=cell))


def _on_stored(attributes: object) -> bool:
    """Whether it is an integer LSTM."""
    cell = attributes.cell if isinstance(attributes, SequenceLstm) else attributes
    return isinstance(cell, (IntegerCell, IntegerCell8, IntegerBasicLstm))


def _states(attributes: AnyBasic | AnyCell | SequenceLstm) -> tuple[int, ...]:
    """The basic kernel is handed its state from outside, and hands the new one out."""
    basic = isinstance(attributes, (BasicLstm, IntegerBasicLstm))
    return () if basic else (OUTPUT_STATE, CELL_STATE)


def _work(node: Node) -> Work:
    """Every weight of rank 2 is used once a batch and time step."""
    weights = sum(v.elements for v in node.inputs[1:] if v is not None and len(v.shape) == 2)
    return Work.of(node, 2 * weights * math.prod(node.input(0).shape[:-1]))


OPS = (
    OpDef(
        "LSTM", _parse_lstm, _infer_lstm, _reference_lstm,
        lambda: [*basic_samples(), *full_samples()],
        accuracy=Accuracy.ACCUMULATE, max_version=5, stateful=True,
        states=_states, work=_work, hybrid=_hybrid, stored_where=_on_stored,
    ),
    OpDef(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", _parse_sequence, _infer_sequence, _reference_sequence,
        sequence_samples, accuracy=Accuracy.ACCUMULATE, max_version=4, stateful=True,
        states=_states, work=_work, hybrid=_hybrid, stored_where=_on_stored,
    ),
)  # fmt: skip
