"""Groups that become part of those that read their results: one walk, with a rule for each way.

    x -> made by a group -> y -> read by others      the others make y themselves, or all of them
                                                     and the maker are one

A rule looks at a group and at all groups that read its results, and joins it to each of them or to
none. These are the rules, in the order in which they are tried:

    join_moves         a move of whole vectors takes place in the store of what it reads
    join_reads         what makes each vector by itself is computed in the loads of its readers
    join_row_changes   what changes whole rows begins the products that read them
    join_products      a product is made beside the one whose store reads it

Nodes that a rule makes together (`match_groups`), elementwise chains (`join_chains`) and rows
(`join_rows`) join before, and products of one input that is left (`stack_products`) afterwards;
small dispatches that need nothing of each other (`side_by_side`) when all kernels are made.

A RESHAPE that moves nothing shares its operand's buffer by then, so readers are counted by buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from tflgpu.compiler.fuse import Group
from tflgpu.ir.graph import Node, Value
from tflgpu.lowering.rule import Site

#: Joins a group to all that read its results, where it can: whether it did.
JoinRule = Callable[[Group, Sequence[Group]], bool]


class Neighbours:
    """The groups of a part, in an order in which they can run, and which read which.

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
