"""A recurrent cell on a device: two dispatches a direction, for all steps.

The first makes what the inputs add to the gates (`kernels/recurrent.py`), the second goes through
time. Where gates are normalised their sums are known only once all cells have theirs, so that there
the output gate, which may see the new cells, waits for one barrier more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.recurrent import (
    InputProduct,
    Sections,
    Steps,
    Team,
    input_sums,
    logistic,
    members,
    multiply,
    pack_matrices,
    pack_vectors,
    seen,
    side_by_side,
    slices_of,
    without_padding,
)
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar, type_of
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.view import WriteView
from tflgpu.ops.cell_operands import (
    FORGET_GATE,
    INPUT_GATE,
    NEW_CONTENT,
    OUTPUT_GATE,
    CellOperands,
    CellWeights,
)
from tflgpu.ops.recurrent import sizes_of
from tflgpu.values import frozen

_EPSILON = 1e-8


@frozen(eq=False)
class NodeCell:
    """The constants of one direction of a node.

    Attributes:
        gates: Those that have weights of their own; without the first of four it is 1 - forget
            gate.
        cells, outputs: Sizes.
    """

    node: Node
    places: CellOperands
    weights: CellWeights
    gates: tuple[int, ...]
    cells: int
    outputs: int

    @classmethod
    def of(cls, node: Node, places: CellOperands) -> NodeCell:
        """Read a node's operands."""

        def get(index: int) -> Array | None:
            value = node.optional_input(index)
            return None if value is None else value.data

        weights = CellWeights.of(places, get)
        gates = tuple(g for g, matrix in enumerate(weights.weights) if matrix is not None)
        shape = node.input(places.recurrent[gates[-1]]).shape
        return cls(node, places, weights, gates, shape[0], shape[-1])

    def of_gates(self, given: Sequence[Array | None]) -> list[Array]:
        """One for each gate; a diagonal as what it is of."""
        return [np.asarray(given[gate]) for gate in self.gates]

    @property
    def recurrent(self) -> list[Array]:
        """Recurrent weights of each gate; a diagonal as the matrix that it is of."""
        return [np.diag(m) if m.ndim == 1 else m for m in self.of_gates(self.weights.recurrent)]

    @property
    def normalised(self) -> bool:
        """Whether gates have layer norms."""
        return any(norm is not None for norm in self.weights.norms)

    @property
    def projects(self) -> bool:
        """Whether outputs are a product with the cells' values."""
        return self.weights.projection is not None

    @property
    def slices(self) -> int:
        """Slices of shared memory that a step takes."""
        rooms = len(self.gates) + len(self.places.states) - 1 + self.projects
        return slices_of(self.cells) * rooms + slices_of(self.outputs)


def run_cell(
    low: Lowering, places: CellOperands, steps: Steps, write: Callable[[Builder], WriteView]
) -> None:
    """Dispatch a cell that goes through time, with its states in variables. ``write`` gives where
    the outputs go, [rows, outputs]."""
    own = NodeCell.of(low.node, places)
    products = [InputProduct(0, own.of_gates(own.weights.weights))]
    more = [low.node.optional_input(i) for i in places.second_weights]
    extra = [np.asarray(v.data) for v in more if v is not None]
    if extra and places.second is not None:
        products.append(InputProduct(places.second, extra))
    biases = None if own.normalised else own.of_gates(own.weights.biases)
    name = "lstm_steps" if len(places.states) > 1 else "rnn_steps"
    CellLoop(low, own, steps, input_sums(low, products, biases), write, name).build()


