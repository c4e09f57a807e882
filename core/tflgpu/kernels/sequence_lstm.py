"""LSTM with the full kernel, and the sequence LSTMs: two dispatches a direction, for all steps.

The first makes what the inputs add to the gates (`kernels/recurrent.py`), the second goes through
time. Where gates are normalised their sums are known only once all cells have theirs, so that there
the output gate, which may see the new cells, waits for one barrier more.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.accept import FLOATS, takes
from tflgpu.kernels.activation import activate
from tflgpu.kernels.recurrent import (
    Product,
    Steps,
    Team,
    input_sums,
    members,
    multiply,
    not_constant,
    not_shared,
    pack_matrices,
    pack_vectors,
    seen,
    sigmoid,
    slices_of,
    without_padding,
)
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import WriteView
from tflgpu.ops.base import Activation
from tflgpu.ops.facets import Rounding
from tflgpu.ops.lstm import BasicLstm, SequenceLstm
from tflgpu.ops.lstm_cell import Cell, Places, operand_names, places_of

_EPSILON = 1e-8
_INPUT, _FORGET, _CONTENT, _OUTPUT = range(4)


@attrs.frozen(eq=False)
class Weights:
    """A cell's constants; gates are the three or four that have weights of their own.

    Attributes:
        gates: Which of `_INPUT`, ... there are: without the first it is 1 - forget gate.
        cells, outputs: Sizes.
        peepholes, norms: By gate; empty where there are none.
    """

    node: Node
    places: Places
    gates: tuple[int, ...]
    cells: int
    outputs: int
    peepholes: dict[int, Array]
    norms: dict[int, Array]

    @classmethod
    def of(cls, node: Node, places: Places) -> Weights:
        """Read a node's operands."""

        def find(indices: tuple[int, ...]) -> dict[int, Array]:
            values = [node.optional_input(i) for i in indices]
            return {g: v.data for g, v in enumerate(values) if v is not None and v.data is not None}

        gates = tuple(find(places.weights))
        shape = node.input(places.recurrent[_FORGET]).shape
        cells, outputs = shape[0], shape[-1]
        peepholes = {
            (_INPUT, _FORGET, _OUTPUT)[i]: data for i, data in find(places.peepholes).items()
        }
        return cls(node, places, gates, cells, outputs, peepholes, find(places.norms))

    def matrices(self, indices: tuple[int, ...]) -> list[Array]:
        """One for each gate; a diagonal as what it is of."""
        found = [np.asarray(self.node.const(indices[gate])) for gate in self.gates]
        return [np.diag(m) if m.ndim == 1 else m for m in found]

    @property
    def biases(self) -> list[Array]:
        """One for each gate."""
        return [np.asarray(self.node.const(self.places.biases[gate])) for gate in self.gates]

    @property
    def projects(self) -> bool:
        """Whether outputs are a product with the cells' values."""
        return self.node.optional_input(self.places.projection) is not None

    @property
    def slices(self) -> int:
        """Of shared memory that a step takes."""
        cells = slices_of(self.cells)
        rooms = len(self.gates) + 1 + (1 if self.projects else 0)
        return cells * rooms + slices_of(self.outputs)


def run_cell(
    low: Lowering,
    places: Places,
    cell: Cell,
    steps: Steps,
    write: Callable[[Builder], WriteView],
    products: tuple[Product, ...] = (),
) -> None:
    """Dispatch a cell that goes through time, with its states in variables. ``write`` gives where the
    outputs go, [rows, outputs]; ``products`` are what is added to the gates beside the input's."""
    weights = Weights.of(low.node, places)
    mine = Product(places.input, weights.matrices(places.weights))
    biases = None if weights.norms else weights.biases
    sums = input_sums(low, (mine, *products), biases)
    _Loop(low, weights, cell, steps, sums, write).build()


