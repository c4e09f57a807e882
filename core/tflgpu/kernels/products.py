"""Products with constant weights: the kernels that there are for one, as ranked rules.

few_rows   few rows, GPU              a workgroup per few output slices            gemv.py
matrix     many rows, matrix tiles    blocked product on matrix tiles              matrix_gemm.py
                                      or a window's, staged once for all taps      matrix_window.py
                                      or that of few input channels                matrix_shallow.py
blocked    many rows, GPU             blocked product through shared memory        blocked.py
direct     anything else              one invocation per few pixels and a slice    direct.py

A plugin's rule of rank 0 or more comes before all of them; one that only some devices or shapes are
better served by says so in its ``accepts``, and the next in rank takes the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from tflgpu.ir.graph import Node
from tflgpu.kernels.blocked import build_gemm
from tflgpu.kernels.direct import OutputBlock, build_direct
from tflgpu.kernels.gemm import Problem
from tflgpu.kernels.gemv import build_gemv
from tflgpu.kernels.matrix_gemm import build_matrix_gemm, loads_of, parts_of_weights, split_operands
from tflgpu.kernels.matrix_shallow import ShallowTile, build_matrix_shallow, shallow_for
from tflgpu.kernels.matrix_tiles import TileWork, choose_matrix_tile
from tflgpu.kernels.matrix_window import WindowTile, build_matrix_window, windows_for
from tflgpu.kernels.tiles import choose_tile
from tflgpu.language.types import Scalar
from tflgpu.lowering.choices import Choose
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.row_change import rows_of
from tflgpu.lowering.rule import Accepts, KernelRule, Site, TakesRows, takes_no_rows
from tflgpu.lowering.stored_types import storage_of
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.weights import Weights
from tflgpu.values import evolve, frozen

#: Outputs that share a load of the input, at least: those of a workgroup that stages what it reads,
#: and those of an invocation.
_STAGED, _LOADED = 32, 8
#: A way to cut a product.
C = TypeVar("C")
#: Writes the kernel of one product, under a name.
BuildProduct = Callable[[Lowering, Problem, str], None]


@frozen
class ProductSize:
    """The sizes of a node's product, by which its kernel is chosen.

    Attributes:
        rows: Of the result.
        depth: Length of the sums, in slices of four.
        groups: Products beside each other.
        separable: Whether each of several is worth dispatches of its own on a GPU.
    """

    rows: int
    depth: int
    groups: int = 1
    separable: bool = False


@frozen
class Family:
    """An op whose nodes are products.

    Attributes:
        op: The op; its name in small letters begins the kernels' names.
        accepts: The reason for no that holds for all kernels.
        size: Of a node that was accepted.
        problems: A node's products.
        takes_rows, beside: As those of `KernelRule`, of the kernel for few rows.
        normalizes_rows: As `KernelRule.takes_rows`, of the kernel on matrix tiles.
        stacks: As that of `KernelRule`.
    """

    op: str
    accepts: Accepts
    size: Callable[[Node, Site], ProductSize]
    problems: Callable[[Lowering], Iterable[Problem]]
    takes_rows: TakesRows = takes_no_rows
    beside: Callable[[Node, Node, Site], bool] = lambda node, other, site: False
    normalizes_rows: TakesRows = takes_no_rows
    stacks: Callable[[Node, Node, Site, bool], bool] = lambda node, other, site, rows: False

    def rule(
        self, name: str, suffix: str, build: BuildProduct, more: Accepts, rank: int
    ) -> KernelRule:
        """A rule that writes one kernel for each product."""

        def build_all(low: Lowering) -> None:
            for problem in self.problems(low):
                others = [each for other in low.stacked for each in self.problems(other)]
                build(low, problem.stacked(others), f"{low.node.op.lower()}_{suffix}")

        def accepts(node: Node, site: Site) -> str | None:
            return self.accepts(node, site) or more(node, site)

        reads = partial(_reads, _STAGED if name in ("matrix", "blocked") else _LOADED)
        return KernelRule(
            self.op, name, build_all, accepts, rank=rank, reads=reads, stacks=self.stacks
        )

    def rules(self) -> tuple[KernelRule, ...]:
        """All of them, best first."""
        return (
            evolve(
                self.rule("few_rows", "gemv", build_gemv, self.few_rows, 0),
                takes_rows=self.takes_rows,
                beside=self.beside,
                stacks=self._stacks_few,
            ),
            evolve(
                self.rule("matrix", "matrix", _matrix, self._deep_on_matrices, -1),
                takes_rows=self.normalizes_rows,
            ),
            self.rule("blocked", "gemm", _blocked, self._on_gpu, -2),
            self.rule("direct", "direct", _direct, self._alone, -3),
        )

    def _stacks_few(self, node: Node, other: Node, site: Site, rows: bool) -> bool:
        # Kernels side by side take no longer than one, unless each makes the rows anew.
        return rows and self.stacks(node, other, site, rows)

    def _alone(self, node: Node, site: Site) -> str | None:
        groups = self.size(node, site).groups
        return None if groups == 1 else f"it has {groups} groups, whose channels lie side by side"

    def _on_gpu(self, node: Node, site: Site) -> str | None:
        if not site.caps.is_gpu:
            return "the device is not a GPU"
        size = self.size(node, site)
        return None if size.groups == 1 or size.separable else "its groups are many or narrow"

    def few_rows(self, node: Node, site: Site) -> str | None:
        """No where rows are many."""
        refused = self._on_gpu(node, site)
        if refused is not None:
            return refused
        rows, most = self.size(node, site).rows, tuning_of(site.caps).few_rows
        return None if rows <= most else f"it has {rows} rows, more than {most}"

    def _deep_on_matrices(self, node: Node, site: Site) -> str | None:
        refused = self.on_matrices(node, site)
        if refused is not None:
            return refused
        depth, least = self.size(node, site).depth, tuning_of(site.caps).least_depth
        return None if depth >= least else f"its sums of {depth} slices are shorter than {least}"

    def on_matrices(self, node: Node, site: Site) -> str | None:
        """No where matrix tiles are not there or would be no faster."""
        caps, precision = site.caps, site.precision
        refused = self._on_gpu(node, site)
        if refused is not None:
            return refused
        if not caps.matrix_tiles:
            return "the device has no matrix tiles"
        if precision is Precision.F32:
            return "precision F32 promises products of f32"
        weights = Weights(node.contents(1))
        if precision is Precision.F32_F16 and not weights.within_f16:
            return "its weights are beyond f16"
        if not tuning_of(caps).splits_products:
            # At a part's edge an input lies as f32 all the same; see `_matrix`.
            half = storage_of(node.input(0), precision, caps) is Scalar.F16
            if not half or parts_of_weights(weights, precision, caps) > 1:
                return "a product of f32 would take several on the device's matrix tiles"
        return None


def _reads(together: int, node: Node, operand: int) -> int:
    """`KernelRule.reads` of a kernel in which so many outputs share what is read."""
    outputs, *taps, _ = node.input(1).shape
    return 0 if operand else math.prod(taps) * -(-outputs // together)


def _matrix(low: Lowering, problem: Problem, name: str) -> None:
    operands = split_operands(low, problem)
    if operands.products > 1 and not tuning_of(low.caps).splits_products:
        # The input lies at a part's edge, as f32, which shows only now.
        _blocked(low, problem, name.replace("_matrix", "_gemm"))
        return
    parts = (operands.inputs, len(operands.weights))
    others: dict[Any, TileWork] = {**windows_for(low, problem, operands)}
    others.update(shallow_for(low, problem, operands))
    loads = loads_of(low, problem)
    whole = rows_of(low).change.length > 0

    def pick(rows: int, choose: Choose) -> Any:
        sizes = (rows, problem.slices, problem.depth)
        return choose_matrix_tile(*sizes, *parts, low.caps, choose, loads, others, whole=whole)

    way = _for_all_sizes(low, problem.pixels, pick)
    if isinstance(way, WindowTile):
        build_matrix_window(low, problem, way, name.replace("_matrix", "_window"))
    elif isinstance(way, ShallowTile):
        build_matrix_shallow(low, problem, way, name.replace("_matrix", "_shallow"))
    else:
        build_matrix_gemm(low, problem, operands, way, name)


def _blocked(low: Lowering, problem: Problem, name: str) -> None:
    tile = _for_all_sizes(
        low,
        problem.pixels,
        lambda n, choose: choose_tile(n, problem.slices, problem.depth, low.caps, choose),
    )
    build_gemm(low, problem, tile, name)


def _for_all_sizes(low: Lowering, rows: int, pick: Callable[[int, Choose], C]) -> C:
    """How a product is cut. Where positions may not count, by what takes the least time in
    comparison with the best at all rows and at half of them: a workgroup that is right for all is
    often as good with half the rows, and for a smaller size then better."""
    if low.absent is None or low.absent.axis_of(low.node.outputs[0]) is None:
        return pick(rows, low.choose)
    half: dict[Any, float] = {}

    def note(kind: str, sizes: Any, candidates: Sequence[Any], cost: Callable[[Any], float]) -> Any:
        half.update((each, cost(each)) for each in candidates)
        return candidates[0]

    def both(kind: str, sizes: Any, candidates: Sequence[Any], cost: Callable[[Any], float]) -> Any:
        best, least = min(map(cost, candidates)), min(half.values())
        return low.choose(kind, sizes, candidates, lambda c: max(cost(c) / best, half[c] / least))

    pick(rows // 2 + 1, note)
    return pick(rows, both)


def _direct(low: Lowering, problem: Problem, name: str) -> None:
    build_direct(low, problem, name, OutputBlock(4, 2 if problem.slices % 2 == 0 else 1))
