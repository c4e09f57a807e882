"""Walking expressions. They are graphs, not trees: a node may be reached along many paths, and
chains may be longer than Python's recursion limit, so every walk goes through here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from tflgpu.kernel.tree import Expr, For, If, Stmt


def children(node: Any) -> tuple[Expr, ...]:
    """The direct sub-expressions of an expression or statement (not of nested statements)."""
    found: list[Expr] = []
    for field in attrs.fields(type(node)):
        value = getattr(node, field.name)
        if isinstance(value, Expr):
            found.append(value)
        elif isinstance(value, tuple):
            found.extend(v for v in value if isinstance(v, Expr))
    return tuple(found)


def postorder(roots: Iterable[Expr]) -> list[Expr]:
    """Every expression under ``roots`` once, operands before what uses them."""
    order: list[Expr] = []
    done: set[int] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(list(roots))]
    while stack:
        expr, expanded = stack.pop()
        if id(expr) in done:
            continue
        if expanded:
            done.add(id(expr))
            order.append(expr)
            continue
        stack.append((expr, True))
        stack.extend((child, False) for child in reversed(children(expr)))
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
