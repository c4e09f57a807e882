"""Dividing the moves of a stage among the invocations of a workgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def each_item(
    k: Builder, lane: Expr, count: int, threads: int
) -> Iterator[tuple[Expr, Expr | None]]:
    """As `items`, in a loop of the kernel where an invocation has several: what is done with one
    may be much code, and code is fetched before it runs."""
    rounds = -(-count // threads)
    if rounds == 1:
        yield from items(k, lane, count, threads)
        return
    with k.loop(0, rounds, name="round", unroll=False) as i:
        item = k.let(lane + i * threads, "item")
        if count % threads == 0:
            yield item, None
        else:
            inside = k.let(item < count, "inside")
            yield k.let(k.min(item, count - 1), "item"), inside


def maybe(k: Builder, condition: Expr | None, action: Callable[[], None]) -> None:
    """Run statements where a condition holds, or always where there is none."""
    if condition is None:
        action()
        return
    with k.if_(condition):
        action()
