"""Products with few rows: one invocation per output slice and share of the sum.

A fully connected layer at batch 1 reads every weight once, so it is bound by memory traffic;
what counts is that the whole machine reads at the same time. A workgroup owns a few output
slices; its invocations divide the sum among them and add up.
"""

from __future__ import annotations

from tflgpu.kernels.gemm import BoundProduct, Problem, bind
from tflgpu.kernels.team import Teams
from tflgpu.language.builder import Builder
from tflgpu.language.types import F32x4
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.tuning import tuning_of
from tflgpu.lowering.view import ReadView, WriteView


def build_gemv(low: Lowering, problem: Problem, name: str) -> None:
    """Write the kernel of a product with few rows and dispatch it."""
    tuning = tuning_of(low.caps)
    columns, shares = tuning.columns_of_few, 1
    limit = min(tuning.shares_of_few, low.caps.max_workgroup // columns)
    while shares * 2 <= limit and shares < problem.depth:
        shares *= 2
    teams = Teams.of(low.caps, columns, shares)
    k = low.kernel(name, teams.workgroup)
    src = low.read(k, 0)
    bound = bind(low, k, problem)
    out = low.write(k)
    low.body(k, _write, bound, teams, src, out)
    low.dispatch_groups(k, (-(-problem.slices // columns), 1, 1))


def _write(k: Builder, bound: BoundProduct, teams: Teams, src: ReadView, out: WriteView) -> None:
    problem = bound.product
    rows, columns, shares = problem.pixels, teams.columns, teams.lanes
    at = teams.member(k)
    column = k.let(k.group_id(0) * columns + at.column, "slice")
    # Invocations past the last column repeat it: they must reach the barriers too.
    safe = k.let(k.min(column, problem.slices - 1), "safe")
    gathers = [problem.gather(k, src, k.i32(row)) for row in range(rows)]
    sums = [k.var(k.f32(0.0, 4), "acc") for _ in range(rows)]
    with k.loop(at.lane, problem.depth, shares, name="q") as q:
        values = [k.let(gather(q), "x") for gather in gathers]
        for i, found in enumerate(bound.weights.step(k, q)(safe)):
            weight = k.let(found, "w")
            for row in range(rows):
                k.fma_to(sums[row], values[row].lane(i), weight)
    rooms = [at.shared(F32x4) for _ in sums]
    at.combine(rooms, sums, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
    with k.if_(at.lane.eq(0) & (column < problem.slices)):
        end = problem.end(k, bound.bias, column)
        for row in range(rows):
            out.store(k.i32(row), problem.first + column, end(sums[row]))
