"""A recurrent cell on stored numbers on a device: as `kernels/cell_loop.py`, in i32 and without
layer norms, bit for bit as TFLite's reference kernels (`ops/stored_cell.py`).

The functions of gates come from a table of 65536 numbers, which have the sigmoid in their lower
halves and tanh in their upper ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.cell_loop import CellLoop, NodeCell
from tflgpu.kernels.fixed_point import shift_right, times
from tflgpu.kernels.quantized_sums import byte_storage
from tflgpu.kernels.recurrent import (
    Factors,
    InputProduct,
    Sections,
    Steps,
    input_sums,
    multiply,
    pack_matrices,
    pack_vectors,
)
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32x4, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.ops.cell_operands import LSTM
from tflgpu.ops.fixed_functions import logistic, tanh
from tflgpu.ops.fixed_point import I8, I16, Multiplier
from tflgpu.ops.recurrent import sizes_of
from tflgpu.ops.stored_cell import StoredCell, StoredGate

_OPERANDS = 1 << 16  # that a function of 16 bits has


def run_stored_cell(low: Lowering) -> None:
    """Dispatch a cell that goes through time, with its states in variables."""
    own, shape, attributes = NodeCell.of(low.node, LSTM), low.node.input(0).shape, low.attrs
    batch, steps = sizes_of(shape, attributes.time_major)
    time_major = attributes.time_major and len(shape) > 2
    product = InputProduct(0, own.of_gates(own.weights.weights))
    sums = input_sums(low, [product], factors=input_factors(own, attributes.cell))
    together = len(shape) == 2 or time_major
    loop = _StoredCellLoop(
        low,
        own,
        Steps(batch, steps, time_major),
        sums,
        low.write,
        "integer_lstm_steps",
        stepped=batch if together else 1,
    )
    loop.build()


def _gates(own: NodeCell, cell: StoredCell) -> list[StoredGate]:
    found = [cell.gates[index] for index in own.gates]
    return [gate for gate in found if gate is not None]


def _factors(
    matrices: Sequence[Array], zero: int, biases: Sequence[Array | None], by: list[Multiplier]
) -> Factors:
    """Factors for products of operands in which ``zero`` stands for 0."""
    offsets = [
        np.asarray(-zero * m.astype(np.int64).sum(axis=1) + (0 if bias is None else bias))
        for m, bias in zip(matrices, biases, strict=True)
    ]
    return Factors(offsets, by)


def input_factors(own: NodeCell, cell: StoredCell) -> Factors:
    """Factors for the products of the input."""
    matrices, biases = own.of_gates(own.weights.weights), own.of_gates(own.weights.biases)
    by = [gate.weights.scale for gate in _gates(own, cell)]
    return _factors(matrices, cell.input_zero, biases, by)


def recurrent_factors(own: NodeCell, cell: StoredCell) -> Factors:
    """Factors for the products of the output state."""
    by = [gate.recurrent.scale for gate in _gates(own, cell) if gate.recurrent is not None]
    return _factors(own.recurrent, cell.output_zero, [None] * len(by), by)


def projection_factors(own: NodeCell, cell: StoredCell) -> Factors | None:
    """Factors for the projection; None without one."""
    matrix, by = own.weights.projection, cell.projection
    if matrix is None or by is None:
        return None
    return _factors([matrix], cell.hidden_zero, [own.weights.projection_bias], [by])


class _StoredCellLoop(CellLoop):
    scalar = Scalar.I32
    cell: StoredCell

    def __init__(self, low: Lowering, own: NodeCell, *args: Any, stepped: int) -> None:
        """``stepped`` are the rows that TFLite's kernel steps together."""
        self.stepped, self.storage = stepped, byte_storage(low)
        super().__init__(low, own, *args)

    def pack(self, matrices: Sections, numbers: Sections) -> None:
        """Put together the constants: factors, offsets of a projection, peepholes and functions."""
        own, cell = self.own, self.low.attrs.cell
        matrices.add("recurrent", pack_matrices(own.recurrent, np.int32))
        self.factors = recurrent_factors(own, cell)
        numbers.add("factors", self.factors.packed)
        projection = projection_factors(own, cell)
        if projection is not None and own.weights.projection is not None:
            matrices.add("projection", pack_matrices([own.weights.projection], np.int32))
            numbers.add("projection_bias", pack_vectors(projection.offsets, np.int32))
        # TFLite's kernel counts the cells of the rows that it steps together by the outputs.
        seen = min(own.outputs, own.cells)
        for gate, peephole in enumerate(own.weights.peepholes):
            if peephole is not None and gate in own.gates:
                flat = np.zeros(self.stepped * own.cells, np.int32)
                flat[: self.stepped * seen] = np.tile(peephole[:seen], self.stepped)
                rows = list(flat.reshape(self.stepped, own.cells))
                numbers.add(f"peephole{gate}", pack_vectors(rows, np.int32))
        numbers.add("functions3", _functions(3))
        if cell.bits != 3:
            numbers.add(f"functions{cell.bits}", _functions(cell.bits))

    def reading(self, room: Any, slices: int) -> Callable[[Expr], Expr]:
        """A vector in shared memory, by slices."""
        return lambda q: self.k.load_shared(room, q)

    def gate_sums(self, row: Expr, column: Expr, load: Callable[[Expr], Expr]) -> Variable:
        """A slice of a gate's sums without peepholes, of 16 bits."""
        k = self.k
        total = k.var(k.load(self.numbers, column * 4), "total")
        multiply(k, total, load, self.outputs, self.matrices, column, self.columns)
        sums = self.factors.finished(k, total, self.numbers, column) + self.sums.load(row, column)
        k.set(total, k.clamp(sums, *I16))
        return total

    def with_cells(self, gate: int, total: Expr, cells: Expr, c: Expr) -> Expr:
        """A slice of a gate that sees the cells."""
        own = self.cell.gates[gate]
        assert own is not None
        assert own.peephole is not None
        at = c if self.stepped == 1 else c + self.team.sequence * self.cells
        products = cells * self.vector(f"peephole{gate}", at)
        return self.k.clamp(times(self.k, products, own.peephole) + total, *I16)

    @property
    def everything(self) -> Expr:
        """The value of an open gate."""
        return self.k.const(I16[1], I32x4)

    def sigmoid(self, gate: Expr) -> Expr:
        """The value of a gate, a fraction of 15 bits."""
        return self.k.let(self._entries(gate, 3) & 0xFFFF, "sigmoid")

    def content(self, gate: Expr) -> Expr:
        """The new content, a fraction of 15 bits."""
        return self.k.let(self._entries(gate, 3) >> 16, "tanh")

    def renewed(self, forget: Expr, cells: Expr, admit: Expr, content: Expr) -> Expr:
        """The new cells: a fraction of 30 bits brought to their scale."""
        k = self.k
        kept = shift_right(k, forget * cells, 15)
        return k.clamp(kept + shift_right(k, admit * content, 15 + self.cell.bits), *I16)

    def shown(self, gate: Expr, cells: Expr) -> Expr:
        """The cells' output by the output gate, of 8 bits."""
        assert self.cell.hidden is not None
        value = self.sigmoid(gate) * self.k.let(self._entries(cells, self.cell.bits) >> 16, "tanh")
        return self.k.clamp(times(self.k, value, self.cell.hidden) + self.cell.hidden_zero, *I8)

    def projected(self, total: Expr) -> Expr:
        """A slice of outputs, of its sums."""
        assert self.cell.projection is not None
        value = times(self.k, total, self.cell.projection) + self.cell.output_zero
        return self.k.clamp(value, *I8)

    def padded(self, value: Expr, slice_: Expr, size: int) -> Expr:
        """The number itself: times a weight of 0 it is 0."""
        return value

    def _entries(self, x: Expr, bits: int) -> Expr:
        """The table of functions whose operands have so many bits before the point."""
        k, start = self.k, self.starts[f"functions{bits}"] * 4 + _OPERANDS // 2
        x = k.let(x, "x")
        found = [k.load_lane(self.numbers, x.lane(lane) + start) for lane in range(4)]
        return k.let(k.vec(found), "entries")


def _functions(bits: int) -> Array:
    return logistic().astype(np.int32) | (tanh(bits).astype(np.int32) << 16)


def why_not_stored(node: Node) -> str | None:
    """Why a cell on stored numbers, whose weights are constant, cannot run in 32 bits; None where
    it can."""
    own, cell = NodeCell.of(node, LSTM), node.attrs.cell
    sums = [
        (input_factors(own, cell), own.of_gates(own.weights.weights)),
        (recurrent_factors(own, cell), own.recurrent),
    ]
    projection = projection_factors(own, cell)
    if projection is not None and own.weights.projection is not None:
        sums.append((projection, [own.weights.projection]))
    peepholes = [gate.peephole for gate in _gates(own, cell)]
    grows = any(by is not None and by.left for by in (cell.hidden, *peepholes))
    if grows or any(factors.overflow(matrices) for factors, matrices in sums):
        return f"{node.op}: its sums may need more than 32 bits"
    return None
