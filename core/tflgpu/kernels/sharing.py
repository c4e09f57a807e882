"""Dividing the moves of a stage, and the results, among the invocations of a workgroup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.view import WriteView

#: Whether a result is one, its position and slice, which are there in any case, and the sums.
Result = tuple[Expr, Expr, Expr, Expr]
#: Results that an invocation makes before it stores them.
_TOGETHER = 8


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


def store_results(
    k: Builder,
    out: WriteView,
    listed: Sequence[tuple[Expr, Expr | None]],
    result: Callable[[Expr], Result],
) -> None:
    """Store the results of `items`, some at a time: what is read for them besides, as residuals, is
    loaded at once. Between two stores, or behind a condition, one load would wait for another."""
    for begin in range(0, len(listed), _TOGETHER):
        made = []
        for item, inside in listed[begin : begin + _TOGETHER]:
            valid, row, column, total = result(item)
            valid = k.let(valid if inside is None else valid & inside, "valid")
            made.append((valid, out.made(row, column, total)))
        for valid, store in made:
            with k.if_(valid):
                store()


def maybe(k: Builder, condition: Expr | None, action: Callable[[], None]) -> None:
    """Run statements where a condition holds, or always where there is none."""
    if condition is None:
        action()
        return
    with k.if_(condition):
        action()
