"""Groups of nodes that run as one kernel: a head, and the elementwise chain in its store.

    conv -> RELU -> ADD(., skip) -> ...      one group: the conv's store does the rest

A node joins the group of one of its operands when that operand has no other reader, is not an
output, and has the shape of the result. The group then runs where its last node stood, so any
other operand the chain needs exists by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tflgpu.ir.graph import Node, Value
from tflgpu.kernel.lowering import Fused
from tflgpu.kernel.rule import ElementwiseRule, KernelRule, Site


@attrs.define(eq=False)
class Group:
    """A head node with its rule, and what joined its store, in order."""

    head: Node
    rule: KernelRule
    fused: list[Fused] = attrs.Factory(list)

    @property
    def result(self) -> Value:
        """Where the head's output 0 finally goes."""
        return self.fused[-1].node.outputs[0] if self.fused else self.head.outputs[0]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes it stands for."""
        return (self.head, *(f.node for f in self.fused))

    @property
    def label(self) -> str:
        """All its nodes' labels."""
        return " + ".join(n.label for n in self.nodes)


def group_nodes(
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    rules: Mapping[int, KernelRule],
    elementwise: Callable[[Node], ElementwiseRule | None],
    site: Site,
    *,
    fuse: bool = True,
) -> list[Group]:
    """Group ``nodes`` (in topological order); ``rules`` by ``id(node)``.

    The groups come in an order in which they can run.
    """
    readers: dict[int, int] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None:
                readers[value.id] = readers.get(value.id, 0) + 1
    for value in outputs:
        readers[value.id] = readers.get(value.id, 0) + 1  # an output is read by the host

    by_result: dict[int, Group] = {}
    groups: list[Group] = []
    for node in nodes:
        rule = elementwise(node) if fuse else None
        joined = _joinable(node, by_result, readers, site) if rule is not None else None
        if rule is not None and joined is not None:
            group, operand = joined
            groups.remove(group)
            del by_result[group.result.id]
            group.fused.append(Fused(node, rule.expr, operand, rule.owner))
        else:
            group = Group(node, rules[id(node)])
        groups.append(group)
        if group.rule.fuses and len(group.head.outputs) == 1:
            by_result[group.result.id] = group
    return groups


def _joinable(
    node: Node, by_result: Mapping[int, Group], readers: Mapping[int, int], site: Site
) -> tuple[Group, int] | None:
    """The group that ``node`` can join, and which of its operands that is."""
    out = node.outputs[0]
    best: tuple[Group, int] | None = None
    for i, value in enumerate(node.inputs):
        if value is None or value.is_const:
            continue
        group = by_result.get(value.id)
        if group is None or readers[value.id] != 1 or value.shape != out.shape:
            continue
        if not (value.dtype.is_float and out.dtype is value.dtype):
            continue
        if _buffers(group, node) > site.caps.max_bindings:
            continue
        # The operand made last: its kernel runs now anyway.
        best = (group, i)
    return best


def _buffers(group: Group, node: Node) -> int:
    """Buffers the group's kernel would bind with ``node`` joined: never fewer than it does."""
    head = len(group.head.inputs) + 3  # weights may be split in two, and a result
    operands = [n for f in group.fused for n in f.node.inputs] + list(node.inputs)
    return head + len(operands) - len(group.fused) - 1
