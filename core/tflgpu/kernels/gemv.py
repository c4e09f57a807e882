"""Products with few rows: one invocation per output slice and share of the sum.

A fully connected layer at batch 1 reads every weight once, so it is bound by memory traffic;
what counts is that the whole machine reads at the same time. A workgroup owns a few output
slices; its invocations divide the sum among them and add up through shared memory.
"""

from __future__ import annotations

from tflgpu.kernel.lowering import Lowering
from tflgpu.kernel.types import F32x4, Scalar
from tflgpu.kernels.gemm import Problem

#: Output slices of a workgroup, and shares of the sum.
_COLUMNS = 4
_MAX_SHARES = 64
#: More rows than this are better served by the blocked product.
MAX_ROWS = 8


def build_gemv(low: Lowering, problem: Problem, name: str) -> None:
    """Write the kernel of a product with at most `MAX_ROWS` rows and dispatch it."""
    rows = problem.pixels
    shares = 1
    limit = min(_MAX_SHARES, low.caps.max_workgroup // _COLUMNS)
    while shares * 2 <= limit and shares < problem.depth:
        shares *= 2
    k = low.kernel(name, (_COLUMNS, shares, 1))
    src = low.read(k, 0)
    weights = low.weights(k, problem.weights)
    bias = low.weights(k, problem.bias, "bias", scalar=Scalar.F32)
    out = low.write(k)
    lane = k.let(k.local_id(0), "lane")
    share = k.let(k.local_id(1), "share")
    column = k.let(k.group_id(0) * _COLUMNS + lane, "column")
    # Invocations past the last column repeat it: they must reach the barriers too.
    safe = k.let(k.min(column, problem.slices - 1), "safe")
    gathers = [problem.gather(k, src, k.i32(row)) for row in range(rows)]
    sums = [k.var(k.f32(0.0, 4), "acc") for _ in range(rows)]
    with k.loop(share, problem.depth, shares, name="q") as q:
        values = [k.let(gather(q), "x") for gather in gathers]
        base = k.let(q * (4 * problem.slices) + safe, "w0")
        for i in range(4):
            weight = k.let(k.load(weights, base + i * problem.slices, Scalar.F32), "w")
            for row in range(rows):
                k.fma_to(sums[row], values[row].lane(i), weight)
    if shares > 1:
        partial = k.shared("partial", F32x4, rows * shares * _COLUMNS)
        mine = k.let(share * _COLUMNS + lane, "mine")
        stride = shares * _COLUMNS
        for row in range(rows):
            k.store_shared(partial, mine + row * stride, sums[row])
        half = shares // 2
        while half:
            k.barrier()
            with k.if_(share < half):
                for row in range(rows):
                    other = k.load_shared(partial, mine + (row * stride + half * _COLUMNS))
                    k.add_to(sums[row], other)
                    if half > 1:
                        k.store_shared(partial, mine + row * stride, sums[row])
            half //= 2
    with k.if_(share.eq(0) & (column < problem.slices)):
        offset = k.let(k.load(bias, column), "b")
        for row in range(rows):
            out.store(k.i32(row), column, problem.finish(k, sums[row] + offset))
    low.dispatch_groups(k, (-(-problem.slices // _COLUMNS), 1, 1))
