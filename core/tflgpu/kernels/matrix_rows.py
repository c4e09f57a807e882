"""Rows that a product on matrix tiles normalizes as it reads them.

    y = ((x - mean) * scale) @ w + b = (x @ w - mean * (sum of w's rows)) * scale + b

The rows are multiplied as they are, and a workgroup, which sees the whole of each of its rows while
it stages them, adds up by the way what mean and variance follow from. Sums are those of differences
from `tflgpu.kernels.staged_row.about_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from tflgpu.ir.graph import Node
from tflgpu.kernels.matrix_tiles import MatrixTile
from tflgpu.kernels.staged_row import moments_of
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import SUBGROUP, F32x4, Scalar
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.row_change import RowChange
from tflgpu.lowering.rule import Site
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.weights import Weights


def normalizes_rows(node: Node, change: RowChange, site: Site) -> bool:
    """Whether the kernel of a FULLY_CONNECTED on matrix tiles can make its rows itself, and loses
    less by it than a dispatch takes: each workgroup adds up its rows anew."""
    outputs, length = node.input(1).shape
    work = node.input(0).elements * outputs
    return (
        change.centred
        and change.gamma is None
        and change.rounding is None
        and change.length == length
        and length % 8 == 0
        and site.precision is Precision.F16
        and site.caps.subgroup_shuffle >= SUBGROUP
        and work <= tuning_of(site.caps).normalized_products
        and not StoredWeights.on(site.caps, Weights(node.contents(1), taps=1)).is_whole
    )


class RowMoments:
    """Sums of a team's rows, of which an invocation has those that it stages."""

    def __init__(
        self, k: Builder, tile: MatrixTile, change: RowChange, about: Sequence[Expr]
    ) -> None:
        """Begin; ``about`` is `about_of` the rows that an invocation stages, by item."""
        self._k, self._tile, self._change, self._about = k, tile, change, about
        # By lanes, so that one addition need not wait for the one before.
        self._sums = [[k.var(k.f32(0.0, 4), name) for name in ("s", "ss")] for _ in about]
        self._shared = k.shared("moments", F32x4, tile.split * tile.pixels)

    def add(self, item: int, vectors: Sequence[Expr], counts: Sequence[Expr] | None) -> None:
        """Add what is staged of an item, in f32; of it only what ``counts``."""
        k, (total, squares) = self._k, self._sums[item]
        about = k.splat(self._about[item], 4)
        for i, vector in enumerate(vectors):
            gap = vector - about
            if counts is not None:
                gap = k.select(counts[i], gap, k.f32(0.0, 4))
            gap = k.let(gap, "gap")
            k.add_to(total, gap)
            k.fma_to(squares, gap, gap)

    def share(self, team: Expr, items: Sequence[tuple[Expr, Expr | None]]) -> None:
        """Put a team's sums where all of the workgroup read them, behind a barrier."""
        k, half = self._k, self._tile.depth // 2
        for (item, _), about, sums in zip(items, self._about, self._sums, strict=True):
            whole = [k.dot(each, k.f32(1.0, 4)) for each in sums]
            total, squares = (k.subgroup_reduce("add", each, half) for each in whole)
            # An invocation without an item has the last one, which begins no row.
            with k.if_((item % half).eq(0)):
                at = k.let(team * self._tile.pixels + item // half, "at")
                k.store_shared(self._shared, at, k.vec([total, squares, about, k.f32(0.0)]))

    def normalized(self, row: Expr, total: Expr, column_sum: Expr) -> Expr:
        """What a vector of a row's products would be, had the row been normalized."""
        k = self._k
        found = [
            k.let(k.load_shared(self._shared, row + team * self._tile.pixels), "moments")
            for team in range(self._tile.split)
        ]
        sums, squares = (reduce(add, [each.lane(i) for each in found]) for i in range(2))
        gap, scale = moments_of(k, sums, squares, self._change)
        mean = k.splat(found[0].lane(2) + gap, 4)
        return (total - mean * column_sum) * k.splat(scale, 4)


def unpacked(k: Builder, pair: Expr) -> list[Expr]:
    """Two vectors of f16 that lie in u32x4, as f32."""
    halves = (k.bitcast(k.vec(pair.lanes[at : at + 2]), Scalar.F16) for at in (0, 2))
    return [k.let(k.cast(each, Scalar.F32), "x") for each in halves]
