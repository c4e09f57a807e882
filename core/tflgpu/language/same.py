"""Whether two kernels are the same tree, so that they print the same.

Names count, and so does whether two equal sub-expressions of a statement are one object, since
printers compute those once.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import attrs

from tflgpu.language.tree import Const, For, Kernel, Name, Number, Stmt
from tflgpu.language.walk import blocks, statements, walk

#: What a walk gives, and what `statements` does, beside a node's own fields.
_ELSEWHERE = frozenset({"Expr", "tuple[Expr, ...]", "tuple[Stmt, ...]"})


def sketch(kernel: Kernel) -> int:
    """A number that kernels share which are the same. Few others do: kernels of one kind differ in
    their numbers as a rule, so these are what is looked at."""
    found: list[object] = [kernel.name, kernel.workgroup]
    for stmt in statements(kernel.body):
        order = walk(stmt).order
        found.append(len(order))
        found += [e.value for e in order if type(e) is Const and e.value == e.value]
    return hash(tuple(found))


def same(a: Kernel, b: Kernel) -> bool:
    """Whether two kernels are the same. Time is linear in their size, and short where they differ
    early."""
    if (a.name, a.workgroup, a.buffers, a.shared) != (b.name, b.workgroup, b.buffers, b.shared):
        return False
    mine, theirs = list(statements(a.body)), list(statements(b.body))
    return len(mine) == len(theirs) and all(map(_same_statement, mine, theirs))


def _same_statement(a: Stmt, b: Stmt) -> bool:
    way, other = walk(a), walk(b)
    return (
        _same_node(a, b)
        and [len(block) for block in blocks(a)] == [len(block) for block in blocks(b)]
        and way.roots == other.roots
        and way.parts == other.parts
        and all(map(_same_node, way.order, other.order))
    )


def _same_node(a: Any, b: Any) -> bool:
    """Whether two nodes are the same but for what is below them."""
    kind = type(a)
    if kind is not type(b):
        return False
    own = _own[kind]
    return bool(own(a) == own(b))


class _Own(dict[type, Callable[[Any], Any]]):
    def __missing__(self, kind: type[Any]) -> Callable[[Any], Any]:
        found = self[kind] = _fields(kind)
        return found


def _fields(kind: type[Any]) -> Callable[[Any], Any]:
    """What gives a node's own fields. Annotations tell which these are: they are texts here, and
    mypy checks them."""
    fields = [
        field
        for field in attrs.fields(kind)
        if str(field.type) not in _ELSEWHERE and (str(field.type) != "Name" or kind is For)
    ]
    if not fields:
        return lambda node: None
    if not any(str(field.type) in ("float", "Number", "Name") for field in fields):
        return attrgetter(*[field.name for field in fields])
    getters = [(attrgetter(field.name), _PLAIN.get(str(field.type))) for field in fields]
    return lambda node: [
        getter(node) if plain is None else plain(getter(node)) for getter, plain in getters
    ]


def _exact(value: Number) -> object:
    """A number that is equal to no other: 0.0 and -0.0 are two, and a NaN is one."""
    return value if value and value == value else repr(float(value))  # noqa: PLR0124


def _plain_name(name: Name) -> object:
    return name.type, name.ident, name.mutable


#: Fields by which equality would not tell what is meant.
_PLAIN: dict[str, Callable[[Any], object]] = {
    "float": _exact,
    "Number": _exact,
    "Name": _plain_name,
}
#: By class of node: what gives its own fields.
_own = _Own({Const: lambda e: (e.type, _exact(e.value))})
