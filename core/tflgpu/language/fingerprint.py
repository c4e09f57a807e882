"""A kernel's content as one short string: kernels that share it are the same kernel."""

from __future__ import annotations

import hashlib
import marshal
from collections.abc import Callable
from typing import Any

import attrs

from tflgpu.language.tree import (
    Assign,
    Binary,
    Buffer,
    Builtin,
    Call,
    Cast,
    Const,
    For,
    Kernel,
    Lane,
    Let,
    Load,
    Name,
    Select,
    Shared,
    Splat,
    Stmt,
    Store,
    Var,
    Vec,
)
from tflgpu.language.types import Type
from tflgpu.language.walk import blocks, walk

#: Part of every fingerprint: raise it when a tree comes to mean something else.
LANGUAGE_VERSION = 3

#: What a walk gives, and what is written block by block, beside a node's own fields.
_ELSEWHERE = frozenset({"Expr", "tuple[Expr, ...]", "tuple[Stmt, ...]"})
#: `marshal`'s oldest format: the one in which equal values are equal bytes, whichever objects
#: they are.
_MARSHAL_VERSION = 0


def fingerprint(kernel: Kernel) -> str:
    """32 hexadecimal digits that two kernels share only if they are the same tree, so that they
    print the same. They are the same in every process of one version of Python.

    Names count, and so does whether two equal sub-expressions of a statement are one object, since
    printers compute those once. Time is linear in the size of the kernel.
    """
    content: list[Any] = [LANGUAGE_VERSION, kernel.name, *kernel.workgroup]
    content += [_plain(each) for each in (*kernel.buffers, *kernel.shared)]
    waiting: list[Stmt | str] = list(kernel.body[::-1])
    while waiting:
        stmt = waiting.pop()
        if isinstance(stmt, str):
            content.append(stmt)
            continue
        way = walk(stmt)
        content.append(_getters[type(stmt)](stmt))
        content += [_getters[type(expr)](expr) for expr in way.order]
        content += way.parts
        content.append(way.roots)
        for block in blocks(stmt)[::-1]:
            waiting += ["}", *block[::-1], "{"]
    data = marshal.dumps(content, _MARSHAL_VERSION)
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class _Getters(dict[type, Callable[[Any], tuple[Any, ...]]]):
    def __missing__(self, kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
        return _getter(kind)


#: By class of node: what gives its own fields, everything but expressions and blocks. Those that
#: kernels are full of are written out, which takes a quarter of the time.
_getters = _Getters(
    {
        Name: lambda e: ("Name", e.type.text, e.ident, e.mutable),
        Builtin: lambda e: ("Builtin", e.kind, e.axis),
        Binary: lambda e: ("Binary", e.type.text, e.op),
        Call: lambda e: ("Call", e.type.text, e.fn),
        Vec: lambda e: ("Vec", e.type.text),
        Splat: lambda e: ("Splat", e.type.text),
        Lane: lambda e: ("Lane", e.type.text, e.index),
        Select: lambda e: ("Select", e.type.text),
        # 1, 1.0 and True are equal, so that it must be said which is meant.
        Const: lambda e: (
            ("Const", e.type.text, float(e.value) if e.type.is_float else int(e.value))
        ),
        Cast: lambda e: ("Cast", e.type.text),
        Load: lambda e: ("Load", e.type.text, _plain(e.buffer), e.scalar),
        Let: lambda s: ("Let", s.ident),
        Var: lambda s: ("Var", s.ident),
        Store: lambda s: ("Store", _plain(s.buffer), s.scalar),
        Assign: lambda s: ("Assign",),
    }
)


def _getter(kind: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """For all other classes: look at the class once."""
    names = [
        field.name
        for field in attrs.fields(kind)
        if str(field.type) not in _ELSEWHERE and (str(field.type) != "Name" or kind is For)
    ]

    def found(node: Any) -> tuple[Any, ...]:
        return (kind.__name__, *[_plain(getattr(node, name)) for name in names])

    _getters[kind] = found
    return found


def _plain(value: Any) -> Any:
    """A field as numbers and texts."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is Type:
        return value.text
    if kind is Buffer:
        return value.name, value.scalar._value_, value.width, value.access
    if kind is Shared:
        return value.name, value.type.text, value.count
    if kind is Name:
        return value.ident, value.type.text, value.mutable
    return repr(value)


_AS_THEY_ARE = frozenset({str, int, float, bool})
