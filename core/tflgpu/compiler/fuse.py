"""Groups of nodes that run as one kernel: a head, and the elementwise chain in its store.

    conv -> RELU -> ADD(., skip) -> ...      one group: the conv's store does the rest

A node joins the group of one of its operands when that operand has no other reader, is not an
output, and has the shape of the result. The group then runs where its last node stood, so any
other operand the chain needs exists by then.

    conv -> x, LOGISTIC(x) -> s, MUL(x, s)   one group too: swish

Where a node closes branches that begin at one value, and these read besides it only constants and
values that exist by then, all of them join the group that makes this value.

A chain has a budget (`tflgpu.language.budget`): the node that would exceed it begins a group of its
own, which others may join.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import attrs

from tflgpu.errors.blame import Failed, attempt
from tflgpu.ir.graph import Node, Value
from tflgpu.language.budget import MAX_CHAIN, cost
from tflgpu.language.builder import Builder
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import FusedNode
from tflgpu.lowering.rule import ElementwiseRule, KernelRule, Site

#: What reading one more operand may cost, where it is broadcast: a division and a remainder for
#: each dimension.
_OPERAND_COST = 16


@attrs.frozen(eq=False)
class GroupMatch:
    """Nodes that one rule makes together: those before the last one, and the rule."""

    before: tuple[Node, ...]
    rule: KernelRule


@attrs.define(eq=False)
class Group:
    """A head node with its rule, and what joined its store, in order.

    ``before`` are nodes that the rule makes together with the head. ``cost`` is what the chain in
    the store costs, once; a head that stores several vectors an invocation has it several times.
    ``inlined`` are the groups that it computes where it loads their results
    (`tflgpu.compiler.join_reads`).
    """

    head: Node
    rule: KernelRule
    fused: list[FusedNode] = attrs.Factory(list)
    cost: int = 0
    before: tuple[Node, ...] = ()
    inlined: list[Group] = attrs.Factory(list)

    @property
    def result(self) -> Value:
        """Where the head's output 0 finally goes."""
        return self.fused[-1].node.outputs[0] if self.fused else self.head.outputs[0]

    @property
    def results(self) -> tuple[Value, ...]:
        """What it leaves behind."""
        return (self.result, *self.head.outputs[1:])

    @property
    def own_nodes(self) -> tuple[Node, ...]:
        """The nodes whose results no other group computes."""
        return (*self.before, self.head, *(f.node for f in self.fused))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes it stands for."""
        return (*(n for group in self.all_inlined for n in group.own_nodes), *self.own_nodes)

    @property
    def all_inlined(self) -> list[Group]:
        """The groups that it computes in loads, each once, what others of them read first."""
        found: dict[int, Group] = {}
        for group in self.inlined:
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

    @property
    def label(self) -> str:
        """All its nodes' labels."""
        return " + ".join(n.label for n in self.nodes)


def group_nodes(
    nodes: Sequence[Node],
    outputs: Sequence[Value],
    rules: Mapping[int, KernelRule],
    elementwise: Callable[[Node], ElementwiseRule | None],
    site_of: Callable[[Node], Site],
    *,
    fuse: bool = True,
    matched: Mapping[int, GroupMatch] | None = None,
) -> list[Group]:
    """Group ``nodes`` (in topological order); ``rules`` by ``id(node)``, and ``matched`` by that of
    a group's last node. Only nodes of one precision run as one kernel.

    The groups come in an order in which they can run.
    """
    readers = Counter(v.id for node in nodes for v in node.inputs if v is not None)
    readers.update(v.id for v in outputs)  # which the host reads

    by_result: dict[int, Group] = {}
    groups: dict[int, Group] = {}  # by identity; in the order in which they can run
    costs = _Costs()
    matched = matched or {}
    swallowed = {id(node) for group in matched.values() for node in group.before}
    for node in nodes:
        if id(node) in swallowed:
            continue
        several = matched.get(id(node))
        rule = elementwise(node) if fuse and several is None else None
        more = costs.of(node, rule) if rule is not None else 0
        group: Group | None = None
        if rule is not None:
            closed = _closable(node, more, by_result, readers, site_of, elementwise, costs)
            joined = closed or _joinable(node, more, by_result, readers, site_of)
            if joined is not None:
                group, branches = joined
                for each in (group, *branches):
                    del groups[id(each)]
                    del by_result[each.result.id]
                for branch in branches:
                    first = elementwise(branch.head)
                    assert first is not None
                    group.fused += [FusedNode(branch.head, first.expr, first.owner), *branch.fused]
                    group.cost += costs.of(branch.head, first) + branch.cost
                group.fused.append(FusedNode(node, rule.expr, rule.owner))
                group.cost += more
        if group is not None:
            pass
        elif several is not None:
            group = Group(node, several.rule, before=several.before)
        else:
            group = Group(node, rules[id(node)])
        groups[id(group)] = group
        if group.rule.fuses and len(group.head.outputs) == 1:
            by_result[group.result.id] = group
    return list(groups.values())


