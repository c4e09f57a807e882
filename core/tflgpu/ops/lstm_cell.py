"""The long short-term memory cell with all its options: operands, checks, one step.

    i, f, o = sigmoid(norm(W x + R h + P * c) + b)      input, forget and output gate
    g       = act(norm(W x + R h) + b)                  new content
    c'      = f * c + i * g                             clipped to the cell clip
    h'      = projection(o * act(c'))                   clipped to the projection clip

P (peepholes; the output gate sees c'), norm (layer normalisation) and the projection may be
absent. Without input gate weights the gates are coupled: i = 1 - f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.base import Activation, Operand
from tflgpu.ops.elementwise import check_dtype
from tflgpu.ops.facets import Hybrid, OnTheFly, Rounding
from tflgpu.ops.products import PRODUCT_TYPES, floats
from tflgpu.ops.quantize_on_the_fly import rounded

GATES = ("input", "forget", "cell", "output")
#: Operand positions: four gates in the order of `GATES`, except where said.
INPUT = 0
WEIGHTS, RECURRENT = 1, 5
PEEPHOLES = 9  # input, forget and output gate
BIASES = 12
PROJECTION, PROJECTION_BIAS = 16, 17
OUTPUT_STATE, CELL_STATE = 18, 19
LAYER_NORM = 20
#: Number of operands without and with layer normalisation.
COUNTS = (20, 24)

_NORM_EPSILON = 1e-8
_STORED = frozenset({DType.I8, DType.I16, DType.I32})


@attrs.frozen
class Places:
    """At which positions a cell's operands are; a node of two directions has two sets of them.
    Sets of gates are in the order of `GATES`; of peepholes there is none for the new content."""

    input: int
    weights: tuple[int, ...]
    recurrent: tuple[int, ...]
    peepholes: tuple[int, ...]
    biases: tuple[int, ...]
    projection: int
    projection_bias: int
    output_state: int
    cell_state: int
    norms: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Every position, in the order that a node of one direction has them in."""
        weights = (self.input, *self.weights, *self.recurrent, *self.peepholes, *self.biases)
        states = (self.projection, self.projection_bias, self.output_state, self.cell_state)
        return (*weights, *states, *self.norms)

    @property
    def constants(self) -> tuple[int, ...]:
        """All but the input and the states."""
        sets = (self.weights, self.recurrent, self.peepholes, self.biases, self.norms)
        return (*(i for s in sets for i in s), self.projection, self.projection_bias)


def places_of(count: int) -> Places:
    """Those of a node of one direction with so many operands."""

    def run(first: int, number: int = 4) -> tuple[int, ...]:
        return tuple(range(first, first + number))

    norms = run(LAYER_NORM) if count > LAYER_NORM else ()
    return Places(
        INPUT, run(WEIGHTS), run(RECURRENT), run(PEEPHOLES, 3), run(BIASES), PROJECTION,
        PROJECTION_BIAS, OUTPUT_STATE, CELL_STATE, norms,
    )  # fmt: skip


@attrs.frozen
class Cell:
    """Options of a cell; a clip of 0 clips nothing.

    ``rounding`` is that of floats that meet 8-bit weights; where ``rounds``, the hidden state and
    what is projected are rounded so before they are multiplied, a row at a time.
    """

    activation: Activation
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    rounding: Rounding = Rounding.SYMMETRIC
    rounds: bool = False

    def seen(self, rows: Array) -> Array:
        """Rows as weights meet them."""
        return rounded(rows, (1,), self.rounding) if self.rounds else rows


def hybrid_cell(node: Node, cell: Cell, make: Callable[[Cell], Any], *more: int) -> Hybrid:
    """What a node with such a cell rounds: rows of the input and of the operands ``more``, and what
    the cell multiplies inside; ``make`` makes the node's attributes of the cell's."""
    axes = (len(node.input(INPUT).shape) - 1,)
    data = tuple(OnTheFly(axes, cell.rounding, operand=at) for at in (INPUT, *more))
    return Hybrid(data, make(attrs.evolve(cell, rounds=True)))


