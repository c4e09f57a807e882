"""Products with few rows: a team of invocations per output slice.

A fully connected layer at batch 1 reads every weight once, so it is bound by memory traffic; what
counts is that the whole machine has reads under way at all times. Neighbours of a team read what
lies side by side, each begins several loads before it needs the first, and the team adds up at the
end, in a fixed order. What comes between a tensor and the product, a normalization of its rows or
their rounding to 8 bits, every workgroup does for itself (`tflgpu.lowering.row_change`). Rows that
are only normalized are multiplied as they are: a sum is divided by the root mean square at its end.
Rows that are rounded to whole numbers meet weights of 8 bits, and of 4 in blocks, as such, and the
sums of an output's, or of a block's unit, are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from tflgpu.ir.graph import Node
from tflgpu.kernels.gemm import (
    MatrixProduct,
    Problem,
    bind_bias,
    gather_by_slice,
    with_column_sums,
)
from tflgpu.kernels.staged_row import (
    RowShape,
    StagedRow,
    about_of,
    gamma_at,
    moments_of,
    rms_factor,
)
from tflgpu.kernels.stored_weights import RowForm, RowWeights, StoredWeights
from tflgpu.kernels.team import ADD, Teams
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import F32x4, Scalar, type_of
from tflgpu.language.variables import Variable
from tflgpu.lowering.choices import Choose, predicted
from tflgpu.lowering.inlined import Beside
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.row_change import RowChange, RowSource, rows_of
from tflgpu.lowering.rule import Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import WriteView
from tflgpu.lowering.weights import Weights
from tflgpu.values import evolve, frozen

#: So many products of two bytes, and of a byte and 255 steps, stay below 2^31.
_MOST_WHOLE = 1 << 16
#: Of so many rows a workgroup may make several products together, and round rows itself.
_FEW_ROWS = 2
#: A unit's place, and its weights of each product.
_Begun = tuple[Expr, tuple[list[Expr], ...]]


@frozen
class RowCut:
    """Output slices of a workgroup, invocations of each, and units that one loads before it needs
    the first."""

    columns: int
    lanes: int
    unroll: int

    def others(self, units: int) -> list[RowCut]:
        """This one, and then others that have as many invocations."""
        sides = [(self.columns * n, self.lanes // n) for n in (1, 2, 4) if self.lanes >= n]
        if self.columns > 1 and self.lanes * 2 <= units:
            sides.append((self.columns // 2, self.lanes * 2))
        unrolls = dict.fromkeys((self.unroll, self.unroll * 2, max(1, self.unroll // 2)))
        return [RowCut(columns, lanes, n) for columns, lanes in sides for n in unrolls]


@frozen
class RowPlan:
    """How a kernel divides a product.

    Attributes:
        teams: A team for each output slice of a workgroup.
        rows: How the workgroup holds rows that it makes itself.
        unroll: Units that an invocation loads before it needs the first.
        each: Rows of a workgroup: all, unless there are fewer workgroups then than processors.
    """

    teams: Teams
    rows: RowShape
    unroll: int
    each: int

    @classmethod
    def of(
        cls,
        caps: DeviceCaps,
        form: RowForm,
        *,
        whole: bool,
        products: int = 1,
        rows: int = 1,
        choose: Choose = predicted,
    ) -> RowPlan:
        """The division for a device of so many products of this form, with so many rows;
        ``choose`` knows what was measured."""
        model = tuning_of(caps).few
        most = min(model.workgroup, caps.max_workgroup, caps.max_workgroup_size[0])
        lanes = _power(min(model.lanes, most), form.units)
        columns = _power(min(model.columns, most // lanes), form.slices)
        unroll = max(1, model.nbytes // (64 if form.bits else 32))  # of four outputs
        cuts = RowCut(columns, lanes, unroll).others(form.units)
        cut = choose("few_rows", (form.slices, form.units, int(whole), products), cuts, cuts.index)
        teams = Teams.of(caps, cut.columns, cut.lanes, lanes_first=True)
        whole_group = Teams.of(caps, 1, cut.columns * cut.lanes, lanes_first=True)
        if whole_group.near > cut.lanes:
            whole_group = evolve(whole_group, near=1)
        groups = -(-form.slices // cut.columns)
        shares = [n for n in range(1, rows) if rows % n == 0 and groups * n >= caps.compute_units]
        each = rows // min(shares, default=rows)
        shape = RowShape(whole_group, form.units, form.unit, form.bits * whole)
        return cls(teams, shape, cut.unroll, each)


def _power(most: int, enough: int) -> int:
    """The largest power of two up to ``most``, or the least one from ``enough`` on."""
    return 1 << min(most.bit_length() - 1, (enough - 1).bit_length())


def takes_rows(node: Node, change: RowChange, site: Site) -> bool:
    """Whether the kernel of a FULLY_CONNECTED can make its rows itself: not where they would take
    too much of a workgroup's memory, nor where it rounds several, which takes it longer than a
    dispatch of its own."""
    few = change.rounding is None or _rows_each(node, site) <= _FEW_ROWS
    fits = few and node.input(0).elements * 4 <= site.caps.shared_bytes * 3 // 4
    if change.centred:  # whose sums need whole vectors, and the sums of weights as they are
        fits = fits and change.length % 4 == 0 and not _form_of(node, site).bits
    return fits and change.length == node.input(1).shape[1]


def beside(node: Node, other: Node, site: Site) -> bool:
    """Whether one kernel can make the products of two nodes."""
    few = _rows_each(node, site) <= _FEW_ROWS
    return few and _form_of(node, site) == _form_of(other, site)


def _rows_each(node: Node, site: Site) -> int:
    form, rows = _form_of(node, site), node.input(0).elements // node.input(1).shape[1]
    return RowPlan.of(site.caps, form, whole=form.is_whole, rows=rows).each


def _form_of(node: Node, site: Site) -> RowForm:
    stored = StoredWeights.on(site.caps, Weights(node.contents(1), taps=1))
    outputs, length = node.input(1).shape
    return RowForm.of(stored, -(-length // 4), -(-outputs // 4))


@frozen
class RowProduct:
    """One of the products of a kernel: with its weights, its bias, and what is done at its end."""

    product: MatrixProduct
    weights: RowWeights
    bias: KernelBuffer
    out: WriteView


def build_gemv(low: Lowering, problem: Problem, name: str) -> None:
    """Write the kernel of a product with few rows and dispatch it."""
    if isinstance(low, Beside):
        low.problem = problem
        return
    stored = StoredWeights.on(low.caps, problem.weights)
    form = RowForm.of(stored, problem.depth, problem.slices)
    rows = rows_of(low)
    rounds = rows.change.rounding is not None and problem.depth * 4 <= _MOST_WHOLE
    whole, count = form.is_whole and rounds, 1 + len(low.beside)
    plan = RowPlan.of(
        low.caps, form, whole=whole, products=count, rows=problem.pixels, choose=low.choose
    )
    k = low.kernel(name, plan.teams.workgroup)
    source = rows.bind(low, k)

    def bound(low: Lowering, problem: Problem) -> RowProduct:
        stored = StoredWeights.on(low.caps, problem.weights)
        weights = form.bind(low, k, stored)
        if rows.change.centred:
            problem = with_column_sums(problem, weights.numbers.scalar.numpy)
        product, bias = bind_bias(low, k, problem, stored)
        return RowProduct(product, weights, bias, low.write(k))

    products = [bound(low, problem)]
    for each in low.beside:
        other = Beside(low, each)
        each.build(other)
        products.append(bound(other, other.problem))
    low.body(k, _write, tuple(products), plan, source)
    groups = -(-problem.slices // plan.teams.columns), problem.pixels // plan.each, 1
    low.dispatch_groups(k, groups)


def _write(k: Builder, products: tuple[RowProduct, ...], plan: RowPlan, source: RowSource) -> None:
    at, problem, form = plan.teams.member(k), products[0].product, products[0].weights.form
    column = k.let(k.group_id(0) * plan.teams.columns + at.column, "slice")
    # Invocations past the last column repeat it: they must reach the barriers too.
    safe = k.let(k.min(column, problem.slices - 1), "safe")
    lanes, units = plan.teams.lanes, form.units
    sums = [_Sums(k, each, plan, safe) for each in products]

    def begin(places: Sequence[Expr], ends: bool = False) -> list[_Begun]:
        units = [k.let(place, "unit") for place in places]
        loaded = [each.begin(units, ends) for each in sums]
        return list(zip(units, zip(*loaded, strict=True), strict=True))

    def end(begun: Sequence[_Begun], rows: _Rows) -> None:
        given = [rows.unit(unit) for unit, _ in begun]
        for (unit, loaded), found in zip(begun, given, strict=True):
            for each, stored in zip(sums, loaded, strict=True):
                each.end(unit, stored, found, rows)

    # Registers hold the units of every product, and what they meet of every row.
    count = -(-units // lanes)
    step = max(1, plan.unroll // max(len(products), plan.each // 2))
    rounds = max(0, units // lanes - step) // step
    first = min(count, step) if rounds else count
    begun: list[_Begun] = []

    def begin_first() -> None:
        if not begun:
            begun.extend(begin([at.lane + i * lanes for i in range(first)], first * lanes > units))

    # Weights are on their way while the workgroup makes its rows.
    invocation = k.let(at.column * lanes + at.lane, "invocation")
    rows = _Rows(k, problem, plan, source, invocation, begin_first)
    end(begun, rows)
    if rounds:
        with k.loop(0, rounds, name="round") as i:
            start = k.let((i + 1) * (step * lanes) + at.lane, "start")
            end(begin([start + j * lanes for j in range(step)]), rows)
    rest = range(first + rounds * step, count)
    end(begin([at.lane + i * lanes for i in rest], units % lanes > 0), rows)
    found = [*(each for one in sums for each in one.all), *rows.squares, *rows.gaps]
    at.combine([at.shared(each.type) for each in found], found, ADD)
    with k.if_(at.lane.eq(0) & (column < problem.slices)):
        for row in range(plan.each):
            results = [
                one.product.end(k, one.bias, column)(each.total(rows, row))
                for one, each in zip(products, sums, strict=True)
            ]
            to = rows.places[row], problem.first + column
            for number, one in enumerate(products[1:]):
                *_, made = one.out.linked(*to, results[number + 1])
                k.made[number] = k.let(made, "made")
            products[0].out.store(*to, results[0])


class _Rows:
    """The rows of the input, as they are in memory or as the workgroup made them.

    Attributes:
        places: Where they lie.
        staged: Those that are in shared memory.
        squares: Where sums are divided at their end by the root mean square of a row: what each
            invocation has of its squares.
        gaps: Where a row is centred, the same of its numbers. All of them are less by `about_of`
            then, in the products too.
    """

    def __init__(
        self,
        k: Builder,
        problem: MatrixProduct,
        plan: RowPlan,
        source: RowSource,
        lane: Expr,
        meanwhile: Callable[[], None],
    ) -> None:
        self._k, self._source, self.shape = k, source, plan.rows
        self.places: list[Expr] = [k.i32(row) for row in range(plan.each)]
        if plan.each < problem.pixels:
            first = k.let(k.group_id(1) * plan.each, "first")
            self.places = [k.let(first + row, "row") for row in self.places]
        self._gathers = [gather_by_slice(problem.loads, k, source.view, row) for row in self.places]
        self.staged: list[StagedRow] = []
        self.squares: list[Variable] = []
        self.gaps: list[Variable] = []
        self._depth = problem.depth
        if source.change.rounding is not None:
            made = partial(StagedRow, k, lane, plan.rows, source=source, meanwhile=meanwhile)
            self.staged = [made(gather) for gather in self._gathers]
            k.barrier()
            return
        meanwhile()
        if source.change.epsilon is not None:
            self.squares = [k.var(k.f32(0.0), "squares") for _ in self.places]
        if source.change.centred:
            self.gaps = [k.var(k.f32(0.0), "gaps") for _ in self.places]
            begins = [k.let(gather(k.i32(0)), "begin") for gather in self._gathers]
            self._about = [k.let(k.splat(about_of(k, each), 4), "about") for each in begins]

    def unit(self, unit: Expr) -> list[list[Expr]]:
        """Of each row what meets a unit of weights: vectors, or words of four bytes; to be asked
        for once."""
        k, source = self._k, self._source
        if self.staged:
            safe = k.let(k.min(unit, self.shape.units - 1), "safe")
            return [row.unit(safe) for row in self.staged]
        places = [k.let(unit * self.shape.unit + i, "q") for i in range(self.shape.unit)]
        found = [[k.let(gather(q), "x") for q in places] for gather in self._gathers]
        if self.gaps:
            found = [
                [self._gap(x, q, row) for x, q in zip(xs, places, strict=True)]
                for row, xs in enumerate(found)
            ]
        for vectors, total in zip(found, self.squares, strict=False):
            for x in vectors:
                k.add_to(total, k.dot(x, x))
        if source.gamma is None:
            return found
        gammas = [gamma_at(k, source.gamma, q) for q in places]
        return [[k.let(x * g, "x") for x, g in zip(xs, gammas, strict=True)] for xs in found]

    def _gap(self, x: Expr, q: Expr, row: int) -> Expr:
        k = self._k
        gap = k.select(q < self._depth, x - self._about[row], k.f32(0.0, 4))
        gap = k.let(gap, "gap")
        k.add_to(self.gaps[row], k.dot(gap, k.f32(1.0, 4)))
        return gap

    def end(self, row: int, total: Expr, one: RowProduct, column: Expr) -> Expr:
        """A sum of products with a row as the workgroup has it, of products with the row."""
        if not self.squares:
            return total
        if self.gaps:
            k, change = self._k, self._source.change
            mean, scale = moments_of(k, self.gaps[row], self.squares[row], change)
            columns = k.load(one.bias, column + one.product.slices)
            return (total - k.splat(mean, 4) * columns) * k.splat(scale, 4)
        return total * rms_factor(self._k, self.squares[row], self._source)


class _Sums:
    """The sums of a slice, an output in each lane.

    Attributes:
        all: A sum for each row, of what an invocation adds up: of whole numbers where all weights
            of an output have one scale.
    """

    def __init__(self, k: Builder, one: RowProduct, plan: RowPlan, column: Expr) -> None:
        whole = plan.rows.bits > 0
        self._k, self._one, self._column, self._whole = k, one, column, whole
        self._weights = one.weights
        in_blocks = one.weights.form.block > 0
        zero = k.const(0, type_of(Scalar.I32, 4) if whole and not in_blocks else F32x4)
        self.all = [k.var(zero, "acc") for _ in range(plan.each)]

    def begin(self, units: Sequence[Expr], ends: bool) -> list[list[Expr]]:
        """Load units, all of them before the first is needed; where the sum ends with them, some
        invocations have one less."""
        k, weights, last = self._k, self._weights, self._weights.form.units - 1
        found = [weights.unit(k, self._column, unit) for unit in units[: -1 if ends else None]]
        if ends and units:
            stored = weights.unit(k, self._column, k.let(k.min(units[-1], last), "safe"))
            inside, zero = k.let(units[-1] <= last, "inside"), k.const(0, stored[0].type)
            found.append([k.let(k.select(inside, each, zero), "w") for each in stored])
        return found

    def end(
        self, unit: Expr, stored: Sequence[Expr], found: Sequence[list[Expr]], rows: _Rows
    ) -> None:
        """Add the products of a unit with what was found of each row."""
        if self._whole:
            self._add_whole(unit, stored, found, rows)
        else:
            self._add_reals(unit, stored, found)

    def _add_whole(
        self, unit: Expr, stored: Sequence[Expr], found: Sequence[list[Expr]], rows: _Rows
    ) -> None:
        k, weights = self._k, self._weights
        words = weights.words(k, stored)
        scale = weights.scale(k, self._column, unit * weights.form.unit)
        shifted = rows.staged[0].over.zero is not None
        ones = k.let(weights.dots(k, words, None), "ones") if shifted else None
        for row, others, total in zip(rows.staged, found, self.all, strict=True):
            term = weights.dots(k, words, others)
            if row.over.zero is not None and ones is not None:
                term = term - k.cast(row.over.zero, Scalar.I32) * ones
            if scale is not None:
                term = k.cast(k.let(term, "term"), Scalar.F32) * scale
            k.add_to(total, term)

    def _add_reals(self, unit: Expr, stored: Sequence[Expr], found: Sequence[list[Expr]]) -> None:
        k, weights, width = self._k, self._weights, self._weights.form.unit
        for i in range(width):
            reals = [k.let(each, "w") for each in weights.reals(k, stored, i)]
            scale = weights.scale(k, self._column, unit * width + i)
            for vectors, total in zip(found, self.all, strict=True):
                term = k.vec([k.dot(vectors[i], each) for each in reals])
                k.add_to(total, term if scale is None else term * scale)

    def total(self, rows: _Rows, row: int) -> Expr:
        """The sums of a row, as real numbers."""
        k, total = self._k, self.all[row]
        if not self._whole:
            return rows.end(row, total.read(), self._one, self._column)
        # A row with NaN or an infinity is NaN all over.
        step, size = rows.staged[row].over.scale, 1 / 16 if self._weights.form.bits == 4 else 1.0
        scale = k.select(step < math.inf, step * size, math.nan)
        return k.let(k.cast(total.read(), Scalar.F32) * scale, "real")
