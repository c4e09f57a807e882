"""LSTM, versions 1-5, and UNIDIRECTIONAL_SEQUENCE_LSTM, versions 1-4, of floats and of whole
numbers; BIDIRECTIONAL_SEQUENCE_LSTM, versions 1-3, of floats.

LSTM has two kernels that share nothing but the name. The full one is the cell of the sequence ops:
it keeps its output and cell states in variables between runs. The basic one (`ops/basic_lstm.py`)
keeps nothing. Cells of two directions have no layer normalisation.
"""

from __future__ import annotations

from functools import partial

import attrs

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.base import Arrays, Fields, Operand, Operands, Quantized, Variables
from tflgpu.ops.basic_lstm import BasicLstm, basic_lstm, infer_basic, run_basic
from tflgpu.ops.cell_operands import (
    FORGET_GATE,
    INPUT_GATE,
    LSTM,
    CellOperands,
    lstm_operands,
    positions,
)
from tflgpu.ops.cell_steps import Cell
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.fixed_point import Scales
from tflgpu.ops.lstm_samples import basic_samples, both_samples, full_samples, sequence_samples
from tflgpu.ops.products import PRODUCT_TYPES, needed
from tflgpu.ops.quantize_on_the_fly import rounding_of
from tflgpu.ops.quantized import Hybrid
from tflgpu.ops.recurrent import (
    Recurrent,
    check_second_input,
    hybrid,
    recurrent_op,
    result_specs,
    sizes_of,
)
from tflgpu.ops.stored_cell import INTERMEDIATES, StoredCell, stored_cell

#: Numbers of operands of one direction: without and with layer norms; and of two.
_COUNTS, _COUNT_OF_BOTH = (20, 24), 48
_STORED = frozenset({DType.I8, DType.I16, DType.I32})
FORWARD, BACKWARD = (
    attrs.evolve(lstm_operands(first, states), second=39, second_weights=positions(second))
    for first, states, second in ((1, 35, 40), (18, 37, 44))
)


def _parse_cell(fields: Fields, *, quantized: bool = True) -> Cell | StoredCell:
    clips = fields.number("cell_clip"), fields.number("proj_clip")
    for name, clip in zip(("cell_clip", "proj_clip"), clips, strict=True):
        if not clip >= 0:
            raise ModelError(f"{fields.op}: option {name} is {clip}, must be >= 0")
    scales = Scales.of_fields(fields)
    if scales.real or not quantized:
        return Cell(computable_activation(fields), *clips, rounding_of(fields))
    eight = fields.op == "LSTM" and len(scales.intermediates) == INTERMEDIATES
    return stored_cell(scales, *clips, eight=eight)


def _parse_lstm(fields: Fields) -> BasicLstm | Recurrent:
    kind = fields.integer("kernel_type")
    if kind == 0:
        return Recurrent(_parse_cell(fields))
    if kind != 1:
        raise ModelError(f"LSTM: unknown kernel type {kind}")
    return basic_lstm(fields)


def _parse_sequence(fields: Fields) -> Recurrent:
    return Recurrent(_parse_cell(fields), fields.flag("time_major"))


def _parse_both(fields: Fields) -> Recurrent:
    cell = _parse_cell(fields, quantized=False)
    return Recurrent(cell, fields.flag("time_major", True), fields.flag("merge_outputs"))


def _infer_lstm(attributes: BasicLstm | Recurrent, operands: Operands) -> list[TensorSpec]:
    if isinstance(attributes, BasicLstm):
        return infer_basic(attributes, operands)
    return _infer("LSTM", 2, attributes, operands)


def _infer(op: str, rank: int, attributes: Recurrent, operands: Operands) -> list[TensorSpec]:
    source = needed(op, operands[0] if operands else None, "input", rank)
    if len(operands) not in _COUNTS:
        raise ModelError(f"{op} takes {_COUNTS[0]} or {_COUNTS[1]} operands, got {len(operands)}")
    places = LSTM if len(operands) == _COUNTS[1] else attrs.evolve(LSTM, norms=())
    stored = isinstance(attributes.cell, StoredCell)
    batch = sizes_of(source.shape, attributes.time_major)[0]
    # In sequences LiteRT takes recurrent weights of rank 1 for a diagonal, whatever the option
    # says.
    check = _CellCheck(op, operands, places, _STORED if stored else PRODUCT_TYPES)
    return result_specs(source, [check.sizes(batch, diagonals=rank == 3)[1]])