class CellLoop:
    """The kernel that goes through time, of a cell on real numbers."""

    scalar = Scalar.F32

    def __init__(
        self,
        low: Lowering,
        own: NodeCell,
        steps: Steps,
        sums: Temp,
        write: Callable[[Builder], WriteView],
        name: str,
    ) -> None:
        self.low, self.own, self.steps, self.cell = low, own, steps, low.attrs.cell
        self.cells, self.outputs = slices_of(own.cells), slices_of(own.outputs)
        self.columns = len(own.gates) * self.cells
        k = self.k = low.kernel(name, (members(low.caps, self.columns), 1, 1))
        self.sums = low.read_temp(k, sums, "sums")
        self.out = write(k)
        self.team = Team.of(k)
        vector = type_of(self.scalar, 4)
        self.hidden = k.shared("hidden", vector, self.outputs)
        self.rooms = [(own.places.states[0], self.hidden, self.outputs)]
        if len(own.places.states) > 1:
            self.cell_room = k.shared("cells", vector, self.cells)
            self.rooms.append((own.places.states[1], self.cell_room, self.cells))
        self.gates = k.shared("gates", vector, self.columns)
        self.values = k.shared("values", vector, self.cells) if own.projects else self.hidden
        matrices, numbers = Sections(), Sections()
        self.pack(matrices, numbers)
        self.starts = matrices.starts | numbers.starts
        self.matrices = matrices.buffer(low, k, "matrices", self.storage)
        if numbers.starts:
            self.numbers = numbers.buffer(low, k, "numbers", self.scalar)

    #: How matrices are stored; None as the precision has it.
    storage: Scalar | None = None

    def pack(self, matrices: Sections, numbers: Sections) -> None:
        """Put together the constants."""
        own = self.own.weights
        matrices.add("recurrent", pack_matrices(self.own.recurrent))
        sets = [("peephole", own.peepholes), ("norm", own.norms)]
        sets += [("bias", own.biases)] if self.own.normalised else []
        for name, vectors in sets:
            for gate, data in enumerate(vectors):
                if data is not None:
                    numbers.add(f"{name}{gate}", pack_vectors([data]))
        if own.projection is not None:
            matrices.add("projection", pack_matrices([own.projection]))
            if own.projection_bias is not None:
                numbers.add("projection_bias", pack_vectors([own.projection_bias]))

    def vector(self, name: str, c: Expr) -> Expr:
        """A slice of a vector that was packed."""
        return self.k.load(self.numbers, c + self.starts[name])

    def build(self) -> None:
        """All statements."""
        k, low, team = self.k, self.low, self.team
        for index, room, slices in self.rooms:
            old = low.read_value(k, low.node.input(index), "old")
            with team.share(slices, "c") as c:
                k.store_shared(room, c, k.cast(old.load(team.sequence, c), self.scalar))
        k.barrier()
        with k.loop(0, self.steps.times, name="time") as time:
            self._step(self.steps.row(k, team.sequence, time))
        for index, room, slices in self.rooms:
            new = low.new_state(k, index)
            with team.share(slices, "c") as c:
                new.store(team.sequence, c, k.load_shared(room, c))
        low.dispatch_groups(k, (self.steps.batch, 1, 1))

    def _step(self, row: Expr) -> None:
        k, team, normalised = self.k, self.team, self.own.normalised
        load = self.reading(self.hidden, self.outputs)
        with team.share(self.columns, "column") as column:
            self._add_up(row, column, load)
        k.barrier()
        if len(self.rooms) > 1:
            with team.share(self.cells, "c") as c:
                self._renew(c)
                if not normalised:
                    self._show(row, c)
        if len(self.rooms) == 1 or normalised:
            if normalised:
                k.barrier()
            with team.share(self.cells, "c") as c:
                self._show(row, c)
        k.barrier()
        if self.own.projects:
            self._project(row)
            k.barrier()

    def _add_up(self, row: Expr, column: Expr, load: Callable[[Expr], Expr]) -> None:
        """A slice of a gate's sums."""
        k = self.k
        total = self.gate_sums(row, column, load)
        for place, gate in enumerate(self.own.gates):
            if f"peephole{gate}" in self.starts and gate != OUTPUT_GATE:  # which sees the new cells
                c = k.let(column - place * self.cells, "c")
                with k.if_((c >= 0) & (c < self.cells)):
                    old = k.load_shared(self.cell_room, c)
                    k.set(total, self.with_cells(gate, total, old, c))
        k.store_shared(self.gates, column, total)

    def _renew(self, c: Expr) -> None:
        """The new cells of a slice, and the output gate's sums where those need them."""
        k, limit = self.k, self.cell.cell_clip
        forget = k.let(self.sigmoid(self._gate(FORGET_GATE, c)), "forget")
        if INPUT_GATE in self.own.gates:
            admit = k.let(self.sigmoid(self._gate(INPUT_GATE, c)), "admit")
        else:
            admit = k.let(self.everything - forget, "admit")
        content = self.content(self._gate(NEW_CONTENT, c))
        new = k.let(self.renewed(forget, k.load_shared(self.cell_room, c), admit, content), "new")
        new = new if limit <= 0 else k.clamp(new, -limit, limit)
        new = k.let(self.padded(new, c, self.own.cells), "cell")
        k.store_shared(self.cell_room, c, new)
        if f"peephole{OUTPUT_GATE}" in self.starts:
            at = k.let(c + self.own.gates.index(OUTPUT_GATE) * self.cells, "at")
            sums = k.load_shared(self.gates, at)
            k.store_shared(self.gates, at, self.with_cells(OUTPUT_GATE, sums, new, c))

    def _show(self, row: Expr, c: Expr) -> None:
        """Write what the cells of a slice put out: the outputs, if there is no projection."""
        k = self.k
        if len(self.rooms) > 1:
            cells = k.let(k.load_shared(self.cell_room, c), "cell")
            value = self.shown(self._gate(OUTPUT_GATE, c), cells)
        else:
            value = self.content(self._gate(0, c))
        value = k.let(self.padded(value, c, self.own.cells), "value")
        k.store_shared(self.values, c, value)
        if not self.own.projects:
            self.out.store(row, c, value)

    def _project(self, row: Expr) -> None:
        k, limit = self.k, self.cell.projection_clip
        load = self.reading(self.values, self.cells)
        with self.team.share(self.outputs, "c") as c:
            no_bias = "projection_bias" not in self.starts
            bias = self.k.f32(0.0, 4) if no_bias else self.vector("projection_bias", c)
            total = k.var(bias, "total")
            multiply(
                k,
                total,
                load,
                self.cells,
                self.matrices,
                c,
                self.outputs,
                self.starts["projection"],
            )
            value = self.projected(total)
            value = value if limit <= 0 else k.clamp(value, -limit, limit)
            value = k.let(self.padded(value, c, self.own.outputs), "value")
            k.store_shared(self.hidden, c, value)
            self.out.store(row, c, value)

    def _gate(self, gate: int, c: Expr) -> Expr:
        """A slice of a gate before its function, normalised where it has a layer norm."""
        k = self.k
        first = self.own.gates.index(gate) * self.cells
        total = k.let(k.load_shared(self.gates, c + first), "gate")
        if self.own.weights.norms[gate] is None:
            return total
        size = float(self.own.cells)
        mean = self._over(lambda at: k.load_shared(self.gates, at + first)) / size
        mean = k.let(mean, "mean")

        def square(at: Expr) -> Expr:
            off = k.let(k.load_shared(self.gates, at + first) - mean, "off")
            off = k.let(self.padded(off, at, self.own.cells), "off")
            return off * off

        variance = self._over(square) / size
        scale = k.let(k.f32(1.0) / k.call("sqrt", variance + _EPSILON), "scale")
        normal = (total - mean) * scale
        return normal * self.vector(f"norm{gate}", c) + self.vector(f"bias{gate}", c)

    def _over(self, part: Callable[[Expr], Expr]) -> Expr:
        """The sum of all lanes of all slices of a gate."""
        k = self.k
        total = k.var(k.f32(0.0, 4), "sum")
        with k.loop(0, self.cells, name="at") as at:
            k.add_to(total, part(at))
        return k.dot(total, k.f32(1.0, 4))

    # What depends on the numbers

    def reading(self, room: Any, slices: int) -> Callable[[Expr], Expr]:
        """How weights see a vector in shared memory, by slices."""
        return seen(self.k, room, slices, self.cell.rounding if self.cell.rounds else None)

    def gate_sums(self, row: Expr, column: Expr, load: Callable[[Expr], Expr]) -> Variable:
        """A slice of a gate's sums without peepholes, a variable."""
        total = self.k.var(self.sums.load(row, column), "total")
        multiply(self.k, total, load, self.outputs, self.matrices, column, self.columns)
        return total

    def with_cells(self, gate: int, total: Expr, cells: Expr, c: Expr) -> Expr:
        """A slice of a gate that sees the cells."""
        return self.k.fma(cells, self.vector(f"peephole{gate}", c), total)

    @property
    def everything(self) -> Expr:
        """The value of an open gate."""
        return self.k.f32(1.0, 4)

    def sigmoid(self, gate: Expr) -> Expr:
        """The value of a gate."""
        return logistic(self.k, gate)

    def content(self, gate: Expr) -> Expr:
        """The new content."""
        return activate(self.k, self.cell.activation, self.k.let(gate, "sum"))

    def renewed(self, forget: Expr, cells: Expr, admit: Expr, content: Expr) -> Expr:
        """The new cells."""
        return forget * cells + admit * content

    def shown(self, gate: Expr, cells: Expr) -> Expr:
        """The cells' output, by the output gate."""
        return self.sigmoid(gate) * activate(self.k, self.cell.activation, cells)

    def projected(self, total: Expr) -> Expr:
        """A slice of outputs, of its sums."""
        return total

    def padded(self, value: Expr, slice_: Expr, size: int) -> Expr:
        """A slice of a vector of ``size`` numbers, with zeros behind them."""
        return without_padding(self.k, value, slice_, size)


