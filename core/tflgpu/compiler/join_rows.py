"""Groups that reduce rows and compute with the sums become one kernel.

    MEAN(x) | SQUARED_DIFFERENCE | MEAN + ADD + RSQRT | MUL + MUL + SUB + ADD      four kernels: one

A normalization whose every step is rounded, as in quantized models, is no one op: each step's
result has to be what its tensor could have stored. But all of them are of the same row, so that a
team of invocations can take a row through all of them. What is computed stays as it was, and so
does the order of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

from tflgpu.compiler.fuse import Group
from tflgpu.ir.graph import Node, Shape, Value
from tflgpu.kernels.rows import RowStep, build_rows, rows_shape
from tflgpu.language.budget import MAX_CHAIN
from tflgpu.lowering.rule import ElementwiseRule, KernelRule, RowReduction, Site


def join_rows(
    groups: Sequence[Group],
    elementwise: Callable[[Node], ElementwiseRule | None],
    kept: Collection[Value],
    site_of: Callable[[Node], Site],
) -> list[Group]:
    """The groups that are left, in an order in which they can run.

    Args:
        groups: In such an order; they are not changed.
        elementwise: The expression by which a node may join others.
        kept: Values that must exist afterwards.
        site_of: Where each node runs; nodes of several precisions are not joined.
    """
    joining = _Joining(groups, elementwise, kept, site_of)
    found: list[Group] = []
    taken: set[int] = set()
    for at in reversed(range(len(groups))):
        if at in taken:
            continue
        members = joining.ending_with(at, taken)
        taken.update(members)
        found.append(joining.one(members) if len(members) > 1 else groups[at])
    return found[::-1]


class _Joining:
    def __init__(
        self,
        groups: Sequence[Group],
        elementwise: Callable[[Node], ElementwiseRule | None],
        kept: Collection[Value],
        site_of: Callable[[Node], Site],
    ) -> None:
        self._groups, self._site_of = groups, site_of
        self._steps = [_steps(group, elementwise) for group in groups]
        self._kept = {value.id for value in kept}
        self._readers: dict[int, set[int]] = {}
        for at, group in enumerate(groups):
            for node in group.nodes:
                for value in node.inputs:
                    if value is not None:
                        self._readers.setdefault(value.id, set()).add(at)

    def ending_with(self, last: int, taken: Collection[int]) -> list[int]:
        """The groups, in order, that one kernel can make up to the group ``last``: that alone,
        where there are no others, or none of them reduces."""
        steps, site = self._steps[last], self._site_of(self._groups[last].head)
        shape = self._groups[last].result.shape
        if not steps or isinstance(steps[0].does, RowReduction) or not _of_rows(steps, shape):
            return [last]
        members, reductions = [last], 0
        for at in reversed(range(last)):
            others, group = self._steps[at], self._groups[at]
            readers = self._readers.get(group.result.id, set())
            if at in taken or not others or not readers or not readers <= set(members):
                continue
            if group.result.id in self._kept or not _of_rows(others, shape):
                continue
            if self._site_of(group.head).precision is site.precision:
                members.append(at)
                reductions += isinstance(others[0].does, RowReduction)
        members.reverse()
        fits = reductions and rows_shape(site.caps, shape) and self._fit(members, reductions, site)
        return members if fits else [last]

    def _fit(self, members: Sequence[int], reductions: int, site: Site) -> bool:
        """Whether a kernel may have all of them: what has an element for each of a row's may be
        computed once for each reduction, and once more."""
        steps = [step for at in members for step in self._steps[at]]
        made = {step.result.id for step in steps}
        read = {v.id for s in steps for v in s.node.inputs if v is not None} - made
        cost = sum(self._groups[at].cost for at in members) * (reductions + 1)
        return len(read) < site.caps.max_bindings and cost <= 2 * MAX_CHAIN

    def one(self, members: Sequence[int]) -> Group:
        """The group that makes what these make."""
        steps = tuple(step for at in members for step in self._steps[at])
        *before, last = (step.node for step in steps)
        rule = KernelRule(last.op, "rows", partial(build_rows, steps=steps), reads_once=True)
        cost = sum(self._groups[at].cost for at in members)
        return Group(last, rule, cost=cost, before=tuple(before))


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
    if not shape or shape[-1] == 1 or 0 in shape:
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
