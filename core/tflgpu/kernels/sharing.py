"""Dividing the moves of a stage among the invocations of a workgroup."""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr


def items(k: Builder, lane: Expr, count: int, threads: int) -> list[tuple[Expr, Expr | None]]:
    """The items, of ``count``, that an invocation moves, with a condition where not all have
    one."""
    found: list[tuple[Expr, Expr | None]] = []
    for start in range(0, count, threads):
        item = k.let(lane + start, "item")
        if start + threads <= count:
            found.append((item, None))
        else:
            inside = k.let(item < count, "inside")
            found.append((k.let(k.min(item, count - 1), "item"), inside))
    return found


def maybe(k: Builder, condition: Expr | None, action: Callable[[], None]) -> None:
    """Run statements where a condition holds, or always where there is none."""
    if condition is None:
        action()
        return
    with k.if_(condition):
        action()
