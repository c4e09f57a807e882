"""TOPK_V2, in two dispatches: the rank of each element in its row, then the element of each of the
first ``k`` ranks.

An element's rank is how many of its row come before it: larger ones, and equal ones that stand
earlier. NaN comes after all numbers, as on the CPU. No two elements have one rank, so nothing
depends on the order in which invocations run. The work grows with the square of a row's length;
rows longer than `_LONGEST`, and many long ones, stay on the CPU.
"""

from __future__ import annotations

from tflgpu.ir.graph import Node
from tflgpu.kernels.moves import channel_of
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.language.types import I32, Scalar
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import NUMBERS, KernelRule, Site, takes

_LONGEST = 1 << 13
#: Vectors of four elements times the length of their rows.
_MOST_LOOKS = 1 << 28


def _before(k: Builder, a: Expr, a_at: Expr, b: Expr, b_at: Expr) -> Expr:
    """Whether ``a``, which stands at ``a_at``, comes before ``b``; lane by lane."""
    earlier = a_at < b_at
    if not a.type.is_float:
        return (a > b) | (a.eq(b) & earlier)
    a_is, b_is = ~k.is_nan(a), ~k.is_nan(b)
    both = (a > b) | (a.eq(b) & earlier)
    # Of two that are not comparable: the number first, else the one that stands earlier.
    return (a_is & b_is & both) | (a_is & ~b_is) | (~a_is & ~b_is & earlier)


def _topk(low: Lowering) -> None:
    source = low.node.input(0)
    length = source.shape[-1]
    ranks = low.temp(source.shape, Scalar.I32)
    _rank(low, ranks_of=ranks, length=length)
    k = low.kernel("topk_pick")
    values, found = low.read(k, 0), low.read_temp(k, ranks, "ranks")
    out, places = low.write(k, 0), low.write(k, 1)
    with each_vector(low, k, out) as (outer, slice_):
        wanted = k.let(
            k.vec([channel_of(k, slice_, lane, out.channels) for lane in range(4)]), "rank"
        )
        where = k.var(k.const(0, I32.with_width(4)), "where")
        with k.loop(0, length, name="j") as j:
            rank = k.splat(found.load_lane(outer, j), 4)
            k.set(where, k.select(rank.eq(wanted), k.splat(j, 4), where))
        at = k.let(where, "at")
        out.store(outer, slice_, k.vec([values.load_lane(outer, at.lane(n)) for n in range(4)]))
        places.store(outer, slice_, at)


def _rank(low: Lowering, ranks_of: Temp, length: int) -> None:
    k = low.kernel("topk_rank")
    values = low.read(k, 0)
    out = low.write_temp(k, ranks_of, "ranks")
    with each_vector(low, k, out) as (outer, slice_):
        own = k.let(values.load(outer, slice_), "own")
        at = k.let(k.vec([slice_ * 4 + lane for lane in range(4)]), "at")
        rank = k.var(k.const(0, I32.with_width(4)), "rank")
        one, zero = k.const(1, I32.with_width(4)), k.const(0, I32.with_width(4))
        with k.loop(0, length, name="j") as j:
            other = k.let(k.splat(values.load_lane(outer, j), 4), "other")
            before = _before(k, other, k.splat(j, 4), own, at)
            k.set(rank, rank + k.select(before, one, zero))
        out.store(outer, slice_, rank)


def _accepts(node: Node, site: Site) -> str | None:
    source = node.input(0)
    if source.shape[-1] > _LONGEST:
        return f"rows of {source.shape[-1]} elements; kernels rank up to {_LONGEST}"
    if source.elements // 4 * source.shape[-1] > _MOST_LOOKS:
        return f"{source.elements} elements in rows of {source.shape[-1]} are too many for a kernel"
    return takes(NUMBERS, operands=1)(node, site)


RULES = (KernelRule("TOPK_V2", "rank", _topk, _accepts),)
