"""LSTMs on whole numbers, without layer norms: as `kernels/sequence_lstm.py`, in i32, bit for bit as
TFLite's reference kernels (`ops/integer_cell.py`).

The functions of gates come from a table of 65536 numbers, which have the sigmoid in their lower halves and
tanh in their upper ones.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.fixed_point import shift_right, times
from tflgpu.kernels.integer_sums import ROWS, add_products, finished, input_sums, pack_factors
from tflgpu.kernels.quantized_sums import byte_storage
from tflgpu.kernels.recurrent import (
    Steps,
    Team,
    members,
    not_constant,
    not_shared,
    pack_matrices,
    pack_vectors,
    slices_of,
)
from tflgpu.language.tree import Expr, Shared
from tflgpu.language.types import I32x4, Scalar
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.fixed_functions import logistic, tanh
from tflgpu.ops.fixed_point import Multiplier
from tflgpu.ops.integer_cell import PEEPHOLE, Gate, IntegerCell
from tflgpu.ops.integer_cell_8 import IntegerCell8
from tflgpu.ops.lstm import SequenceLstm
from tflgpu.ops.lstm_cell import (
    BIASES,
    CELL_STATE,
    OUTPUT_STATE,
    PEEPHOLES,
    PROJECTION,
    PROJECTION_BIAS,
    RECURRENT,
    WEIGHTS,
    operand_names,
    places_of,
)

_INPUT, _FORGET, _CONTENT, _OUTPUT = range(4)
_I16, _I8 = (-(1 << 15), (1 << 15) - 1), (-(1 << 7), (1 << 7) - 1)
_OPERANDS = 1 << 16  # that a function of 16 bits has


@attrs.frozen(eq=False)
class _Weights:
    """A node's constants; ``gates`` are those that have weights."""

    node: Node
    cell: IntegerCell
    gates: tuple[int, ...]
    cells: int
    outputs: int

    @classmethod
    def of(cls, node: Node) -> _Weights:
        cell = _cell(node)
        cells, outputs = node.input(RECURRENT + _FORGET).shape
        gates = tuple(i for i, gate in enumerate(cell.gates) if gate is not None)
        return cls(node, cell, gates, cells, outputs)

    def gate(self, index: int) -> Gate:
        found = self.cell.gates[index]
        assert found is not None
        return found

    def matrices(self, first: int) -> list[Array]:
        return [np.asarray(self.node.const(first + gate)) for gate in self.gates]

    def offsets(self, first: int, zero: int) -> list[Array]:
        """What zero points and biases add to the sums of products."""
        found = [-zero * m.astype(np.int64).sum(axis=1) for m in self.matrices(first)]
        if first == WEIGHTS:
            found = [
                o + self.node.const(BIASES + g) for o, g in zip(found, self.gates, strict=True)
            ]
        return found

    def multipliers(self, first: int) -> list[Multiplier]:
        gates = [self.gate(index) for index in self.gates]
        return [gate.weights if first == WEIGHTS else gate.recurrent for gate in gates]

    def factors(self, first: int, zero: int) -> Array:
        """As `pack_factors`."""
        return pack_factors(self.offsets(first, zero), self.multipliers(first))

    def peepholes(self, rows: int) -> dict[int, Array]:
        """By gate, what each cell of each row is multiplied by: TFLite's kernel counts the cells of
        ``rows`` that it steps together by the outputs."""
        found, seen = {}, min(self.outputs, self.cells)
        for index in self.gates:
            at = PEEPHOLE[index]
            if at is None or self.gate(index).peephole is None:
                continue
            flat = np.zeros(rows * self.cells, np.int32)
            flat[: rows * seen] = np.tile(self.node.const(PEEPHOLES + at)[:seen], rows)
            found[index] = flat.reshape(rows, self.cells)
        return found


def _functions(bits: int) -> Array:
    return logistic().astype(np.int32) | (tanh(bits).astype(np.int32) << 16)


