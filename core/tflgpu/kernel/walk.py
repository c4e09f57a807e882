"""Walking expressions. They are graphs, not trees: a node may be reached along many paths, and
chains may be longer than Python's recursion limit, so every walk goes through here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from tflgpu.kernel.tree import Expr, For, If, Stmt

#: By class of node: the fields that hold an expression, and those that hold several.
_known: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _places(kind: type[Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Look at a class of nodes, once: walks take most of the time of making a kernel. Annotations
    tell: they are texts here, and mypy checks those of `tflgpu.kernel.tree` and its neighbours."""
    fields = [(field.name, str(field.type)) for field in attrs.fields(kind)]
    one = tuple(name for name, type in fields if type in ("Expr", "Name"))
    several = tuple(name for name, type in fields if type == "tuple[Expr, ...]")
    _known[kind] = one, several
    return one, several


def children(node: Any) -> tuple[Expr, ...]:
    """The direct sub-expressions of an expression or statement (not of nested statements)."""
    kind = type(node)
    one, several = _known.get(kind) or _places(kind)
    if not several:
        return tuple([getattr(node, name) for name in one])
    found = [getattr(node, name) for name in one]
    for name in several:
        found.extend(getattr(node, name))
    return tuple(found)


def postorder(roots: Iterable[Expr]) -> list[Expr]:
    """Every expression under ``roots`` once, operands before what uses them."""
    order: list[Expr] = []
    done: set[int] = set()
    # What is expanded already is on the stack once more, before its operands, in a list.
    stack: list[Any] = list(roots)[::-1]
    while stack:
        item = stack.pop()
        if type(item) is list:
            (expr,) = item
            if id(expr) not in done:
                done.add(id(expr))
                order.append(expr)
            continue
        if id(item) in done:
            continue
        parts = children(item)
        if parts:
            stack.append([item])
            stack.extend(parts[::-1])
        else:
            done.add(id(item))
            order.append(item)
    return order


def operands(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates (not those of nested statements)."""
    if isinstance(stmt, For):
        return (stmt.start, stmt.stop)
    return children(stmt)


def blocks(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The blocks nested in a statement."""
    if isinstance(stmt, If):
        return (stmt.then, stmt.orelse)
    return (stmt.body,) if isinstance(stmt, For) else ()


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """All statements, nested ones after the one that holds them."""
    for stmt in body:
        yield stmt
        for block in blocks(stmt):
            yield from statements(block)