@attrs.frozen
class Sizes:
    """Sizes of a cell: rows at once, inputs, cells, and outputs (= cells without projection)."""

    batch: int
    inputs: int
    cells: int
    outputs: int


def operand_names() -> list[str]:
    """What messages call the operands, by position."""
    peepholes = [f"{gate} gate's peephole" for gate in ("input", "forget", "output")]
    return [
        "input",
        *(f"{gate} weights" for gate in GATES),
        *(f"{gate} recurrent weights" for gate in GATES),
        *peepholes,
        *(f"{gate} bias" for gate in GATES),
        "projection weights",
        "projection bias",
        "output state",
        "cell state",
        *(f"{gate} layer norm" for gate in GATES),
    ]


def check_operands(
    op: str,
    operands: Sequence[Operand | None],
    batch: int,
    inputs: int,
    positions: Sequence[int] = range(max(COUNTS)),
    *,
    stored: bool = False,
    diagonals: bool = False,
) -> Sizes:
    """The sizes of the cell that the operands make, which messages call by their ``positions``; of one
    that computes on ``stored`` numbers, whose types somebody else has checked. With ``diagonals``
    recurrent weights of rank 1 are those of a diagonal, whatever the file's option for it says, as in
    LiteRT.

    Raises:
        ModelError: an operand is missing or does not fit the others; names it.
        UnsupportedError: the operands are whole numbers, and nobody knows the cell that takes them; or
            diagonals are.
    """
    if len(operands) not in COUNTS:
        raise ModelError(f"{op} takes {COUNTS[0]} or {COUNTS[1]} operands, got {len(operands)}")
    source = operands[INPUT]
    if source is not None and not source.dtype.is_float and not stored:
        raise UnsupportedError(f"{op} of {source.dtype.value} is not computed by tflgpu itself")
    check = _Checker(op, operands, positions, _STORED if stored else PRODUCT_TYPES)
    forget = check.get(WEIGHTS + 1, 2)
    cells = forget.shape[0]
    own = [operands[RECURRENT + gate] for gate in range(4)] if diagonals else []
    rank1 = {gate for gate, given in enumerate(own) if given is not None and given.rank == 1}
    if any(not given.dtype.is_float for given in own if given is not None and given.rank == 1):
        raise UnsupportedError(
            f"{op}: diagonals of whole numbers are not computed by tflgpu itself"
        )
    outputs = check.get(RECURRENT + 1, 1 if 1 in rank1 else 2).shape[-1]
    coupled = operands[WEIGHTS] is None
    absent = {0} if coupled else set()
    for gate in range(4):
        if gate in absent:
            for index in (RECURRENT, BIASES):
                check.absent(index, "there are no input weights")
            continue
        check.shape(WEIGHTS + gate, (cells, inputs))
        check.shape(RECURRENT + gate, (cells,) if gate in rank1 else (cells, outputs))
        check.shape(BIASES + gate, (cells,))
    peepholes = [i for i in range(3) if operands[PEEPHOLES + i] is not None]
    if peepholes:
        for i in range(3):
            if i == 0 and coupled:
                check.absent(PEEPHOLES, "there are no input weights")
            else:
                check.shape(PEEPHOLES + i, (cells,))
    if operands[PROJECTION] is not None:
        check.shape(PROJECTION, (outputs, cells))
        if operands[PROJECTION_BIAS] is not None:
            check.shape(PROJECTION_BIAS, (outputs,))
    else:
        check.absent(PROJECTION_BIAS, "there are no projection weights")
        if outputs != cells:
            raise ModelError(f"{op}: {cells} cells make {outputs} outputs without a projection")
    if len(operands) == COUNTS[1] and any(v is not None for v in operands[LAYER_NORM:]):
        for gate in range(4):
            if gate not in absent:
                check.shape(LAYER_NORM + gate, (cells,))
    check.state(OUTPUT_STATE, batch, outputs)
    check.state(CELL_STATE, batch, cells)
    return Sizes(batch, inputs, cells, outputs)