def _input_sums(low: Lowering, weights: _Weights) -> Temp:
    """Of all steps, what the input adds to the gates: [rows, gates * padded cells]."""
    factors = weights.factors(WEIGHTS, weights.cell.input_zero)
    grows = any(m.left for m in weights.multipliers(WEIGHTS))
    return input_sums(low, 0, weights.matrices(WEIGHTS), factors, grows=grows)


class _Loop:
    """The kernel that goes through time."""

    def __init__(
        self, low: Lowering, weights: _Weights, steps: Steps, sums: Temp, *, together: bool
    ) -> None:
        self.low, self.weights, self.cell, self.steps = low, weights, weights.cell, steps
        self.cells, self.outputs = slices_of(weights.cells), slices_of(weights.outputs)
        self.columns = len(weights.gates) * self.cells
        k = self.k = low.kernel("integer_lstm_steps", (members(low.caps, self.columns), 1, 1))
        self.sums = low.read_temp(k, sums, "sums")
        self.out = low.write(k)
        self.team = Team.of(k)

        def room(name: str, slices: int) -> Shared:
            return k.shared(name, I32x4, slices)

        self.hidden, self.cell_room = room("hidden", self.outputs), room("cells", self.cells)
        self.gates = room("gates", self.columns)
        self.projects = weights.cell.projection is not None
        self.values = room("values", self.cells) if self.projects else self.hidden
        # Few buffers, since some devices bind no more than eight.
        matrices = [pack_matrices(weights.matrices(RECURRENT), np.int32).reshape(-1)]
        self.projection = matrices[0].size // 4
        parts = [weights.factors(RECURRENT, weights.cell.output_zero).reshape(-1)]
        self.places: dict[str, int] = {}

        def place(name: str, data: Array) -> None:
            self.places[name] = sum(p.size for p in parts) // 4
            parts.append(data.reshape(-1))

        if self.projects:
            matrix = low.node.const(PROJECTION)
            matrices.append(pack_matrices([matrix], np.int32).reshape(-1))
            place("projection", pack_vectors([self._offset(matrix)], np.int32))
        rows = steps.batch if together else 1
        self.together = rows > 1
        for gate, data in weights.peepholes(rows).items():
            place(f"peephole{gate}", pack_vectors(list(data), np.int32))
        place("gates", _functions(3))
        if self.cell.bits != 3:
            place("cells", _functions(self.cell.bits))
        # Sections of whole slices of a buffer; of a table one number is loaded at a time.
        self.matrices = low.weights(
            k, np.concatenate(matrices), "matrices", scalar=byte_storage(low)
        )
        self.numbers = low.weights(k, np.concatenate(parts), "numbers", scalar=Scalar.I32)

    def _offset(self, matrix: Array) -> Array:
        """What the zero point of hidden values and the bias add to what is projected."""
        found = -self.cell.hidden_zero * matrix.astype(np.int64).sum(axis=1)
        bias = self.low.node.optional_input(PROJECTION_BIAS)
        return np.asarray(found if bias is None else found + self.low.node.const(PROJECTION_BIAS))

    def build(self) -> None:
        """All statements."""
        k, low, team = self.k, self.low, self.team
        states = (
            (OUTPUT_STATE, self.hidden, self.outputs),
            (CELL_STATE, self.cell_room, self.cells),
        )
        for index, room, slices in states:
            old: ReadView = low.read_value(k, low.node.input(index), "old")
            with team.share(slices, "c") as c:
                k.store_shared(room, c, old.load(team.sequence, c))
        k.barrier()
        with k.loop(0, self.steps.times, name="time") as time:
            row = self.steps.row(k, team.sequence, time)
            with team.share(self.columns, "column") as column:
                self._add_up(row, column)
            k.barrier()
            with team.share(self.cells, "c") as c:
                self._renew(row, c)
            k.barrier()
            if self.projects:
                with team.share(self.outputs, "c") as c:
                    self._project(row, c)
                k.barrier()
        for index, room, slices in states:
            new: WriteView = low.new_state(k, index)
            with team.share(slices, "c") as c:
                new.store(team.sequence, c, k.load_shared(room, c))
        low.dispatch_groups(k, (self.steps.batch, 1, 1))

    def _add_up(self, row: Expr, column: Expr) -> None:
        """A slice of a gate's sums, but for what sees the new cells."""
        k = self.k

        def load(at: int) -> Expr:
            return k.load(self.numbers, column * ROWS + at)

        total = k.var(load(0), "total")
        hidden = self.hidden
        add_products(
            k, total, lambda q: k.load_shared(hidden, q), self.outputs, self.matrices, column,
            self.columns,
        )  # fmt: skip
        grows = any(m.left for m in self.weights.multipliers(RECURRENT))
        sums = finished(k, total, load, grows=grows) + self.sums.load(row, column)
        k.set(total, k.clamp(sums, *_I16))
        for place, gate in enumerate(self.weights.gates):
            if f"peephole{gate}" in self.places and gate != _OUTPUT:
                c = k.let(column - place * self.cells, "c")
                with k.if_((c >= 0) & (c < self.cells)):
                    k.set(total, self._seen(gate, total, k.load_shared(self.cell_room, c), c))
        k.store_shared(self.gates, column, total)

    def _seen(self, gate: int, total: Expr, cells: Expr, c: Expr) -> Expr:
        """A slice of a gate that sees the cells."""
        k, by = self.k, self.weights.gate(gate).peephole
        assert by is not None
        at = c + self.places[f"peephole{gate}"]
        if self.together:
            at = at + self.team.sequence * self.cells
        return k.clamp(times(k, cells * k.load(self.numbers, at), by) + total, *_I16)

    def _renew(self, row: Expr, c: Expr) -> None:
        """The new cells of a slice, and what they let out."""
        k, cell = self.k, self.cell
        forget = self._sigmoid(self._gate(_FORGET, c))
        content = self._tanh(self._gate(_CONTENT, c))
        if _INPUT in self.weights.gates:
            admit = self._sigmoid(self._gate(_INPUT, c))
        else:
            admit = k.let(k.const(_I16[1], I32x4) - forget, "admit")
        kept = shift_right(k, forget * k.load_shared(self.cell_room, c), 15)
        new = kept + shift_right(k, admit * content, 15 + cell.bits)
        limit = cell.cell_clip
        new = k.clamp(new, *_I16) if limit <= 0 else k.clamp(new, -limit, limit)
        new = k.let(new, "cell")
        k.store_shared(self.cell_room, c, new)
        show = self._gate(_OUTPUT, c)
        if f"peephole{_OUTPUT}" in self.places:
            show = k.let(self._seen(_OUTPUT, show, new, c), "show")
        section = "gates" if cell.bits == 3 else "cells"
        value = self._sigmoid(show) * self._tanh(new, section)
        hidden = times(k, value, cell.hidden) + cell.hidden_zero
        hidden = k.let(k.clamp(hidden, *_I8), "hidden")
        k.store_shared(self.values, c, hidden)
        if not self.projects:
            self.out.store(row, c, hidden)

    def _project(self, row: Expr, c: Expr) -> None:
        k, by, limit = self.k, self.cell.projection, self.cell.projection_clip
        assert by is not None
        total = k.var(k.load(self.numbers, c + self.places["projection"]), "total")
        values = self.values
        add_products(
            k, total, lambda q: k.load_shared(values, q), self.cells, self.matrices, c,
            self.outputs, self.projection,
        )  # fmt: skip
        value = k.clamp(times(k, total, by) + self.cell.output_zero, *_I8)
        value = k.let(value if limit <= 0 else k.clamp(value, -limit, limit), "value")
        k.store_shared(self.hidden, c, value)
        self.out.store(row, c, value)

    def _gate(self, gate: int, c: Expr) -> Expr:
        first = self.weights.gates.index(gate) * self.cells
        return self.k.let(self.k.load_shared(self.gates, c + first), "gate")

    def _sigmoid(self, x: Expr) -> Expr:
        return self.k.let(self._entries(x, "gates") & 0xFFFF, "sigmoid")

    def _tanh(self, x: Expr, section: str = "gates") -> Expr:
        return self.k.let(self._entries(x, section) >> 16, "tanh")

    def _entries(self, x: Expr, section: str) -> Expr:
        k, start = self.k, self.places[section] * 4 + _OPERANDS // 2
        x = k.let(x, "x")
        found = [k.load_lane(self.numbers, x.lane(lane) + start) for lane in range(4)]
        return k.let(k.vec(found), "entries")


