"""A kernel's content as one short string, the same in every process and on every machine."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from tflgpu.kernel.tree import Buffer, Const, Expr, For, Kernel, Name, Shared, Stmt
from tflgpu.kernel.types import Type
from tflgpu.kernel.walk import blocks, children, operands, postorder

#: Part of every fingerprint: raise it when a tree comes to mean something else.
LANGUAGE_VERSION = 2


def fingerprint(kernel: Kernel) -> str:
    """32 hexadecimal digits that two kernels share only if they are the same tree.

    Names count, so kernels with one fingerprint print the same. Whether two equal
    sub-expressions are one object or two does not. Time is linear in the size of the kernel.
    """
    return _Digest().kernel(kernel)


class _Digest:
    """Feeds a hash; an expression is fed once and is a number from then on."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._numbers: dict[str, int] = {}  # by content
        self._known: dict[int, int] = {}  # by object, within one kernel, which keeps it alive

    def kernel(self, kernel: Kernel) -> str:
        self._feed(f"v{LANGUAGE_VERSION} {kernel.name!r} {kernel.workgroup}")
        for parameter in (*kernel.buffers, *kernel.shared):
            self._feed(_plain(parameter))
        self._block(kernel.body)
        return self._hash.hexdigest()

    def _feed(self, text: str) -> None:
        self._hash.update(text.encode())
        self._hash.update(b"\n")

    def _block(self, body: tuple[Stmt, ...]) -> None:
        self._feed("{")
        for stmt in body:
            roots = operands(stmt)
            for expr in postorder(roots):
                self._number(expr)
            numbers = [self._known[id(root)] for root in roots]
            fields = _fields(stmt)
            if isinstance(stmt, For):
                fields.append(_plain(stmt.index))
            self._feed(f"{type(stmt).__name__} {fields} {numbers}")
            for block in blocks(stmt):
                self._block(block)
        self._feed("}")

    def _number(self, expr: Expr) -> None:
        if id(expr) in self._known:
            return
        parts = [self._known[id(part)] for part in children(expr)]
        text = f"{type(expr).__name__} {_fields(expr)} {parts}"
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self._numbers)
            self._feed(text)
        self._known[id(expr)] = found


def _fields(node: Any) -> list[str]:
    """A node's own fields: everything but expressions and blocks."""
    if isinstance(node, Const):
        # Its bytes: 1, 1.0 and True differ by type only, and a NaN is not equal to itself.
        return [str(node.type), node.type.scalar.numpy.type(node.value).tobytes().hex()]
    values: list[Any] = [getattr(node, f.name) for f in attrs.fields(type(node))]
    return [_plain(v) for v in values if not isinstance(v, (Expr, tuple))]


def _plain(value: Any) -> str:
    """A field's text, which holds no address and no set order."""
    if isinstance(value, Type):
        return str(value)
    if isinstance(value, Buffer):
        return f"{value.name!r} {value.scalar.value} {value.width} {value.access}"
    if isinstance(value, Shared):
        return f"{value.name!r} {value.type} {value.count}"
    if isinstance(value, Name):
        return f"{value.ident!r} {value.type} {value.mutable}"
    return repr(value)