class _Checker:
    def __init__(
        self,
        op: str,
        operands: Sequence[Operand | None],
        positions: Sequence[int],
        types: frozenset[DType],
    ) -> None:
        self.op, self.operands, self.at, self.types = op, operands, positions, types
        self.names = operand_names()

    def get(self, index: int, rank: int) -> Operand:
        operand = self.operands[index]
        if operand is None:
            raise ModelError(
                f"{self.op}: the {self.names[index]} (operand {self.at[index]}) is absent"
            )
        check_dtype(f"{self.op}: the {self.names[index]}", operand.dtype, self.types)
        if operand.rank != rank or 0 in operand.shape:
            raise ModelError(
                f"{self.op}: the {self.names[index]} (operand {self.at[index]}) has shape "
                f"{list(operand.shape)}, not rank {rank}"
            )
        return operand

    def shape(self, index: int, wanted: tuple[int, ...]) -> None:
        found = self.get(index, len(wanted)).shape
        if found != wanted:
            raise ModelError(
                f"{self.op}: the {self.names[index]} (operand {self.at[index]}) has shape {list(found)}, "
                f"not {list(wanted)}"
            )

    def state(self, index: int, batch: int, size: int) -> None:
        # Old converters write states as one flat row.
        operand = self.operands[index]
        if operand is not None and operand.shape == (batch * size,):
            return
        self.shape(index, (batch, size))

    def absent(self, index: int, why: str) -> None:
        if self.operands[index] is not None:
            raise ModelError(
                f"{self.op}: the {self.names[index]} (operand {self.at[index]}) has no use, because {why}"
            )


class CellRunner:
    """A cell with its weights in f32, stepped through time."""

    def __init__(self, op: str, cell: Cell, arrays: Sequence[Array | None]) -> None:
        self._cell = cell

        def get(index: int) -> Array | None:
            array = arrays[index] if index < len(arrays) else None
            return None if array is None else floats(op, array)

        self._weights = [get(WEIGHTS + i) for i in range(4)]
        self._recurrent = [get(RECURRENT + i) for i in range(4)]
        self._biases = [get(BIASES + i) for i in range(4)]
        self._norms = [get(LAYER_NORM + i) for i in range(4)]
        self._peepholes = [get(PEEPHOLES), get(PEEPHOLES + 1), None, get(PEEPHOLES + 2)]
        self._projection, self._projection_bias = get(PROJECTION), get(PROJECTION_BIAS)

    def step(self, x: Array, hidden: Array, cells: Array) -> tuple[Array, Array]:
        """New output state and cell state, [batch, outputs] and [batch, cells], from the input
        [batch, inputs] and the old ones."""
        act, clip = self._cell.activation, self._cell.cell_clip
        hidden = self._cell.seen(hidden)
        forget = sigmoid(self._gate(1, x, hidden, cells))
        coupled = self._weights[0] is None
        gate = 1 - forget if coupled else sigmoid(self._gate(0, x, hidden, cells))
        content = apply_activation(act, self._gate(2, x, hidden, None))
        new = forget * cells + gate * content
        if clip > 0:
            new = np.clip(new, -clip, clip)
        output = sigmoid(self._gate(3, x, hidden, new)) * apply_activation(act, new)
        if self._projection is not None:
            output = self._cell.seen(output) @ self._projection.T
            if self._projection_bias is not None:
                output = output + self._projection_bias
            limit = self._cell.projection_clip
            if limit > 0:
                output = np.clip(output, -limit, limit)
        return output, new

    def _gate(self, index: int, x: Array, hidden: Array, cells: Array | None) -> Array:
        weights, recurrent = self._weights[index], self._recurrent[index]
        bias, norm, peephole = self._biases[index], self._norms[index], self._peepholes[index]
        assert weights is not None
        assert recurrent is not None
        assert bias is not None
        seen = hidden * recurrent if recurrent.ndim == 1 else hidden @ recurrent.T
        sums = np.asarray(x @ weights.T + seen)
        if peephole is not None and cells is not None:
            sums += cells * peephole
        if norm is not None:
            centred = sums - sums.mean(axis=1, keepdims=True)
            variance = np.mean(centred * centred, axis=1, keepdims=True)
            sums = centred / np.sqrt(variance + np.float32(_NORM_EPSILON)) * norm
        return sums + bias


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)), x.dtype)