def run_directions(low: Lowering, ways: Sequence[CellOperands]) -> None:
    """Dispatch a cell for each direction, and one more that puts their outputs beside each other
    where they are one result: a slice of four may have outputs of both."""
    shape, attributes = low.node.input(0).shape, low.attrs
    batch, times = sizes_of(shape, attributes.time_major)
    rows = math.prod(shape[:-1])
    apart: list[Temp] = []
    if attributes.merged and len(ways) > 1:
        units = [low.node.input(places.states[0]).shape[1] for places in ways]
        apart = [low.temp((rows, size), Scalar.F32) for size in units]
    for index, places in enumerate(ways):
        write: Callable[[Builder], WriteView] = partial(low.write, index=index)
        if apart:
            write = partial(low.write_temp, temp=apart[index])
        time_major = attributes.time_major and len(shape) > 2
        run_cell(low, places, Steps(batch, times, time_major, backward=index > 0), write)
    if apart:
        _merge(low, apart, rows)


def _merge(low: Lowering, apart: Sequence[Temp], rows: int) -> None:
    k = low.kernel("merge_directions")
    first, second = (
        low.read_temp(k, temp, name)
        for temp, name in zip(apart, ("forward", "backward"), strict=True)
    )
    out = low.write(k)
    with each_vector(low, k, out) as (row, slice_):
        out.store(row, slice_, side_by_side(k, first, second, row, slice_))
