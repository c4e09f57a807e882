"""The second dispatch of products whose sums several workgroups divide.

    parts -> the result, and where it is a row that a layer normalization reads, that too

It adds up what the workgroups have, in their order, and finishes the result. A team that makes a
whole row has all that its mean and variance follow from, so that the normalization is no dispatch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

from tflgpu.kernels.domain import Shape2, share_of
from tflgpu.kernels.gemm import MatrixProduct, Problem, bind_bias
from tflgpu.kernels.rows import rows_shape
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer
from tflgpu.language.types import F32, Scalar, Size3
from tflgpu.lowering.layout import Shape
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.view import ReadView, WriteView

_MOST = 4  # vectors of a row that an invocation has in registers


def whole_rows(caps: DeviceCaps, shape: Shape) -> Shape2 | None:
    """The team for each row, which has it in registers; None where it has not."""
    plan = None if shape[-1] % 4 else rows_shape(caps, shape)
    return plan if plan is not None and plan.steps <= _MOST * plan.lanes else None


def build_parts(
    low: Lowering,
    k: Builder,
    problem: Problem,
    stored: StoredWeights,
    groups: Size3,
    name: str,
    write: Callable[..., None],
    *given: Any,
) -> None:
    """Write the body of a product's kernel, of which ``write`` gets the product, what is ``given``,
    the bias and the result, and dispatch it. Where there are several workgroups along the third
    axis each makes a part of the sums, without a bias, and another kernel adds them up."""
    if groups[2] == 1:
        product, bias = bind_bias(low, k, problem, stored)
        low.body(k, write, product, *given, bias, low.write(k))
        low.dispatch_groups(k, groups)
        return
    temp = low.temp((groups[2], problem.pixels, problem.channels), Scalar.F32)
    low.body(k, write, problem.product, *given, None, low.write_temp(k, temp))
    low.dispatch_groups(k, groups)
    _add_parts(low, problem, stored, temp, name)


def _add_parts(
    low: Lowering, problem: Problem, stored: StoredWeights, temp: Temp, name: str
) -> None:
    """Write the kernel and dispatch it; ``temp`` has the parts, of shape [parts, pixels,
    channels]."""
    shape = (problem.pixels, problem.channels)
    plan = None if low.behind is None else whole_rows(low.caps, shape)
    workgroup = (256, 1, 1) if plan is None else plan.workgroup
    k = low.kernel(f"{name}_sum" if plan is None else f"{name}_sum_normalize", workgroup)
    parts = low.read_temp(k, temp)
    product, bias = bind_bias(low, k, problem, stored)
    out, count = low.write(k), temp.layout.shape[0]
    if plan is None:
        low.body(k, _write, product, parts, count, bias, out)
        low.dispatch(k, (problem.pixels * problem.slices, 1, 1))
        return
    assert low.behind is not None
    normal = low.write_behind(k)
    low.body(k, _write_rows, product, parts, count, bias, out, normal, plan, low.behind[1])
    low.dispatch_groups(k, plan.groups)


def _added(
    k: Builder, problem: MatrixProduct, parts: ReadView, count: int, row: Expr, column: Expr
) -> Expr:
    """A vector of the sums."""
    values = [
        k.let(parts.load(row + part * problem.pixels, column), "part") for part in range(count)
    ]
    return k.let(reduce(add, values), "total")


def _write(
    k: Builder,
    problem: MatrixProduct,
    parts: ReadView,
    count: int,
    bias: KernelBuffer,
    out: WriteView,
) -> None:
    item = k.let(k.global_id(0), "item")
    guard(k, item < problem.pixels * problem.slices)
    row, column = k.let(item // problem.slices, "row"), k.let(item % problem.slices, "column")
    total = _added(k, problem, parts, count, row, column)
    out.store(row, problem.first + column, problem.end(k, bias, column)(total))


def _write_rows(
    k: Builder,
    problem: MatrixProduct,
    parts: ReadView,
    count: int,
    bias: KernelBuffer,
    out: WriteView,
    normal: WriteView,
    plan: Shape2,
    epsilon: float,
) -> None:
    at = share_of(k, plan)
    room, row = at.shared(F32), at.item
    found: list[tuple[Expr, Expr, Expr]] = []
    for start in range(0, plan.steps, plan.lanes):
        step = k.let(at.first + start, "step")
        inside = k.let(step < plan.steps, "inside")
        column = k.let(k.min(step, plan.steps - 1), "column")
        total = _added(k, problem, parts, count, row, column)
        outer, slice_, value = out.linked(row, column, problem.end(k, bias, column)(total))
        value = k.let(value, "value")
        with k.if_(at.valid & inside):
            out.put(outer, slice_, value)
        found.append((inside, column, k.let(k.cast(value, Scalar.F32), "x")))

    def mean_of(vectors: list[Expr]) -> Expr:
        """Of the vectors of all of the team."""
        whole = k.var(k.f32(0.0), "whole")
        for (inside, _, _), vector in zip(found, vectors, strict=True):
            k.add_to(whole, k.select(inside, k.dot(vector, k.f32(1.0, 4)), k.f32(0.0)))
        at.combine([room], [whole], lambda a, b: [a[0] + b[0]], everywhere=True)
        return k.let(whole * (1.0 / (4 * plan.steps)), "mean")

    mean = k.splat(mean_of([x for _, _, x in found]), 4)
    gaps = [k.let(x - mean, "gap") for _, _, x in found]
    scale = k.call("rsqrt", mean_of([gap * gap for gap in gaps]) + epsilon)
    scale = k.let(k.splat(scale, 4), "scale")
    for (inside, column, _), gap in zip(found, gaps, strict=True):
        with k.if_(at.valid & inside):
            normal.store(row, column, gap * scale)
