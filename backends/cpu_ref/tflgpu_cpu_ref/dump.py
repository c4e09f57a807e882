"""A kernel's tree as indented text, for people. It is read by no compiler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
from tflgpu.language.tree import (
    Assign,
    Binary,
    Builtin,
    Const,
    Expr,
    For,
    If,
    Kernel,
    KernelBuffer,
    Let,
    Load,
    Name,
    SharedArray,
    Stmt,
    Store,
    Var,
)

_MAX_DEPTH = 24  # a tree may share sub-expressions, and text cannot


def dump(kernel: Kernel) -> str:
    """The whole kernel: buffers, shared arrays, statements."""
    lines = [f"kernel {kernel.name} workgroup {kernel.workgroup}"]
    lines += [f"  {b.access} {b.name}: {b.scalar.value}x{b.width}[]" for b in kernel.buffers]
    lines += [f"  shared {s.name}: {s.type}[{s.count}]" for s in kernel.shared]
    lines += _block(kernel.body, 1)
    return "\n".join(lines)


def _block(body: tuple[Stmt, ...], level: int) -> Iterator[str]:
    pad = "  " * level
    for stmt in body:
        if isinstance(stmt, (Let, Var)):
            keyword = type(stmt).__name__.lower()
            yield f"{pad}{keyword} {stmt.ident}: {stmt.value.type} = {_text(stmt.value)}"
        elif isinstance(stmt, Assign):
            yield f"{pad}{stmt.target.ident} = {_text(stmt.value)}"
        elif isinstance(stmt, Store):
            lane = ".scalar" if stmt.scalar else ""
            where = f"{stmt.buffer.name}{lane}[{_text(stmt.index)}]"
            yield f"{pad}{where} = {_text(stmt.value)}"
        elif isinstance(stmt, If):
            yield f"{pad}if {_text(stmt.cond)}"
            yield from _block(stmt.then, level + 1)
            if stmt.orelse:
                yield f"{pad}else"
                yield from _block(stmt.orelse, level + 1)
        elif isinstance(stmt, For):
            span = f"{_text(stmt.start)} to {_text(stmt.stop)} by {stmt.step}"
            yield f"{pad}for {stmt.index.ident} from {span}"
            yield from _block(stmt.body, level + 1)
        else:
            yield pad + _generic(stmt, 0)


def _text(expr: Expr, depth: int = 0) -> str:
    if isinstance(expr, Const):
        return f"{expr.value}" if expr.type.width == 1 else f"{expr.type}({expr.value})"
    if isinstance(expr, Name):
        return expr.ident
    if isinstance(expr, Builtin):
        return f"{expr.kind}.{'xyz'[expr.axis]}"
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(expr, Binary):
        return f"({_text(expr.left, depth + 1)} {expr.op} {_text(expr.right, depth + 1)})"
    if isinstance(expr, Load):
        lane = ".scalar" if expr.scalar else ""
        return f"{expr.buffer.name}{lane}[{_text(expr.index, depth + 1)}]"
    return _generic(expr, depth)


def _generic(node: Any, depth: int) -> str:
    """Any other node: its name, and its fields but the type."""
    fields = [getattr(node, f.name) for f in attrs.fields(type(node)) if f.name != "type"]
    name = type(node).__name__.lower()
    kind = f"<{node.type}>" if isinstance(node, Expr) else ""
    return f"{name}{kind}({', '.join(_field(f, depth + 1) for f in fields)})"


def _field(value: Any, depth: int) -> str:
    if isinstance(value, Expr):
        return _text(value, depth)
    if isinstance(value, tuple):
        return ", ".join(_field(v, depth) for v in value)
    return value.name if isinstance(value, (KernelBuffer, SharedArray)) else str(value)
