"""Groups of nodes that run as one kernel: a head, and the chain in its store.

    conv -> RELU -> ADD(., skip) -> ...      one group: the conv's store does the rest

At first each node is a group, or what a rule for groups makes together; then groups join
(`tflgpu.compiler.neighbours`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.rule import KernelRule


@attrs.define(eq=False)
class Group:
    """A head node with its rule, and what joined its store, in order.

    ``before`` are nodes that the rule makes together with the head. ``cost`` is what the chain in
    the store costs, once; a head that stores several vectors an invocation has it several times.
    ``inlined`` are the groups that it computes where it loads their results
    (`tflgpu.compiler.join_reads`), ``stacked`` those whose products are more outputs of its own
    (`tflgpu.compiler.stack_products`).
    """

    head: Node
    rule: KernelRule
    fused: list[FusedNode] = attrs.Factory(list)
    cost: int = 0
    before: tuple[Node, ...] = ()
    inlined: list[Group] = attrs.Factory(list)
    stacked: list[Group] = attrs.Factory(list)

    @property
    def result(self) -> Value:
        """Where the head's output 0 finally goes."""
        return self.fused[-1].node.outputs[0] if self.fused else self.head.outputs[0]

    @property
    def results(self) -> tuple[Value, ...]:
        """What it leaves behind."""
        others = (value for group in self.stacked for value in group.results)
        return (self.result, *self.head.outputs[1:], *others)

    @property
    def own_nodes(self) -> tuple[Node, ...]:
        """The nodes whose results no other group computes."""
        others = (node for group in self.stacked for node in group.own_nodes)
        return (*self.before, self.head, *(f.node for f in self.fused), *others)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes it stands for."""
        return (*(n for group in self.all_inlined for n in group.own_nodes), *self.own_nodes)

    @property
    def all_inlined(self) -> list[Group]:
        """The groups that it computes in loads, each once, what others of them read first."""
        found: dict[int, Group] = {}
        for group in (*self.inlined, *(each for g in self.stacked for each in g.inlined)):
            found |= {id(each): each for each in (*group.all_inlined, group)}
        return list(found.values())

    @property
    def owners(self) -> set[tuple[str, str, str]]:
        """The plugins' rules that write its kernels, as (owner, op, name)."""
        head = self.rule
        found = {(head.owner, head.op, head.name)} if head.owner else set()
        return found | {(f.owner, f.node.op, "elementwise") for f in self.fused if f.owner}

    def apart(self, rules: Mapping[int, KernelRule]) -> list[Group]:
        """A group for each node that the rule makes, by rules for single nodes, or for each that is
        computed in loads; the chain stays with the head. They run in this order."""
        if self.stacked:
            return [attrs.evolve(self, stacked=[]), *self.stacked]
        if self.inlined:
            return [*self.inlined, attrs.evolve(self, inlined=[])]
        alone = [Group(node, rules[id(node)]) for node in self.before]
        return [*alone, Group(self.head, rules[id(self.head)], self.fused, self.cost)]

    def cut(self, elementwise: Callable[[Node], KernelRule]) -> tuple[Group, Group]:
        """Two groups of about half the chain each; the second one's head is an elementwise node,
        for which ``elementwise`` gives the rule. They run one right after the other."""
        half = min(self._cuts(), key=lambda at: abs(at - len(self.fused) // 2))
        first, head, rest = self.fused[:half], self.fused[half].node, self.fused[half + 1 :]
        whole = Group(self.head, self.rule, first, before=self.before)
        return whole, Group(head, elementwise(head), rest)

    def _cuts(self) -> list[int]:
        """Where the rest of the chain needs, of all before it, the last result only."""
        made = [node.outputs[0].id for node in (self.head, *(f.node for f in self.fused))]
        cuts, needed = [], set[int]()
        for at in reversed(range(len(self.fused))):
            needed |= {v.id for v in self.fused[at].node.inputs if v is not None}
            if needed.isdisjoint(made[:at]):
                cuts.append(at)
        return cuts

    def begin_with(self, maker: Group, first: FusedNode, cost: int) -> None:
        """Become part of the store of a group that makes what this one reads. ``first`` is what
        becomes of this one's head, ``cost`` that of the whole chain."""
        self.fused = [*maker.fused, first, *self.fused]
        self.head, self.rule, self.before, self.cost = maker.head, maker.rule, maker.before, cost

    @property
    def label(self) -> str:
        """All its nodes' labels."""
        return " + ".join(n.label for n in self.nodes)


def buffers_of(group: Group, nodes: Sequence[Node]) -> int:
    """Buffers the group's kernel would bind with ``nodes`` joined: never fewer than it does."""
    nodes_before = (*group.before, group.head)
    read = [v.id for n in nodes_before for v in n.inputs if v is not None]
    # What one of several nodes makes for another is no buffer, and what two of them read is one.
    inside = {v.id for n in group.before for v in n.outputs}
    own = len(set(read) - inside) if group.before else len(group.head.inputs)
    head = own + 3  # weights may be split in two, and a result
    computing = [f.node for f in group.fused if f.place is None]
    return head + sum(len(n.inputs) - 1 for n in (*computing, *nodes))
