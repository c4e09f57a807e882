"""Convolution without shared memory: one invocation, a few pixels, one slice of channels.

What CPUs that run OpenCL like best: their caches do the staging. Long sums of few results (a
model's heads) are added up in parts, so that what f32 loses does not grow with their length;
kernels of GPUs share such sums out.
"""

from __future__ import annotations

from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias, gather_by_slice
from tflgpu.kernels.stored_weights import StoredWeights, WeightReader
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.values import frozen

_WORKGROUP = (8, 8, 1)
#: Slices of a long sum, slices of results that are few, slices of a part.
_LONG, _FEW, _PART = 64, 64, 8


@frozen
class OutputBlock:
    """Pixels and channel slices of one invocation."""

    rows: int = 4
    columns: int = 1


def build_direct(low: Lowering, problem: Problem, name: str, block: OutputBlock) -> None:
    """Write the kernel of a product and dispatch it."""
    k = low.kernel(name, _WORKGROUP)
    src = low.read(k, 0)
    stored = StoredWeights.on(low.caps, problem.weights)
    weights = stored.bind(low, k, problem.slices)
    product, bias = bind_bias(low, k, problem, stored)
    low.body(k, _write, product, block, src, weights, bias, low.write(k))
    columns = -(-problem.slices // block.columns)
    rows = -(-problem.pixels // block.rows)
    low.dispatch(k, (columns, rows, 1))


def _write(
    k: Builder,
    problem: MatrixProduct,
    block: OutputBlock,
    src: ReadView,
    reader: WeightReader,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    column0 = k.let(k.global_id(0) * block.columns, "column")
    row0 = k.let(k.global_id(1) * block.rows, "row")
    guard(k, column0 < problem.slices, row0 < problem.pixels)
    safe_columns = [
        k.let(k.min(column0 + j, problem.slices - 1), "c") for j in range(block.columns)
    ]
    safe_rows = [k.let(k.min(row0 + i, problem.pixels - 1), "r") for i in range(block.rows)]
    gathers = [gather_by_slice(problem.loads, k, src, row) for row in safe_rows]

    def zeros(name: str) -> list[list[Variable]]:
        return [
            [k.var(k.f32(0.0, 4), name) for _ in range(block.columns)] for _ in range(block.rows)
        ]

    def add(q: Expr, sums: list[list[Variable]]) -> None:
        values = [k.let(gather(q), "x") for gather in gathers]
        step = reader.step(k, q)
        weights = [step(column) for column in safe_columns]
        for lane in range(4):
            for j, lanes in enumerate(weights):
                weight = k.let(lanes[lane], "w")
                for i in range(block.rows):
                    k.fma_to(sums[i][j], values[i].lane(lane), weight)

    sums = zeros("acc")
    if problem.depth < _LONG or problem.pixels * problem.slices > _FEW:
        with k.loop(0, problem.depth, name="q") as q:
            add(q, sums)
    else:
        with k.loop(0, problem.depth, _PART, name="first") as first:
            parts = zeros("part")
            with k.loop(first, k.min(first + _PART, problem.depth), name="q") as q:
                add(q, parts)
            for i, row in enumerate(parts):
                for j, part in enumerate(row):
                    k.add_to(sums[i][j], part)
    for j in range(block.columns):
        column = column0 + j
        with k.if_(column < problem.slices):
            end = problem.end(k, bias, column)
            for i in range(block.rows):
                with k.if_(row0 + i < problem.pixels):
                    out.store(k.let(row0 + i, "at"), problem.first + column, end(sums[i][j]))
