"""Undoes edits that a plugin's function makes to a node while it answers a question about it.

Only graph passes may edit graphs. A rule or an operator of a plugin that edited a node when asked
whether it supports the node would silently change what the model computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from tflgpu.errors.blame import Failed, Refused, attempt
from tflgpu.ir.graph import Node, Value

_FIELDS = {kind: tuple(field.name for field in attrs.fields(kind)) for kind in (Node, Value)}


class EditGuard:
    """Nodes as they were before a plugin was called."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Node | Value, tuple[Any, ...]]] = {}

    def add(self, node: Node) -> None:
        """Remember one more, and its operands and results, as they are now."""
        for item in (node, *node.inputs, *node.outputs):
            if item is not None and id(item) not in self._before:
                self._before[id(item)] = item, _state(item)

    def restore(self) -> str:
        """Undo all edits. Returns a label of the first node or tensor that was edited, or ""."""
        edited = ""
        for item, before in self._before.values():
            if attempt(lambda item=item, before=before: _same(_state(item), before)) is not True:
                for name, was in zip(_FIELDS[type(item)], before, strict=True):
                    setattr(item, name, list(was) if name in ("inputs", "outputs") else was)
                edited = edited or (item.label if isinstance(item, Node) else f"tensor {item.id}")
        return edited


def ask(question: Callable[..., Any], node: Node, /, *args: Any, **kwargs: Any) -> Any:
    """The answer of a plugin's function about a node, or `Failed`; edits of the node are undone,
    and count as a failure."""
    before = EditGuard()
    before.add(node)
    return answered(before, attempt(question, *args, **kwargs))


def answered(before: EditGuard, answer: Any) -> Any:
    """The answer, or `Failed` where nodes were edited meanwhile."""
    edited = before.restore()
    if edited and not isinstance(answer, Failed):
        return Failed(Refused(f"it edited {edited}, which only graph passes may"))
    return answer


def _state(item: Node | Value) -> tuple[Any, ...]:
    """The fields of a node or value, lists as tuples."""
    found = (getattr(item, name, None) for name in _FIELDS[type(item)])
    return tuple(tuple(each) if isinstance(each, list) else each for each in found)


def _same(now: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Whether nothing has changed. What is no text, number or tuple is the same if it is one
    object."""
    return all(
        a is b or (isinstance(a, (str, int, tuple)) and type(a) is type(b) and a == b)
        for a, b in zip(now, before, strict=True)
    )