def _cell(node: Node) -> IntegerCell:
    found = node.attrs.cell if isinstance(node.attrs, SequenceLstm) else node.attrs
    assert isinstance(found, IntegerCell)
    return found


def _build(low: Lowering) -> None:
    attributes, shape = low.attrs, low.node.input(0).shape
    together, times_, batch = True, 1, shape[0]
    if isinstance(attributes, SequenceLstm):
        together = attributes.time_major
        batch, times_ = (shape[1], shape[0]) if together else shape[:2]
    weights = _Weights.of(low.node)
    sums = _input_sums(low, weights)
    steps = Steps(batch, times_, isinstance(attributes, SequenceLstm) and together)
    _Loop(low, weights, steps, sums, together=together).build()


def _accepts(node: Node, site: Site) -> str | None:
    attributes = node.attrs.cell if isinstance(node.attrs, SequenceLstm) else node.attrs
    if isinstance(attributes, IntegerCell8):
        return f"{node.op}: gates of 8 bits are computed on the CPU"
    if not isinstance(attributes, IntegerCell):
        return f"{node.op}: the rule is for whole numbers"
    if any(gate is not None and gate.norm is not None for gate in attributes.gates):
        return f"{node.op}: a layer norm of whole numbers needs sums of 64 bits"
    reason = not_constant(node, places_of(len(node.inputs)).constants, operand_names())
    if reason is not None:
        return reason
    for index in (OUTPUT_STATE, CELL_STATE):
        if len(node.input(index).shape) != 2:
            return f"{node.op}: state {node.input(index).name} is no matrix"
    weights = _Weights.of(node)
    if _overflows(weights):
        return f"{node.op}: its sums may need more than 32 bits"
    cells, outputs = slices_of(weights.cells), slices_of(weights.outputs)
    rooms = cells * (len(weights.gates) + 2) + outputs
    return not_shared(node.op, rooms, site)


