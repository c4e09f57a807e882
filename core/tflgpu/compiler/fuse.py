"""Groups of nodes that run as one kernel: a head, and the chain in its store.

    conv -> RELU -> ADD(., skip) -> ...      one group: the conv's store does the rest

At first each node is a group, or what a rule for groups makes together (`match_groups`). Then
elementwise chains (`join_chains`) and rows (`join_rows`) join, and then groups become part of those
that read their results (`Neighbours`). Products of one input that is left join afterwards; small
dispatches that need nothing of each other (`side_by_side`) when all kernels are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.rule import KernelRule, Site


@attrs.define(eq=False)
class Group:
    """A head node with its rule, and what joined its store, in order.

    ``before`` are nodes that the rule makes together with the head. ``cost`` is what the chain in
    the store costs, once; a head that stores several vectors an invocation has it several times.
    ``inlined`` are the groups that it computes where it loads their results
    (`tflgpu.compiler.join_reads`), ``stacked`` those whose products are more outputs of its own
    (`tflgpu.compiler.join_products`).
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


#: Joins a group to all that read its results, where it can: whether it did.
JoinRule = Callable[[Group, Sequence[Group]], bool]


class Neighbours:
    """The groups of a part, in an order in which they can run, and which read which; one walk joins
    them, with a rule for each way.

        x -> made by a group -> y -> read by others      the others make y themselves, or all of
                                                         them and the maker are one

    A rule looks at a group and at all groups that read its results, and joins it to each of them
    or to none. These are the rules, in the order in which they are tried:

        join_moves         a move of whole vectors takes place in the store of what it reads
        join_reads         what makes each vector by itself is computed in the loads of its readers
        join_row_changes   what changes whole rows begins the products that read them
        join_products      a product is made beside the one whose store reads it

    A RESHAPE that moves nothing shares its operand's buffer by then, so readers are counted by
    buffers.

    Attributes:
        root_of: The value whose buffer a value lies in.
        site_of: Where each node runs.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        root_of: Callable[[Value], Value],
        kept: Collection[Value],
        site_of: Callable[[Node], Site],
    ) -> None:
        """Start with the groups apart. ``kept`` are values that must exist afterwards."""
        self.root_of, self.site_of = root_of, site_of
        self._kept = {root_of(value).id for value in kept}
        self._groups = {id(group): group for group in groups}
        self._makers = {value.id: group for group in groups for value in group.results}
        self._readers: dict[int, dict[int, Group]] = {}
        for group in groups:
            for root in self.reads(group.nodes):
                self._readers.setdefault(root, {})[id(group)] = group

    @property
    def groups(self) -> list[Group]:
        """Those that are left."""
        return list(self._groups.values())

    def reads(self, nodes: Iterable[Node]) -> Counter[int]:
        """How often nodes read each buffer, by the id of its value."""
        values = (v for node in nodes for v in node.inputs if v is not None and not v.is_const)
        return Counter(self.root_of(value).id for value in values)

    def results(self, group: Group) -> list[int]:
        """The ids of the values in whose buffers a group's results lie."""
        return [self.root_of(value).id for value in group.results]

    def readers(self, group: Group) -> tuple[Group, ...]:
        """All groups that read a group's results; none where something else needs these, or another
        precision makes them."""
        ids, precision = self.results(group), self.site_of(group.head).precision
        found = {id(g): g for i in ids for g in self.reading(i) if g is not group}
        alike = all(self.site_of(g.head).precision is precision for g in found.values())
        return tuple(found.values()) if alike and self._kept.isdisjoint(ids) else ()

    def maker(self, value: Value) -> Group | None:
        """The group whose result a value is, unless it became part of another."""
        found = self._makers.get(value.id)
        return found if id(found) in self._groups else None

    def reading(self, root: int) -> tuple[Group, ...]:
        """All groups that read a buffer, by the id of its value."""
        return tuple(self._readers.get(root, {}).values())

    def replace(self, group: Group, readers: Sequence[Group]) -> None:
        """Let others have what a group read, which is no more."""
        del self._groups[id(group)]
        for root in self.reads(group.nodes):
            del self._readers[root][id(group)]
            self._readers[root].update((id(reader), reader) for reader in readers)

    def join(self, rule: JoinRule, *, backwards: bool = False) -> None:
        """Ask a rule about each group that has readers: in their order, or ``backwards``."""
        for group in self.groups[:: -1 if backwards else 1]:
            readers = self.readers(group)
            if readers and rule(group, readers):
                self.replace(group, readers)
