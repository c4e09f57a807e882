"""A row that a workgroup normalizes and rounds in its registers and puts into shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from tflgpu.kernels.domain import horizontal
from tflgpu.kernels.quantize_on_the_fly import RoundingOver
from tflgpu.kernels.team import Member, Teams
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import F32, U32, F32x4, Scalar
from tflgpu.lowering.row_change import RowChange, RowSource
from tflgpu.lowering.view import ReadView
from tflgpu.values import frozen

#: A small whole number plus this has its lowest bits as an i32 has them.
_WHOLE = 1.5 * 2**23


@frozen
class RowShape:
    """How a workgroup holds a row.

    Attributes:
        teams: All invocations of the workgroup as one team.
        units: What meets a unit of weights, each.
        unit: Vectors of one.
        bits: Of a weight where whole numbers are shared, as words of four bytes; 0: real ones are.
    """

    teams: Teams
    units: int
    unit: int
    bits: int


class StagedRow:
    """A row in shared memory, once the workgroup has passed a barrier.

    Attributes:
        over: How it was rounded.
    """

    def __init__(
        self,
        k: Builder,
        lane: Expr,
        shape: RowShape,
        load: Callable[[Expr], Expr],
        source: RowSource,
        meanwhile: Callable[[], None],
    ) -> None:
        """Make it: ``load`` gives the vector of a place in it, and zeros past its end, which change
        no sum of squares, nor a range that has a 0. ``meanwhile`` begins what may take longer than
        these loads, and what is made of them does not wait for."""
        assert source.change.rounding is not None
        self._k, self._shape = k, shape
        # Vectors of which an invocation makes as many words.
        size = 2 if shape.bits == 4 else 1
        count = shape.units * shape.unit // size
        rounds = -(-count // shape.teams.lanes)
        groups = [k.let(lane + i * shape.teams.lanes, "group") for i in range(rounds)]
        places = [k.let(each * size + j, "q") for each in groups for j in range(size)]
        vectors = [k.let(load(q), "x") for q in places]
        meanwhile()
        combine = partial(self._combine, Member(k, shape.teams, k.i32(0), lane))
        if source.change.epsilon is None:
            ends = combine(self._ends(vectors), (k.min, k.max))
        else:
            square = k.dot(vectors[0], vectors[0])
            for x in vectors[1:]:
                square = square + k.dot(x, x)
            # Factors are positive and rounding keeps order, so that ends are still ends then.
            early = self._ends(vectors) if source.gamma is None else []
            square, *ends = combine([square, *early], (_sum, k.min, k.max))
            factor = k.let(rms_factor(k, square, source), "factor")
            vectors = [k.let(x * factor, "normal") for x in vectors]
            ends = [k.let(end * factor, "end") for end in ends]
            if source.gamma is not None:
                gammas = [gamma_at(k, source.gamma, q) for q in places]
                vectors = [k.let(x * g, "x") for x, g in zip(vectors, gammas, strict=True)]
                ends = combine(self._ends(vectors), (k.min, k.max))
        self.over = RoundingOver(k, source.change.rounding, *ends)
        rounded = self.over.step if shape.bits else self.over.of
        vectors = [k.let(rounded(x), "x") for x in vectors]
        self._shared = k.shared("row", U32 if shape.bits else F32x4, shape.units * shape.unit)
        vectors = self._words(vectors) if shape.bits else vectors
        # Neighbours read what meets neighbouring units, which lies side by side.
        places = [q % shape.unit * shape.units + q // shape.unit for q in places]
        for i, each in enumerate(groups):
            with k.if_(each < count):
                for j in range(i * size, (i + 1) * size):
                    k.store_shared(self._shared, places[j], vectors[j])

    def unit(self, unit: Expr) -> list[Expr]:
        """What meets a unit of weights: vectors, or as many words."""
        k, places = self._k, [unit + j * self._shape.units for j in range(self._shape.unit)]
        return [k.let(k.load_shared(self._shared, at), "x") for at in places]

    def _ends(self, vectors: Sequence[Expr]) -> list[Expr]:
        """The least and the largest, as whole numbers: their extremes are an instruction each."""
        k = self._k
        keys = [k.let(_key(k.let(k.bitcast(x, Scalar.I32), "bits")), "key") for x in vectors]
        return [horizontal(k, reduce(of, keys), of) for of in (k.min, k.max)]

    def _combine(
        self,
        member: Member,
        values: Sequence[Expr],
        merges: Sequence[Callable[[Expr, Expr], Expr]],
    ) -> list[Expr]:
        """What all invocations have, merged."""
        k = self._k
        found = [k.var(value, "found") for value in values]
        member.combine(
            [member.shared(each.type, "room") for each in found],
            found,
            lambda a, b: [of(x, y) for of, x, y in zip(merges, a, b, strict=False)],
            everywhere=True,
            again=False,
        )
        numbers = [
            each if each.type == F32 else k.bitcast(_key(k.let(each, "key")), Scalar.F32)
            for each in found
        ]
        return [k.let(each, "found") for each in numbers]

    def _words(self, vectors: Sequence[Expr]) -> list[Expr]:
        """Whole numbers as words of four bytes; of two vectors for weights of 4 bits one has the
        numbers at even places, the other those at odd ones."""
        k, words = self._k, []
        if self._shape.bits == 4:
            both = [(*a.lanes, *b.lanes) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
            vectors = [k.let(k.vec(lanes[i::2]), "x") for lanes in both for i in range(2)]
        for vector in vectors:
            numbers = k.let(k.bitcast(vector + _WHOLE, Scalar.U32) & 255, "numbers")
            a, b, c, d = numbers.lanes
            words.append(k.let(a | (b << 8) | (c << 16) | (d << 24), "word"))
        return words


def _sum(a: Expr, b: Expr) -> Expr:
    return a + b


def _key(bits: Expr) -> Expr:
    """A whole number for the bits of an f32, in the order of these, with NaN at the ends; and the
    bits for such a number."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def rms_factor(k: Builder, squares: Expr, source: RowSource) -> Expr:
    """One by the root mean square of a row, from the sum of its squares."""
    assert source.change.epsilon is not None
    return k.call("rsqrt", squares * (1.0 / source.change.length) + source.change.epsilon)


def about_of(k: Builder, vector: Expr) -> Expr:
    """What the numbers of a row that begins with a vector are made less by before they, and their
    squares, are added up: the mean of four of them, so that sums lose little where the mean of all
    is large. The square of its distance from that is at most the row's length times the
    variance."""
    return k.dot(vector, k.f32(0.25, 4))


def moments_of(k: Builder, sums: Expr, squares: Expr, change: RowChange) -> tuple[Expr, Expr]:
    """The mean of a row, and one by the root of its variance, from sums of its numbers and of their
    squares, where all numbers are less by `about_of` than they are."""
    assert change.epsilon is not None
    mean = k.let(sums / float(change.length), "mean")
    variance = k.let(squares / float(change.length) - mean * mean, "variance")
    # Rounded, it may be less than zero; what is no number stays so.
    variance = k.select(variance < 0.0, k.f32(0.0), variance)
    return mean, k.let(k.call("rsqrt", variance + change.epsilon), "scale")


def gamma_at(k: Builder, gamma: ReadView, q: Expr) -> Expr:
    """The numbers that a vector of a normalized row is multiplied by, as f32."""
    return k.let(k.cast(gamma.load(0, k.min(q, gamma.slices - 1)), Scalar.F32), "gamma")
