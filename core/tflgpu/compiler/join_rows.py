"""Groups that reduce rows and compute with the sums become one kernel.

    MEAN(x) | SQUARED_DIFFERENCE | MEAN + ADD + RSQRT | MUL + MUL + SUB + ADD      four kernels: one

A normalization whose every step is rounded, as in quantized models, is no one op: each step's
result has to be what its tensor could have stored. But all of them are of the same row, so that a
team of invocations can take a row through all of them. What is computed stays as it was, and so
does the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.ir.graph import Node, Shape
from tflgpu.kernels.rows import RowStep, build_rows, rows_shape
from tflgpu.language.budget import MAX_CHAIN
from tflgpu.lowering.rule import ElementwiseRule, KernelRule, RowReduction, Site


def join_rows(
    neighbours: Neighbours, elementwise: Callable[[Node], ElementwiseRule | None]
) -> None:
    """Join groups of one precision to the last of them.

    Args:
        neighbours: All groups.
        elementwise: The expression by which a node may join others.
    """
    steps_of = {id(group): _steps(group, elementwise) for group in neighbours.groups}
    for last in neighbours.groups[::-1]:
        members = _ending_with(last, neighbours, steps_of)
        if len(members) > 1:
            steps = tuple(step for group in members for step in steps_of[id(group)])
            *before, head = (step.node for step in steps)
            last.cost = sum(group.cost for group in members)
            last.head, last.before, last.fused = head, tuple(before), []
            build = partial(build_rows, steps=steps)
            last.rule = KernelRule(head.op, "rows", build, reads_once=True)
            for group in members[:-1]:
                neighbours.replace(group, [last])


def _ending_with(
    last: Group, neighbours: Neighbours, steps_of: Mapping[int, tuple[RowStep, ...]]
) -> list[Group]:
    """The groups, in order, that one kernel can make up to the group ``last``: that alone, where
    there are no others, or none of them reduces."""
    steps, site, shape = steps_of[id(last)], neighbours.site_of(last.head), last.result.shape
    groups, members = neighbours.groups, [last]
    if last not in groups or not _of_rows(steps, shape) or isinstance(steps[0].does, RowReduction):
        return members
    for group in groups[: groups.index(last)][::-1]:
        readers = neighbours.readers(group)
        inside = readers and all(reader in members for reader in readers)
        if inside and _of_rows(steps_of[id(group)], shape):
            members.insert(0, group)
    joined = [step for group in members for step in steps_of[id(group)]]
    fits = rows_shape(site.caps, shape) and _fit(joined, sum(g.cost for g in members), site)
    return members if fits else [last]


def _fit(steps: Sequence[RowStep], cost: int, site: Site) -> bool:
    """Whether a kernel may have all of them: what has an element for each of a row's may be
    computed once for each reduction, and once more."""
    reductions = sum(isinstance(step.does, RowReduction) for step in steps)
    made = {step.result.id for step in steps}
    read = {v.id for s in steps for v in s.node.inputs if v is not None} - made
    few = len(read) < site.caps.max_bindings and cost * (reductions + 1) <= 2 * MAX_CHAIN
    return reductions > 0 and few


def _steps(
    group: Group, elementwise: Callable[[Node], ElementwiseRule | None]
) -> tuple[RowStep, ...]:
    """A group's nodes, where each is an expression of the elements, or the first one reduces rows;
    none where another has to make them."""
    if group.before or len(group.head.outputs) != 1 or group.rule.owner:
        return ()
    rule, reduction = elementwise(group.head), group.rule.rows(group.head)
    if reduction is not None:
        first = RowStep(group.head, reduction)
    elif rule is not None and not rule.owner and group.rule.name == "elementwise":
        first = RowStep(group.head, rule.expr)
    else:
        return ()
    rest = [RowStep(f.node, f.expr) for f in group.fused if f.expr is not None and not f.owner]
    return (first, *rest) if len(rest) == len(group.fused) else ()


def _of_rows(steps: Sequence[RowStep], shape: Shape) -> bool:
    """Whether these make, of rows of ``shape``, as many elements or one each."""
    if not steps or not shape or shape[-1] == 1 or 0 in shape:
        return False
    single = (*shape[:-1], 1)
    for step in steps:
        reduces = isinstance(step.does, RowReduction)
        if reduces and step.node.input(0).shape != shape:
            return False
        fits = step.result.shape in ((single,) if reduces else (shape, single))
        if not fits or not step.result.dtype.is_float:
            return False
    return True
