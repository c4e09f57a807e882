"""Which operators the user's options allow on a device.

Operators are told by the file's numbers and names, so that they are looked up before passes change
the graph. A node that stands for several operators stays on the CPU if one of them does.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Union

from tflgpu.ir.graph import Graph, Node
from tflgpu.values import frozen

#: An operator's index in the file, an op's name, or the name of a tensor that it makes.
NodeName = Union[int, str]


@frozen
class NodeChoice:
    """The operators that the user's options allow on the device, or forbid.

    Attributes:
        first, last: Operators outside of this range stay on the CPU; ``last`` is in it, and None
            is the end.
        include: Only these may go to the device; none are named: all may.
        exclude: These stay on the CPU.
    """

    first: int = 0
    last: int | None = None
    include: tuple[NodeName, ...] = ()
    exclude: tuple[NodeName, ...] = ()

    def refusals(self, graph: Graph) -> dict[int, str]:
        """Why operators stay on the CPU, by their index in the file."""
        return {
            origin: reason
            for node in graph
            if (reason := self._refusal(node)) is not None
            for origin in node.origins
        }

    def unmatched(self, graph: Graph) -> list[str]:
        """The names in the options that no operator of a graph has, in sentences."""
        return [
            f"{option} names {name!r}, and no operator has this index, no op this name, and no "
            "tensor that one makes"
            for option, names in (("include", self.include), ("exclude", self.exclude))
            for name in names
            if not any(_is_named(node, (name,)) for node in graph)
        ]

    def _refusal(self, node: Node) -> str | None:
        for origin in node.origins:
            at = f"operator #{origin} ({node.op})"
            if origin < self.first:
                return f"{at} is before first_delegate_node_index={self.first}"
            if self.last is not None and origin > self.last:
                return f"{at} is behind last_delegate_node_index={self.last}"
        at = f"operator {', '.join(f'#{o}' for o in node.origins)} ({node.op})"
        if self.include and not _is_named(node, self.include):
            return f"{at} is not among what include names"
        return f"{at} is named by exclude" if _is_named(node, self.exclude) else None


def _is_named(node: Node, names: Collection[NodeName]) -> bool:
    for name in names:
        if isinstance(name, int):
            if name in node.origins:
                return True
        elif name.upper() == node.op.upper() or any(v.name == name for v in node.outputs):
            return True
    return False