def _overflows(weights: _Weights) -> bool:
    """Whether a sum, shifted to the left as its multiplier wants, may need more than 32 bits."""
    cell, node = weights.cell, weights.node

    def most(matrices: list[Array], offsets: list[Array], by: list[Multiplier]) -> int:
        found = [
            int((np.abs(m.astype(np.int64)).sum(axis=1) * 128 + np.abs(o)).max()) << b.left
            for m, o, b in zip(matrices, offsets, by, strict=True)
        ]
        return max(found)

    sums = [
        most(weights.matrices(first), weights.offsets(first, zero), weights.multipliers(first))
        for first, zero in ((WEIGHTS, cell.input_zero), (RECURRENT, cell.output_zero))
    ]
    if cell.projection is not None:
        matrix, bias = node.const(PROJECTION), node.optional_input(PROJECTION_BIAS)
        offset = -cell.hidden_zero * matrix.astype(np.int64).sum(axis=1)
        offset = offset if bias is None else offset + node.const(PROJECTION_BIAS)
        sums.append(most([matrix], [offset], [cell.projection]))
    peepholes = [weights.gate(g).peephole for g in weights.gates]
    products = [cell.hidden, *(p for p in peepholes if p is not None)]
    return max(sums) >= 1 << 31 or any(m.left for m in products)


RULES = tuple(
    KernelRule(
        op, "through time, on whole numbers", _build, _accepts, fuses=False, keeps_state=True
    )
    for op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
)