class _Loop:
    """The kernel that goes through time."""

    def __init__(
        self,
        low: Lowering,
        weights: Weights,
        cell: Cell,
        steps: Steps,
        sums: Temp,
        write: Callable[[Builder], WriteView],
    ) -> None:
        self.low, self.weights, self.cell, self.steps = low, weights, cell, steps
        self.cells = slices_of(weights.cells)
        self.columns = len(weights.gates) * self.cells
        k = self.k = low.kernel("lstm_steps", (members(low.caps, self.columns), 1, 1))
        self.sums = low.read_temp(k, sums, "sums")
        self.out = write(k)
        self.team = Team.of(k)
        self.hidden = self.team.room("hidden", slices_of(weights.outputs))
        self.cell_room = self.team.room("cells", self.cells)
        self.gates = self.team.room("gates", self.columns)
        self.values = self.team.room("values", self.cells) if weights.projects else self.hidden
        # Few buffers, since some devices bind no more than eight: all matrices in one, and vectors.
        places = weights.places
        matrices = [pack_matrices(weights.matrices(places.recurrent)).reshape(-1)]
        vectors = [*weights.peepholes.values(), *weights.norms.values()]
        vectors += weights.biases if weights.norms else []
        packed = [pack_vectors([v]) for v in vectors]
        if weights.projects:
            matrices.append(pack_matrices([low.node.const(places.projection)]).reshape(-1))
            bias = low.node.optional_input(places.projection_bias)
            packed += (
                [] if bias is None else [pack_vectors([low.node.const(places.projection_bias)])]
            )
        self.matrices = low.weights(k, np.concatenate(matrices), "matrices")
        self.projection = matrices[0].size // 4
        starts = iter(range(0, len(packed) * self.cells, self.cells))  # the last one may be shorter
        self.peepholes = dict(zip(weights.peepholes, starts, strict=False))
        self.norms = dict(zip(weights.norms, starts, strict=False))
        self.biases = dict(zip(weights.gates if weights.norms else (), starts, strict=False))
        self.last = next(starts, None)
        if packed:
            self.vectors = low.weights(k, np.concatenate(packed), "vectors", scalar=Scalar.F32)

    def _vector(self, start: int, c: Expr) -> Expr:
        return self.k.load(self.vectors, c + start)

    def build(self) -> None:
        """All statements."""
        k, low, team, weights = self.k, self.low, self.team, self.weights
        places = weights.places
        states = ((places.output_state, self.hidden, weights.outputs),
                  (places.cell_state, self.cell_room, weights.cells))  # fmt: skip
        for index, room, size in states:
            team.fetch(room, low.read_value(k, low.node.input(index), "old"), size)
        k.barrier()
        with k.loop(0, self.steps.times, name="time") as time:
            row = self.steps.row(k, team.sequence, time)
            load = seen(k, self.hidden, slices_of(weights.outputs), self._rounding)
            with team.share(self.columns, "column") as column:
                self._add_up(row, column, load)
            k.barrier()
            with team.share(self.cells, "c") as c:
                self._renew(c)
                if not weights.norms:
                    self._show(row, c)
            if weights.norms:
                k.barrier()
                with team.share(self.cells, "c") as c:
                    self._show(row, c)
            k.barrier()
            if weights.projects:
                self._project(row)
                k.barrier()
        for index, room, size in states:
            team.keep(room, low.new_state(k, index), size)
        low.dispatch_groups(k, (self.steps.batch, 1, 1))

    @property
    def _rounding(self) -> Rounding | None:
        return self.cell.rounding if self.cell.rounds else None

    def _add_up(self, row: Expr, column: Expr, load: Callable[[Expr], Expr]) -> None:
        """A slice of a gate's sums."""
        k, size = self.k, slices_of(self.weights.outputs)
        total = k.var(self.sums.load(row, column), "total")
        multiply(k, total, load, size, self.matrices, column, self.columns)
        for place, gate in enumerate(self.weights.gates):
            if gate in self.peepholes and gate != _OUTPUT:  # which sees the new cells
                c = k.let(column - place * self.cells, "c")
                with k.if_((c >= 0) & (c < self.cells)):
                    old = k.load_shared(self.cell_room, c)
                    k.fma_to(total, old, self._vector(self.peepholes[gate], c))
        k.store_shared(self.gates, column, total)

    def _renew(self, c: Expr) -> None:
        """The new cells of a slice, and the output gate's sums where those need them."""
        k, cell = self.k, self.cell
        forget = k.let(sigmoid(k, self._gate(_FORGET, c)), "forget")
        if _INPUT in self.weights.gates:
            admit = k.let(sigmoid(k, self._gate(_INPUT, c)), "admit")
        else:
            admit = k.let(k.f32(1.0, 4) - forget, "admit")
        content = activate(k, cell.activation, k.let(self._gate(_CONTENT, c), "sum"))
        old = k.load_shared(self.cell_room, c)
        new = k.let(forget * old + admit * content, "new")
        if cell.cell_clip > 0:
            new = k.clamp(new, -cell.cell_clip, cell.cell_clip)
        new = k.let(without_padding(k, new, c, self.weights.cells), "cell")
        k.store_shared(self.cell_room, c, new)
        if _OUTPUT in self.peepholes:
            at = k.let(c + self.weights.gates.index(_OUTPUT) * self.cells, "at")
            sums = k.load_shared(self.gates, at)
            seen = k.fma(new, self._vector(self.peepholes[_OUTPUT], c), sums)
            k.store_shared(self.gates, at, seen)

    def _show(self, row: Expr, c: Expr) -> None:
        """What the cells of a slice let out: the outputs, if there is no projection."""
        k = self.k
        cell = k.let(k.load_shared(self.cell_room, c), "cell")
        value = sigmoid(k, self._gate(_OUTPUT, c)) * activate(k, self.cell.activation, cell)
        value = k.let(without_padding(k, value, c, self.weights.cells), "value")
        k.store_shared(self.values, c, value)
        if not self.weights.projects:
            self.out.store(row, c, value)

    def _project(self, row: Expr) -> None:
        k, outputs = self.k, slices_of(self.weights.outputs)
        limit = self.cell.projection_clip
        load = seen(k, self.values, self.cells, self._rounding)
        with self.team.share(outputs, "c") as c:
            bias = k.f32(0.0, 4) if self.last is None else self._vector(self.last, c)
            total = k.var(bias, "total")
            multiply(k, total, load, self.cells, self.matrices, c, outputs, self.projection)
            value = total if limit <= 0 else k.clamp(total, -limit, limit)
            value = k.let(without_padding(k, value, c, self.weights.outputs), "value")
            k.store_shared(self.hidden, c, value)
            self.out.store(row, c, value)

    def _gate(self, gate: int, c: Expr) -> Expr:
        """A slice of a gate before its function, normalised where that is asked for."""
        k = self.k
        first = self.weights.gates.index(gate) * self.cells
        total = k.let(k.load_shared(self.gates, c + first), "gate")
        if gate not in self.norms:
            return total
        size = float(self.weights.cells)
        mean = self._over(lambda at: k.load_shared(self.gates, at + first)) / size
        mean = k.let(mean, "mean")

        def square(at: Expr) -> Expr:
            off = k.let(k.load_shared(self.gates, at + first) - mean, "off")
            off = k.let(without_padding(k, off, at, self.weights.cells), "off")
            return off * off

        variance = self._over(square) / size
        scale = k.let(k.f32(1.0) / k.call("sqrt", variance + _EPSILON), "scale")
        normal = (total - mean) * scale
        return normal * self._vector(self.norms[gate], c) + self._vector(self.biases[gate], c)

    def _over(self, part: Callable[[Expr], Expr]) -> Expr:
        """The sum of all lanes of all slices of a gate."""
        k = self.k
        total = k.var(k.f32(0.0, 4), "sum")
        with k.loop(0, self.cells, name="at") as at:
            k.add_to(total, part(at))
        return k.dot(total, k.f32(1.0, 4))