def _joinable(
    node: Node,
    more: int,
    by_result: Mapping[int, Group],
    readers: Mapping[int, int],
    site_of: Callable[[Node], Site],
) -> tuple[Group, list[Group]] | None:
    """The group that ``node`` can join at ``more`` cost, without branches."""
    site = site_of(node)
    best: tuple[Group, list[Group]] | None = None
    for value in node.inputs:
        group = _maker(value, node, by_result)
        if group is None or readers[group.result.id] != 1:
            continue
        if _fits(group, [node], group.cost + more, site, site_of):
            # The operand made last: its kernel runs now anyway.
            best = (group, [])
    return best


def _closable(
    node: Node,
    more: int,
    by_result: Mapping[int, Group],
    readers: Mapping[int, int],
    site_of: Callable[[Node], Site],
    elementwise: Callable[[Node], ElementwiseRule | None],
    costs: _Costs,
) -> tuple[Group, list[Group]] | None:
    """The group whose result all branches begin with that meet in ``node``, and the branches."""
    branches: list[Group] = []
    spent = more
    for value in node.inputs:
        branch = _maker(value, node, by_result)
        if branch is None or branch.before or readers[branch.result.id] != 1:
            continue
        rule = elementwise(branch.head)
        if rule is not None:
            branches.append(branch)
            spent += costs.of(branch.head, rule) + branch.cost
    inside = [n for branch in branches for n in branch.nodes]
    for value in branches[0].head.inputs if branches else ():
        group = _maker(value, node, by_result)
        if group is None or group in branches:
            continue
        reads = sum(v is value for n in (*inside, node) for v in n.inputs)
        begins = all(any(v is value for v in branch.head.inputs) for branch in branches)
        if not begins or reads != readers[group.result.id]:
            continue
        site = site_of(node)
        if all(site_of(n).precision is site.precision for n in inside) and _fits(
            group, [*inside, node], group.cost + spent, site, site_of
        ):
            return group, branches
    return None


def _maker(value: Value | None, node: Node, by_result: Mapping[int, Group]) -> Group | None:
    """The group that makes ``value``, where its store could go on to what ``node`` makes."""
    out = node.outputs[0]
    if value is None or value.is_const or value.shape != out.shape:
        return None
    alike = value.dtype.is_float and out.dtype is value.dtype
    return by_result.get(value.id) if alike else None


def _fits(
    group: Group, nodes: Sequence[Node], its_cost: int, site: Site, site_of: Callable[[Node], Site]
) -> bool:
    """Whether a kernel may have ``nodes`` too."""
    return (
        its_cost <= MAX_CHAIN
        and buffers_of(group, nodes) <= site.caps.max_bindings
        and site_of(group.head).precision is site.precision
    )


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


class _Costs:
    """Costs of elementwise nodes in a store; nodes that differ in their operands only are looked at
    once."""

    def __init__(self) -> None:
        self._known: dict[object, int] = {}

    def of(self, node: Node, rule: ElementwiseRule) -> int:
        """The cost of one node."""
        kinds = tuple(None if v is None else v.dtype for v in node.inputs)
        key = (id(rule), node.attrs, kinds)
        try:
            found = self._known.get(key)
        except TypeError:  # attributes that have no hash
            return _cost(node, rule)
        if found is None:
            found = self._known[key] = _cost(node, rule)
        return found


def _cost(node: Node, rule: ElementwiseRule) -> int:
    """The cost of an expression. One of a plugin's that fails is too dear to join anything: what
    is wrong with it is said where its own kernel is built."""
    if not rule.owner:
        return _measured(node, rule)
    found = attempt(_measured, node, rule)
    return MAX_CHAIN + 1 if isinstance(found, Failed) else int(found)


def _measured(node: Node, rule: ElementwiseRule) -> int:
    k = Builder(node.op, (1, 1, 1))
    result = k.buffer("result", Scalar.F32, 4, "read_write")
    vector = k.load(result, k.i32(0))
    operands = [
        vector if value.dtype.is_float else k.cast(vector, Scalar.I32)
        for value in node.inputs
        if value is not None
    ]
    made = rule.expr(k, node.attrs, [k.let(each, "operand") for each in operands])
    k.store(result, k.i32(0), k.cast(made, Scalar.F32))
    return cost(k.build()) + _OPERAND_COST * max(0, len(operands) - 1)
