"""Staging for products on matrix tiles: what an invocation loads, and how it lies in shared memory.

An element of shared memory is two f16 vectors, as the bits of u32x4: it is 16 bytes long, and so is
a load, where two vectors lie side by side. Loads of one or more stages are in flight in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Union

from tflgpu.kernels.gemm import MatrixProduct
from tflgpu.kernels.matrix_rows import RowMoments, unpacked
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.kernels.sharing import items, maybe
from tflgpu.kernels.staged_row import about_of
from tflgpu.kernels.stored_weights import WeightReader
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import BOOL, F16x4, Scalar, Type, U32x4
from tflgpu.language.variables import Variable
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.view import PairView, ReadView
from tflgpu.values import frozen

#: What ``low`` is scaled by: f16 has 11 bits.
LOW_SCALE = 2.0**11
#: To round an f32's bits to 11 significant ones: half a unit of the last, and the bits kept.
_HALF_UNIT, _KEPT_BITS = 0x1000, 0xFFFFE000
_SMALLEST_NORMAL = 2.0**-14  # of f16


def halves(k: Builder, x: Expr) -> tuple[Expr, Expr]:
    """The two f16 values that an f32 one is made of (see `matrix_gemm`)."""
    # Rounded in f32 to what an f16 holds: compilers make more of a conversion there and back
    # than the product takes. Normal numbers have 11 bits, and the others are multiples of
    # 2^-24, as all of f32's are between 0.5 and 1.
    bits = k.bitcast(x, Scalar.U32) + _HALF_UNIT & _KEPT_BITS
    is_normal = k.call("abs", x) >= _SMALLEST_NORMAL
    high = k.let(k.select(is_normal, k.bitcast(bits, Scalar.F32), (x + 0.75) - 0.75), "high")
    return k.cast(high, Scalar.F16), k.cast((x - high) * LOW_SCALE, Scalar.F16)


@frozen
class PairReader:
    """Weights of two output slices at once, as the bits of their f16."""

    kind: ClassVar[Type] = U32x4
    count: ClassVar[int] = 1
    buffer: KernelBuffer
    slices: int

    def read(self, k: Builder, row: Expr, column: Expr) -> list[Expr]:
        """Those of one input for the output slices ``column``, which is even, and the next."""
        return [k.load(self.buffer, row * (self.slices // 2) + (column >> 1))]


@frozen
class VectorReader:
    """Weights of two output slices, each by itself."""

    kind: ClassVar[Type] = F16x4
    count: ClassVar[int] = 2
    reader: WeightReader

    def read(self, k: Builder, row: Expr, column: Expr) -> list[Expr]:
        """Those of one input for the output slices ``column`` and the next, as vectors of f16."""
        columns = column, k.let(k.min(column + 1, self.reader.slices - 1), "wcol")
        return [k.cast(self.reader.row(k, row, each, Scalar.F16), Scalar.F16) for each in columns]


Reader = Union[PairReader, VectorReader]


class TeamMember:
    """Where an invocation stands in its workgroup."""

    def __init__(self, k: Builder, tile: MatrixTile) -> None:
        self.x = k.let(k.local_id(0), "lx")
        subgroup = k.let(k.subgroup_id(), "subgroup")
        team_size = tile.rows * tile.cols
        self.team = k.let(subgroup // team_size, "team") if tile.split > 1 else k.i32(0)
        self.row = k.let(subgroup % team_size // tile.cols, "srow")
        self.col = k.let(subgroup % tile.cols, "scol")
        self.id = k.let(self.x % tile.team_threads, "lid")  # within its team


@frozen(eq=False)
class _Registers:
    """What an invocation loads of a stage: by item, in two vectors or one pair.

    Attributes:
        a: Of the input.
        counts: Whether that counts, or is to be zero.
        b: Of the parts of the weights.
    """

    a: list[list[Variable]]
    counts: list[list[Variable]]
    b: list[list[list[Variable]]]


class Stage:
    """Staging of both operands: global memory -> registers (`fetch`) -> shared (`commit`).

    Both are stored as rows of f16 vectors, of which two are an element: pixels x depth, and depth x
    channels. A team's stage has the parts of an input, then those of the weights.
    """

    def __init__(
        self,
        k: Builder,
        tile: MatrixTile,
        problem: MatrixProduct,
        lane: TeamMember,
        src: ReadView,
        weights: tuple[Reader, ...],
        inputs: int,
        masked: bool,
        change: RowChange | None,
    ) -> None:
        self.k, self.tile, self.problem, self.lane = k, tile, problem, lane
        self.weights, self._masked, self.inputs = weights, masked, inputs
        self.a_size = tile.pixels * tile.a_pitch
        self.b_size = tile.depth * 4 * tile.b_pitch
        self._stage_size = tile.stage_words(inputs, len(weights))
        self.words = k.shared("words", U32x4, tile.shared_words(inputs, len(weights)))
        self._a_items = items(k, lane.id, tile.pixels * tile.depth // 2, tile.team_threads)
        self._b_items = items(k, lane.id, tile.depth * 2 * tile.slices, tile.team_threads)
        self._in_pairs = isinstance(src, PairView)
        kind, count = (U32x4, 1) if self._in_pairs else (src.vector_type, 2)
        self._sets = [
            _Registers(
                [[k.var(k.const(0, kind), "ra") for _ in range(count)] for _ in self._a_items],
                [[k.var(k.const(False, BOOL), "in") for _ in range(count)] for _ in self._a_items],
                [
                    [[k.var(k.const(0, w.kind), "rb") for _ in range(w.count)] for w in weights]
                    for _ in self._b_items
                ],
            )
            for _ in range(tile.ahead)
        ]
        self._loads = []
        for item, _ in self._a_items:
            row = k.let(k.group_id(1) * tile.pixels + item // (tile.depth // 2), "pixel")
            # Past the last pixel any pixel will do: its sums are never stored.
            row = k.let(k.min(row, problem.pixels - 1), "pixel")
            self._loads.append(problem.loads(k, src, row, tile.depth))
        self.moments: RowMoments | None = None
        self._change, self._begins = change, list[Expr]()
        if change is not None:
            self._begins = [k.let(loads(k.i32(0), 0)[0], "begin") for loads in self._loads]

    def base(self, place: Expr) -> Expr:
        """Where this team's stage begins in a place."""
        return (place * self.tile.split + self.lane.team) * self._stage_size

    def fetch(self, registers: int, q0: Expr) -> None:
        """Start the loads of the stage that begins at slice ``q0``."""
        k, tile, into = self.k, self.tile, self._sets[registers]
        for i, (item, _) in enumerate(self._a_items):
            for j, (reg, counts) in enumerate(zip(into.a[i], into.counts[i], strict=True)):
                at = k.let(item % (tile.depth // 2) * 2 + j, "q")
                value, inside = self._loads[i](q0, at)
                k.set(reg, value)
                k.set(counts, inside)
        limit = self.problem.depth * 4
        for i, (item, _) in enumerate(self._b_items):
            row = q0 * 4 + item // (tile.slices // 2)
            column = k.group_id(0) * tile.slices + item % (tile.slices // 2) * 2
            # Columns past the end are never stored, and rows past the end meet zeros of the other
            # operand: any finite weight will do for both.
            exists = k.let(row < limit, "exists") if self._masked else None
            row = k.min(row, limit - 1) if self._is_ragged else row
            if self.problem.slices % tile.slices:
                last = self.problem.slices - 1
                column = k.min(column, last - last % 2)
            row, column = k.let(row, "wrow"), k.let(column, "wcol")
            for regs, reader in zip(into.b[i], self.weights, strict=True):
                for reg, weight in zip(regs, reader.read(k, row, column), strict=True):
                    zero = k.const(0, weight.type)
                    k.set(reg, weight if exists is None else k.select(exists, weight, zero))

    @property
    def _is_ragged(self) -> bool:
        tile = self.tile
        return self.problem.depth % (tile.depth * tile.split * tile.parts) != 0

    def _reals(self, found: Sequence[Expr]) -> list[Expr]:
        """What was loaded of an item, as vectors of f32."""
        k = self.k
        if self._in_pairs:
            return unpacked(k, found[0])
        return [k.let(k.cast(each, Scalar.F32), "x") for each in found]

    def begin_moments(self) -> None:
        """Begin sums of rows, once the first stages are on their way."""
        if self._change is not None:
            k = self.k
            vectors = [self._reals([each])[0] for each in self._begins]
            about = [k.let(about_of(k, each), "about") for each in vectors]
            self.moments = RowMoments(k, self.tile, self._change, about)

    def copied(self, registers: int) -> list[list[Expr]]:
        """What was fetched of the input, by item, for `add_moments` when other loads are on their
        way: nothing waits for sums of rows then."""
        if self.moments is None:
            return []
        return [[self.k.let(each, "x") for each in regs] for regs in self._sets[registers].a]

    def add_moments(self, copied: Sequence[Sequence[Expr]], q0: Expr) -> None:
        """Add up rows of the stage that begins at slice ``q0``."""
        k, half = self.k, self.tile.depth // 2
        for i, ((item, _), found) in enumerate(zip(self._a_items, copied, strict=False)):
            counts = None
            if self._is_ragged:
                at = k.let(q0 + item % half * 2, "q")
                counts = [at + j < self.problem.depth for j in range(2)]
            assert self.moments is not None
            self.moments.add(i, self._reals(found), counts)

    def share_moments(self) -> None:
        """Put the sums of the rows that were staged into shared memory."""
        if self.moments is not None:
            self.moments.share(self.lane.team, self._a_items)

    def commit(self, registers: int, place: Expr) -> None:
        """Put what was fetched into shared memory."""
        k, tile, held = self.k, self.tile, self._sets[registers]
        base = k.let(self.base(place), "place")
        for i, (item, inside) in enumerate(self._a_items):
            half = tile.depth // 2
            at = k.let(base + item // half * tile.a_pitch + item % half, "ia")
            # Not where it is loaded: what is done with a loaded value waits for it.
            found = [
                k.select(counts, reg, k.const(0, reg.type))
                for reg, counts in zip(held.a[i], held.counts[i], strict=True)
            ]
            maybe(
                k,
                inside,
                lambda at=at, found=found: self._commit_input(at, found),  # type: ignore[misc]
            )
        base = base + self.inputs * self.a_size
        for i, (item, inside) in enumerate(self._b_items):
            half = tile.slices // 2
            at = k.let(base + item // half * tile.b_pitch + item % half, "ib")
            maybe(
                k,
                inside,
                lambda at=at, i=i: self._commit_weights(at, held.b[i]),  # type: ignore[misc]
            )

    def _commit_input(self, at: Expr, found: list[Expr]) -> None:
        k = self.k
        if self._in_pairs:
            k.store_shared(self.words, at, found[0])
        elif self.inputs == 1:
            k.store_shared(self.words, at, packed(k, found))
        else:
            parts = [halves(k, k.let(each, "x")) for each in found]
            k.store_shared(self.words, at, packed(k, [high for high, _ in parts]))
            k.store_shared(self.words, at + self.a_size, packed(k, [rest for _, rest in parts]))

    def _commit_weights(self, at: Expr, regs: list[list[Variable]]) -> None:
        k = self.k
        for part, vectors in enumerate(regs):
            word = vectors[0] if len(vectors) == 1 else packed(k, vectors)
            k.store_shared(self.words, at + part * self.b_size, word)


def packed(k: Builder, vectors: Sequence[Expr]) -> Expr:
    """Two vectors as the bits of u32x4, rounded to f16."""
    first, second = (k.let(k.bitcast(k.cast(v, Scalar.F16), Scalar.U32), "w") for v in vectors)
    return k.vec([first.lane(0), first.lane(1), second.lane(0), second.lane(1)])