def _build(low: Lowering) -> None:
    attributes: Cell | SequenceLstm = low.attrs
    cell: object = attributes
    time_major, times = False, 1
    batch = low.node.input(0).shape[0]
    if isinstance(attributes, SequenceLstm):
        cell, time_major = attributes.cell, attributes.time_major
        first, second = low.node.input(0).shape[:2]
        batch, times = (second, first) if time_major else (first, second)
    assert isinstance(cell, Cell)
    steps = Steps(batch, times, time_major)
    run_cell(low, places_of(len(low.node.inputs)), cell, steps, low.write)


def why_not(node: Node, places: Places, site: Site) -> str | None:
    """Why a cell cannot run on a device, None where it can."""
    names = dict(zip(places.all, operand_names(), strict=False))
    listed = [names.get(i, "weights") for i in range(len(node.inputs))]
    reason = not_constant(node, places.constants, listed)
    if reason is not None:
        return reason
    diagonal = any(
        v is not None and len(v.shape) == 1 for v in map(node.optional_input, places.recurrent)
    )
    cell = getattr(node.attrs, "cell", node.attrs)
    if diagonal and cell.activation is not Activation.TANH:
        return f"{node.op}: an infinity would spread from a diagonal of the recurrent weights"
    for index in (places.output_state, places.cell_state):
        state = node.input(index)
        if len(state.shape) != 2:
            return f"{node.op}: state {state.name} of shape {list(state.shape)} is no matrix"
    return not_shared(node.op, Weights.of(node, places).slices, site)


def _accepts(node: Node, site: Site) -> str | None:
    if isinstance(node.attrs, BasicLstm):
        return "LSTM: the rule is for the full kernel"
    return takes(FLOATS)(node, site) or why_not(node, places_of(len(node.inputs)), site)


# It binds eight buffers, which is all that some devices have: no chain may bring more.
RULES = tuple(
    KernelRule(op, "through time", _build, _accepts, fuses=False, keeps_state=True)
    for op in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
)