def _infer_both(op: str, attributes: Recurrent, operands: Operands) -> list[TensorSpec]:
    if len(operands) != _COUNT_OF_BOTH:
        raise ModelError(f"{op} takes {_COUNT_OF_BOTH} operands, got {len(operands)}")
    source, ways = needed(op, operands[0], "input", 3), (FORWARD, BACKWARD)
    second = operands[39]
    weights = [operands[i] for way in ways for i in way.second_weights[FORGET_GATE:]]
    check_second_input(op, source, second, weights)
    batch = sizes_of(source.shape, attributes.time_major)[0]
    sizes: list[tuple[int, int]] = []
    for way in ways:
        sizes.append(_CellCheck(op, operands, way, PRODUCT_TYPES).sizes(batch))
        for at, extra in zip(way.weights, way.second_weights, strict=True):
            own, wanted = operands[extra], weights[0] is not None and operands[at] is not None
            if (own is not None) != wanted:
                raise ModelError(
                    f"{op}: the second input's weights (operand {extra}) and the input's "
                    f"(operand {at}) are not both there"
                )
            shape = (sizes[-1][0], 0 if second is None else second.shape[2])
            if own is not None and second is not None and own.shape != shape:
                raise ModelError(
                    f"{op}: the second input's weights (operand {extra}) have shape "
                    f"{list(own.shape)}, not {list(shape)}"
                )
    cells = {cells for cells, _ in sizes}
    if len(cells) > 1:
        raise ModelError(
            f"{op}: the directions have {sorted(cells)} cells; TFLite's kernel takes as many in "
            "both"
        )
    return result_specs(source, [outputs for _, outputs in sizes], merged=attributes.merged)


