"""Products with few rows: a team of invocations per output slice.

A fully connected layer at batch 1 reads every weight once, so it is bound by memory traffic; what
counts is that the whole machine has reads under way at all times. Neighbours of a team read what
lies side by side, each begins several loads before it needs the first, and the team adds up at the
end, in a fixed order. What comes between a tensor and the product, a normalization of its rows or
their rounding to 8 bits, every workgroup does for itself (`tflgpu.lowering.row_change`). Rows that
are only normalized are multiplied as they are: a sum is divided by the root mean square at its end.
Rows that are rounded to whole numbers meet 8-bit weights as such, and these sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from tflgpu.ir.graph import Node
from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias
from tflgpu.kernels.staged_row import RowShape, StagedRow, gamma_at, rms_factor
from tflgpu.kernels.stored_weights import RowForm, RowWeights, StoredWeights
from tflgpu.kernels.team import Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import F32x4, Scalar, type_of
from tflgpu.language.variables import Variable
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.row_change import RowSource, rows_of
from tflgpu.lowering.rule import Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import WriteView
from tflgpu.lowering.weights import Weights

#: Vectors of a row that an invocation may have in registers.
_MOST_VECTORS = 16
#: So many products of two bytes, and of a byte and 255 steps, stay below 2^31.
_MOST_WHOLE = 1 << 16


@attrs.frozen
class RowCut:
    """Output slices of a workgroup, invocations of each, and units that one loads before it needs
    the first."""

    columns: int
    lanes: int
    unroll: int

    def others(self, units: int) -> list[RowCut]:
        """This one, and then others that have as many invocations."""
        sides = [(self.columns, self.lanes)]
        sides += [(self.columns * n, self.lanes // n) for n in (2, 4) if self.lanes >= n]
        if self.columns > 1 and self.lanes * 2 <= units:
            sides.append((self.columns // 2, self.lanes * 2))
        unrolls = dict.fromkeys((self.unroll, self.unroll * 2, max(1, self.unroll // 2)))
        return [RowCut(columns, lanes, n) for columns, lanes in sides for n in unrolls]


@attrs.frozen
class RowPlan:
    """How a kernel divides a product.

    Attributes:
        teams: A team for each output slice of a workgroup.
        rows: How the workgroup holds rows that it makes itself.
        unroll: Units that an invocation loads before it needs the first.
    """

    teams: Teams
    rows: RowShape
    unroll: int

    @classmethod
    def of(
        cls, caps: DeviceCaps, form: RowForm, *, whole: bool, choose: Choose = predicted
    ) -> RowPlan:
        """The division for a device; ``choose`` knows what was measured."""
        model = tuning_of(caps).few
        most = min(model.workgroup, caps.max_workgroup, caps.max_workgroup_size[0])
        lanes = 1
        while lanes * 2 <= min(model.lanes, most) and lanes < form.units:
            lanes *= 2
        columns = 1
        while columns * 2 <= min(model.columns, most // lanes) and columns < form.slices:
            columns *= 2
        unroll = max(1, model.nbytes // (64 if form.bits else 32))  # of four outputs
        cuts = RowCut(columns, lanes, unroll).others(form.units)
        cut = choose("few_rows", (form.slices, form.units, int(whole)), cuts, cuts.index)
        teams = Teams.of(caps, cut.columns, cut.lanes, lanes_first=True)
        whole_group = Teams.of(caps, 1, columns * lanes, lanes_first=True)
        if whole_group.near > cut.lanes:
            whole_group = attrs.evolve(whole_group, near=1)
        return cls(teams, RowShape(whole_group, form.units, form.unit, whole), cut.unroll)


def takes_rows(node: Node, site: Site) -> int:
    """How long the rows are that the kernel of a FULLY_CONNECTED can make itself; 0 where it
    cannot."""
    outputs, length = node.input(1).shape
    stored = StoredWeights.on(site.caps, Weights(node.contents(1), taps=1))
    form = RowForm.of(stored, -(-length // 4), -(-outputs // 4))
    rows = RowPlan.of(site.caps, form, whole=form.bits == 8).rows
    shared = rows.units * rows.parts * 16 * (node.input(0).elements // length)
    fits = rows.rounds * rows.unit <= _MOST_VECTORS and shared <= site.caps.shared_bytes * 3 // 4
    return length if fits else 0


def build_gemv(low: Lowering, problem: Problem, name: str) -> None:
    """Write the kernel of a product with few rows and dispatch it."""
    stored = StoredWeights.on(low.caps, problem.weights)
    form = RowForm.of(stored, problem.depth, problem.slices)
    rows = rows_of(low)
    whole = form.bits == 8 and rows.change.rounding is not None and problem.depth * 4 <= _MOST_WHOLE
    plan = RowPlan.of(low.caps, form, whole=whole, choose=low.choose)
    k = low.kernel(name, plan.teams.workgroup)
    source, weights = rows.bind(low, k), form.bind(low, k, stored)
    product, bias = bind_bias(low, k, problem, stored)
    out = low.write(k)
    low.body(k, _write, product, plan, source, weights, bias, out)
    low.dispatch_groups(k, (-(-problem.slices // plan.teams.columns), 1, 1))


def _write(
    k: Builder,
    problem: MatrixProduct,
    plan: RowPlan,
    source: RowSource,
    weights: RowWeights,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    at = plan.teams.member(k)
    column = k.let(k.group_id(0) * plan.teams.columns + at.column, "slice")
    # Invocations past the last column repeat it: they must reach the barriers too.
    safe = k.let(k.min(column, problem.slices - 1), "safe")
    lanes, units = plan.teams.lanes, weights.form.units
    rows = _Rows(k, problem, plan, source, k.let(at.column * lanes + at.lane, "invocation"))
    sums = _Sums(k, rows, weights, safe)
    rounds = units // lanes // plan.unroll
    if rounds > 1:
        with k.loop(0, rounds, name="round") as i:
            start = k.let(i * (plan.unroll * lanes) + at.lane, "start")
            sums.add([start + j * lanes for j in range(plan.unroll)])
    done = rounds * plan.unroll if rounds > 1 else 0
    sums.add([at.lane + i * lanes for i in range(done, -(-units // lanes))], units % lanes > 0)
    found = [*sums.all, *rows.squares]
    rooms = [at.shared(each.type) for each in found]
    at.combine(rooms, found, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
    with k.if_(at.lane.eq(0) & (column < problem.slices)):
        end = problem.end(k, bias, column)
        for row in range(problem.pixels):
            out.store(k.i32(row), problem.first + column, end(sums.total(row)))


class _Rows:
    """The rows of the input, as they are in memory or as the workgroup made them.

    Attributes:
        staged: The rows that are in shared memory.
        squares: Where sums are divided at their end by the root mean square of a row: what each
            invocation has of its squares.
    """

    def __init__(
        self, k: Builder, problem: MatrixProduct, plan: RowPlan, source: RowSource, lane: Expr
    ) -> None:
        self._k, self._source, self.shape = k, source, plan.rows
        self.numbers = range(problem.pixels)
        self._gathers = [problem.gather(k, source.view, k.i32(row)) for row in self.numbers]
        self.staged: list[StagedRow] = []
        self.squares: list[Variable] = []
        if source.change.rounding is not None:
            self.staged = [StagedRow(k, lane, plan.rows, at, source) for at in self._gathers]
            k.barrier()
        elif source.change.epsilon is not None:
            self.squares = [k.var(k.f32(0.0), "squares") for _ in self.numbers]

    def unit(self, unit: Expr) -> list[list[Expr]]:
        """Of each row what meets a unit of weights: vectors, or words of four bytes; to be asked
        for once."""
        k, source = self._k, self._source
        if self.staged:
            return [row.unit(k.min(unit, self.shape.units - 1)) for row in self.staged]
        places = [k.let(unit * self.shape.unit + i, "q") for i in range(self.shape.unit)]
        found = [[k.let(gather(q), "x") for q in places] for gather in self._gathers]
        for vectors, total in zip(found, self.squares, strict=False):
            for x in vectors:
                k.add_to(total, k.dot(x, x))
        if source.gamma is None:
            return found
        gammas = [gamma_at(k, source.gamma, q) for q in places]
        return [[k.let(x * g, "x") for x, g in zip(xs, gammas, strict=True)] for xs in found]

    def end(self, row: int, total: Expr) -> Expr:
        """A sum of products with a row as the workgroup has it, of products with the row."""
        if not self.squares:
            return total
        return total * rms_factor(self._k, self.squares[row], self._source)


class _Sums:
    """The sums of a slice, an output in each lane.

    Attributes:
        all: What the members of a team add up.
    """

    def __init__(self, k: Builder, rows: _Rows, weights: RowWeights, column: Expr) -> None:
        self._k, self._rows, self._weights, self._column = k, rows, weights, column
        zero = k.const(0, type_of(Scalar.I32, 4) if rows.shape.whole else F32x4)
        self._sums = [k.var(zero, "acc") for _ in rows.numbers]
        # Of the weights alone, for rows in which another step than 0 stands for 0.
        shifted = rows.shape.whole and rows.staged[0].over.zero is not None
        self._ones = k.var(zero, "ones") if shifted else None
        self.all = [*self._sums, *([] if self._ones is None else [self._ones])]

    def add(self, units: Sequence[Expr], ends: bool = False) -> None:
        """Add the products of units, all of which are loaded first. Where they are the last, some
        invocations have one less."""
        k, weights, count = self._k, self._weights, self._weights.form.units
        named = [k.let(unit, "unit") for unit in units]
        safe = [*named[:-1], k.let(k.min(named[-1], count - 1), "safe")] if ends else named
        loaded = [weights.unit(k, self._column, unit) for unit in safe]
        if ends:
            inside = k.let(named[-1] < count, "inside")
            zero = k.const(0, loaded[-1][0].type)
            loaded[-1] = [k.let(k.select(inside, w, zero), "w") for w in loaded[-1]]
        given = [self._rows.unit(unit) for unit in named]
        for unit, stored, rows in zip(named, loaded, given, strict=True):
            if self._rows.shape.whole:
                for (words,), total in zip(rows, self._sums, strict=True):
                    k.add_to(total, weights.dots(k, stored, words))
                if self._ones is not None:
                    k.add_to(self._ones, weights.dots(k, stored, None))
            else:
                self._add_reals(unit, stored, rows)

    def _add_reals(self, unit: Expr, stored: Sequence[Expr], rows: list[list[Expr]]) -> None:
        k, weights, width = self._k, self._weights, self._rows.shape.unit
        for i in range(width):
            found = [k.let(each, "w") for each in weights.reals(k, stored, i)]
            scale = weights.scale(k, self._column, unit * width + i)
            for vectors, total in zip(rows, self._sums, strict=True):
                term = k.vec([k.dot(vectors[i], each) for each in found])
                k.add_to(total, term if scale is None else term * scale)

    def total(self, row: int) -> Expr:
        """The sums of a row, as real numbers."""
        k = self._k
        total: Expr = self._sums[row].read()
        if not self._rows.shape.whole:
            return self._rows.end(row, total)
        over = self._rows.staged[row].over
        if over.zero is not None and self._ones is not None:
            total = total - k.cast(over.zero, Scalar.I32) * self._ones
        # A row with NaN or an infinity is NaN all over.
        scale = k.select(over.scale < math.inf, over.scale, math.nan)
        return k.let(k.cast(k.let(total, "total"), Scalar.F32) * scale, "real")
