"""Nodes of a part that one kernel makes together, by the rules for groups (`GroupRule`).

Partitioning is over by then, so a group never reaches the CPU's parts, and never spans two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tflgpu.compiler.build import RuleError
from tflgpu.compiler.fuse import GroupMatch
from tflgpu.errors.blame import Failed, Refused, attempt, shown
from tflgpu.ir.edit_guard import EditGuard, answered
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.rule import GroupRule, KernelRule, Site


def match_groups(
    nodes: Sequence[Node],
    kept: Collection[Value],
    rules: Mapping[int, KernelRule],
    candidates: Mapping[int, Sequence[GroupRule]],
    site_of: Callable[[Node], Site],
) -> dict[int, GroupMatch]:
    """Groups by the ``id`` of their last node; no node is in two of them.

    Args:
        nodes: In topological order.
        kept: Values that must exist afterwards: no group may swallow them.
        rules: By ``id(node)``: the rule that makes a node alone. A group is taken where none of
            its nodes has one of higher rank.
        candidates: By ``id(node)``: the rules for groups that end in it, best first.
        site_of: Where each runs; nodes of several precisions are no group.

    Raises:
        RuleError: a plugin's rule failed, or matched nodes that cannot be joined.
    """
    finder = _Finder(nodes, kept, site_of)
    found: dict[int, GroupMatch] = {}
    for node in reversed(nodes):
        if id(node) in finder.taken:
            continue
        for rule in candidates[id(node)]:
            group = finder.group(rule, node)
            if group and rule.rank >= max(rules[id(n)].rank for n in group):
                finder.taken |= {id(n) for n in group}
                found[id(node)] = GroupMatch(group[:-1], rule.as_kernel_rule())
                break
    return found


class _Finder:
    """Asks rules, and looks at what they answer."""

    def __init__(
        self, nodes: Sequence[Node], kept: Collection[Value], site_of: Callable[[Node], Site]
    ) -> None:
        self._site_of = site_of
        self._makers = {v.id: node for node in nodes for v in node.outputs}
        self._readers = Counter(v.id for node in nodes for v in node.inputs if v is not None)
        self._kept = {v.id for v in kept}
        self.taken: set[int] = set()

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value with exactly one reader."""
        node = self._makers.get(value.id)
        if node is None or id(node) in self.taken or len(node.outputs) != 1:
            return None
        alone = self._readers[value.id] == 1 and value.id not in self._kept
        return node if alone else None

    def group(self, rule: GroupRule, node: Node) -> tuple[Node, ...] | None:
        """The nodes that a rule would make together."""
        site = self._site_of(node)
        if not rule.owner:
            return self._checked(rule.match(node, self.maker, site), node)
        before = EditGuard()
        before.add(node)

        def maker(value: Value) -> Node | None:
            found = self.maker(value)
            if found is not None:
                before.add(found)
            return found

        def matched() -> tuple[Node, ...] | None:
            found = answered(before, attempt(rule.match, node, maker, site))
            if isinstance(found, Failed):
                raise found.error
            return self._checked(found, node)

        answer = attempt(matched)
        if isinstance(answer, Failed):
            message = f"plugin {rule.owner}: {rule} failed on {node.label}: {answer}"
            raise RuleError(message, {(rule.owner, rule.op, rule.name)}) from answer.error
        group: tuple[Node, ...] | None = answer
        return group

    def _checked(self, answer: Sequence[Node] | None, last: Node) -> tuple[Node, ...] | None:
        if answer is None:
            return None
        if not isinstance(answer, (tuple, list)) or len(answer) < 2 or answer[-1] is not last:
            raise Refused(f"it matched {shown(answer)}, not nodes of which this one is the last")
        for i, node in enumerate(answer[:-1]):
            if not isinstance(node, Node) or not node.outputs:
                raise Refused(f"{shown(node)} is among the nodes that it matched")
            value = node.outputs[0]
            if self.maker(value) is not node:
                raise Refused(f"it matched {node.label}, whose result others need")
            if not any(value in later.inputs for later in answer[i + 1 :]):
                raise Refused(f"it matched {node.label}, whose result none of the others reads")
        if len({self._site_of(n).precision for n in answer}) > 1:
            return None
        return tuple(answer)
