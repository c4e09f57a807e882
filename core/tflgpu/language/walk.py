"""Walking expressions. They are graphs, not trees: a node may be reached along many paths, and
chains may be longer than Python's recursion limit, so every walk goes through here.

Checking, estimating, comparing and printing a kernel each go through all of its expressions. Nodes
never change, so the way through a statement's expressions is found once and kept with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import attrs

from tflgpu.language.author import refused
from tflgpu.language.tree import Builtin, Const, Expr, For, If, Kernel, Name, Stmt


class Walk(NamedTuple):
    """The expressions that a statement evaluates, each once, operands before what uses them.

    Attributes:
        order: The expressions.
        parts: For each of them, the places of its operands in ``order``.
        roots: The places of what the statement itself names.
        shared: The places of what is named more than once.
    """

    order: Sequence[Expr]
    parts: Sequence[tuple[int, ...]]
    roots: tuple[int, ...]
    shared: frozenset[int]


class _Getters(dict[type, Callable[[Any], tuple[Expr, ...]]]):
    """By class of node: what gives its direct sub-expressions."""

    def __missing__(self, kind: type[Any]) -> Callable[[Any], tuple[Expr, ...]]:
        return _getter(kind)


_known = _Getters()


def _getter(kind: type[Any]) -> Callable[[Any], tuple[Expr, ...]]:
    """Look at a class of nodes, once. Annotations tell: they are texts here, and mypy checks those
    of `tflgpu.language.tree` and its neighbours."""
    if not attrs.has(kind):
        raise refused(f"a {kind.__name__} is no node of the tree; a variable's x.read() is one")
    fields = [(field.name, str(field.type)) for field in attrs.fields(kind)]
    one = [name for name, type in fields if type in ("Expr", "Name")]
    several = [name for name, type in fields if type == "tuple[Expr, ...]"]
    found: Callable[[Any], tuple[Expr, ...]]
    if not several and len(one) > 1:
        found = attrgetter(*one)
    elif not several and one:
        (name,) = one
        found = lambda node: (getattr(node, name),)  # noqa: E731
    else:

        def found(node: Any) -> tuple[Expr, ...]:
            parts = [getattr(node, name) for name in one]
            for name in several:
                parts.extend(getattr(node, name))
            return tuple(parts)

    _known[kind] = found
    return found


def children(node: Any) -> tuple[Expr, ...]:
    """The direct sub-expressions of an expression or statement (not of nested statements)."""
    return _known[type(node)](node)


#: Classes without sub-expressions: most of what a kernel is made of.
_LEAVES = frozenset({Const, Name, Builtin})
_NONE: frozenset[int] = frozenset()
_NOTHING = Walk((), (), (), _NONE)


def _find(roots: Sequence[Expr]) -> Walk:
    order: list[Expr] = []
    parts: list[tuple[int, ...]] = []
    place: dict[int, int] = {}
    place_of = place.get
    shared: list[int] = []
    # What is open waits with those of its operands that are still to come, and the places of those
    # that have one. First of all it is the statement, which is no expression.
    open_: list[tuple[Any, Iterator[Expr], list[int]]] = []
    node: Any = None
    ahead = iter(roots)
    places: list[int] = []
    while True:
        for part in ahead:
            found = place_of(id(part))
            if found is None:
                kind = type(part)
                if kind not in _LEAVES:
                    open_.append((node, ahead, places))
                    node, ahead, places = part, iter(_known[kind](part)), []
                    break
                found = place[id(part)] = len(order)
                order.append(part)
                parts.append(())
            else:
                shared.append(found)
            places.append(found)
        else:
            if not open_:
                return Walk(order, parts, tuple(places), frozenset(shared) if shared else _NONE)
            found = place[id(node)] = len(order)
            order.append(node)
            parts.append(tuple(places))
            node, ahead, places = open_.pop()
            places.append(found)


def postorder(roots: Iterable[Expr]) -> Sequence[Expr]:
    """Every expression under ``roots`` once, operands before what uses them."""
    return _find(tuple(roots)).order


def walk(stmt: Stmt) -> Walk:
    """The way through what a statement itself evaluates, found when it is first asked for."""
    found: Walk | None = getattr(stmt, "walked", None)
    if found is None:
        roots = operands(stmt)
        found = _find(roots) if roots else _NOTHING
        # The statement is frozen, and stays what it was: the way follows from its fields.
        object.__setattr__(stmt, "walked", found)
    return found


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
    waiting = [iter(body)]
    while waiting:
        for stmt in waiting[-1]:
            yield stmt
            if isinstance(stmt, (If, For)):
                waiting += [iter(block) for block in reversed(blocks(stmt))]
                break
        else:
            waiting.pop()


def expressions(kernel: Kernel) -> Iterator[Expr]:
    """All expressions of a kernel, operands first; one that several statements have comes with
    each."""
    for stmt in statements(kernel.body):
        yield from walk(stmt).order