@attrs.frozen
class _CellCheck:
    """Whether the operands of a direction make a cell."""

    op: str
    operands: Operands
    places: CellOperands
    types: frozenset[DType]

    def sizes(self, batch: int, *, diagonals: bool = False) -> tuple[int, int]:
        """Cells and outputs. With ``diagonals`` recurrent weights of rank 1 are those of a
        diagonal.

        Raises:
            ModelError: an operand is missing or does not fit the others; names it.
            UnsupportedError: the operands, or diagonals, are whole numbers of which no cell is
                known.
        """
        op, operands, places = self.op, self.operands, self.places
        source = needed(op, operands[0], "input")
        if not source.dtype.is_float and self.types is not _STORED:
            raise UnsupportedError(f"{op} of {source.dtype.value} is not computed by tflgpu itself")
        cells = self._operand(places.weights[FORGET_GATE], 2).shape[0]
        own = [operands[i] for i in places.recurrent]
        lines = [diagonals and given is not None and given.rank == 1 for given in own]
        for line, given in zip(lines, own, strict=True):
            if line and given is not None and not given.dtype.is_float:
                raise UnsupportedError(
                    f"{op}: diagonals of whole numbers are not computed by tflgpu itself"
                )
        rank = 1 if lines[FORGET_GATE] else 2
        outputs = self._operand(places.recurrent[FORGET_GATE], rank).shape[-1]
        self._check_constants(source.shape[-1], cells, outputs, lines)
        for at, size in zip(places.states, (outputs, cells), strict=True):
            state = operands[at]
            # Old converters write states as one flat row.
            if state is None or state.shape != (batch * size,):
                self._check_shapes({at: (batch, size)})
        return cells, outputs

    def _check_constants(self, inputs: int, cells: int, outputs: int, lines: list[bool]) -> None:
        operands, places = self.operands, self.places
        wanted: dict[int, tuple[int, ...] | None] = {}
        for gate, line in enumerate(lines):
            wanted[places.weights[gate]] = (cells, inputs)
            wanted[places.recurrent[gate]] = (cells,) if line else (cells, outputs)
            wanted[places.biases[gate]] = (cells,)
        if any(operands[i] is not None for i in places.peepholes):
            wanted |= dict.fromkeys(places.peepholes, (cells,))
        coupled = operands[places.weights[INPUT_GATE]] is None
        if coupled:
            sets = (places.weights, places.recurrent, places.biases, places.peepholes)
            wanted |= {s[INPUT_GATE]: None for s in sets}
        self._check_shapes(wanted)
        matrix, bias = places.projection
        projects = operands[matrix] is not None
        if projects:
            self._check_shapes({matrix: (outputs, cells)})
        if not projects or operands[bias] is not None:
            self._check_shapes({bias: (outputs,) if projects else None})
        if not projects and outputs != cells:
            raise ModelError(
                f"{self.op}: {cells} cells make {outputs} outputs without a projection"
            )
        if any(operands[i] is not None for i in places.norms):
            norms = places.norms[FORGET_GATE:] if coupled else places.norms
            self._check_shapes(dict.fromkeys(norms, (cells,)))

    def _check_shapes(self, wanted: dict[int, tuple[int, ...] | None]) -> None:
        """That operands have such shapes; None for one that must be absent."""
        for at, shape in wanted.items():
            if shape is not None:
                found = self._operand(at, len(shape)).shape
                if found != shape:
                    raise ModelError(f"{self._name(at)} has shape {list(found)}, not {list(shape)}")
            elif self.operands[at] is not None:
                what = "projection" if at in self.places.projection else "input"
                raise ModelError(
                    f"{self._name(at)} has no use, because there are no {what} weights"
                )

    def _operand(self, at: int, rank: int) -> Operand:
        operand = self.operands[at]
        if operand is None:
            raise ModelError(f"{self._name(at)} is absent")
        check_dtype(f"{self.op}: the {self.places.names[at]}", operand.dtype, self.types)
        if operand.rank != rank or 0 in operand.shape:
            raise ModelError(f"{self._name(at)} has shape {list(operand.shape)}, not rank {rank}")
        return operand

    def _name(self, at: int) -> str:
        return f"{self.op}: the {self.places.names[at]} (operand {at})"


def _on_stored(attributes: object) -> bool:
    """Whether it is an LSTM on stored numbers."""
    if isinstance(attributes, Recurrent):
        return isinstance(attributes.cell, StoredCell)
    return isinstance(attributes, BasicLstm) and attributes.stored is not None


_FULL = recurrent_op(
    "LSTM",
    (LSTM,),
    parse=_parse_lstm,
    infer=_infer_lstm,
    samples=lambda: [*basic_samples(), *full_samples()],
    version=5,
    stored=_on_stored,
)


def _reference_lstm(attributes: BasicLstm | Recurrent, arrays: Arrays) -> list[Array]:
    if isinstance(attributes, BasicLstm):
        return run_basic(attributes, arrays)
    return _FULL.reference(attributes, arrays)


def _states_of_lstm(attributes: BasicLstm | Recurrent) -> tuple[int, ...]:
    """The basic kernel is handed its state from outside, and hands the new one out."""
    return () if isinstance(attributes, BasicLstm) else LSTM.states


def _hybrid_lstm(node: Node) -> Hybrid:
    """TFLite's basic kernel has no hybrid form."""
    return Hybrid(()) if isinstance(node.attrs, BasicLstm) else hybrid(LSTM, node)


OPS = (
    attrs.evolve(
        _FULL,
        reference=_reference_lstm,
        state=Variables(_states_of_lstm),
        quantized=Quantized(stored=_on_stored, hybrid=_hybrid_lstm),
    ),
    recurrent_op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM",
        (LSTM,),
        parse=_parse_sequence,
        infer=partial(_infer, "UNIDIRECTIONAL_SEQUENCE_LSTM", 3),
        samples=sequence_samples,
        version=4,
        stored=_on_stored,
    ),
    recurrent_op(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        (FORWARD, BACKWARD),
        parse=_parse_both,
        infer=partial(_infer_both, "BIDIRECTIONAL_SEQUENCE_LSTM"),
        samples=both_samples,
        version=3,
    ),
)
