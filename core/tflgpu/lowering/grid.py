"""Dispatches of any number of invocations, over as many axes as the device's limits require."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.view import WriteView


def spread(low: Lowering, k: Builder, count: int) -> Expr:
    """A number below ``count`` for each invocation; dispatch with `launch` and the same count."""
    return spread_over(k, count, groups_across(low, k, count))


@contextmanager
def each_vector(
    low: Lowering, k: Builder, out: WriteView
) -> Generator[tuple[Expr, Expr], None, None]:
    """Position along the outer axes, as one number, and slice of a vector of an output: another for
    each invocation. The kernel is dispatched behind the block."""
    place = low.place
    if place is None:
        i = spread(low, k, out.vectors)
        place = k.let(i // out.slices, "outer"), k.let(i % out.slices, "slice")
    yield place
    launch(low, k, out.vectors)


def spread_over(k: Builder, count: int, across: int) -> Expr:
    """`spread`, where `groups_across` is known."""
    groups = -(-count // k.workgroup[0])
    i = k.global_id(0)
    if groups > across:
        i = k.global_id(1) * (across * k.workgroup[0]) + i
    i = k.let(i, "i")
    guard(k, i < count)
    return i


def groups_across(low: Lowering, k: Builder, count: int) -> int:
    """How many workgroups of ``count`` invocations lie side by side."""
    return min(-(-count // k.workgroup[0]), low.caps.max_groups[0])


def launch(low: Lowering, k: Builder, count: int) -> None:
    """Dispatch ``count`` invocations, over two axes where one has too few workgroups."""
    across = groups_across(low, k, count)
    groups = -(-count // k.workgroup[0])
    low.dispatch_groups(k, (across, -(-groups // across), 1))
