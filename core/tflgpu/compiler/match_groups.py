"""Nodes of a part that one kernel makes together, by the rules for groups (`GroupRule`).

Partitioning is over by then, so a group never reaches the CPU's parts, and never spans two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tflgpu.compiler.build import RuleError
from tflgpu.compiler.fuse import Group, Neighbours
from tflgpu.errors.blame import Failed, Refused, attempt, shown
from tflgpu.ir.edit_guard import EditGuard, answered
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.rule import GroupRule


def match_groups(neighbours: Neighbours, candidates: Callable[[Node], Sequence[GroupRule]]) -> None:
    """Join nodes of one precision that a rule matches, unless one of them has a rule of higher
    rank. The last node has what the others read.

    Args:
        neighbours: A group for each node.
        candidates: The rules for groups that end in a node, best first.

    Raises:
        RuleError: a plugin's rule failed, or matched nodes that cannot be joined.
    """
    finder = _Finder(neighbours)
    for last in neighbours.groups[::-1]:
        if neighbours.maker(last.result) is not last:
            continue
        for rule in candidates(last.head):
            groups = finder.groups(rule, last)
            if groups and rule.rank >= max(group.rule.rank for group in groups):
                last.before = tuple(group.head for group in groups[:-1])
                last.rule = rule.as_kernel_rule()
                for group in groups[:-1]:
                    neighbours.replace(group, [last])
                break


class _Finder:
    """Asks rules, and looks at what they answer."""

    def __init__(self, neighbours: Neighbours) -> None:
        self._neighbours = neighbours

    def maker(self, value: Value) -> Node | None:
        """The node that makes a value with exactly one reader."""
        group = self._neighbours.maker(value)
        if group is None or group.before or len(group.head.outputs) != 1:
            return None
        readers, ids = self._neighbours.readers(group), self._neighbours.results(group)
        alone = len(readers) == 1 and self._neighbours.reads(readers[0].nodes)[ids[0]] == 1
        return group.head if alone else None

    def groups(self, rule: GroupRule, last: Group) -> list[Group]:
        """The groups of the nodes that a rule would make together; none where it makes none."""
        nodes = self._nodes(rule, last.head)
        found = [self._neighbours.maker(node.outputs[0]) for node in nodes or ()]
        return [group for group in found if group is not None]

    def _nodes(self, rule: GroupRule, node: Node) -> tuple[Node, ...] | None:
        site = self._neighbours.site_of(node)
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
        return tuple(answer)
