"""CACHE_UPDATE: a kernel for each of the two caches, which writes old numbers and new ones."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.kernels.moves import ElementSource, IndexMap, accepts_moves, move, position
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.cache_update import COUNT, NAME, START, CacheUpdate, swapped


def _build(low: Lowering) -> None:
    for which in (0, 1):
        move(low, _Cache(low, which).prepare, operand=which, output=which, vector=False)


class _Cache:
    """One of the two."""

    def __init__(self, low: Lowering, which: int) -> None:
        self.low, self.which = low, which
        self.settings: CacheUpdate = low.attrs
        self.shape = low.node.outputs[which].shape
        self.axis, new_axis = self.settings.axes(which)
        self.swap = self.axis != new_axis
        self.tokens = swapped(low.node.input(which).shape, self.swap)[self.axis]

    def prepare(self, k: Builder) -> IndexMap:
        """Where each number of the new cache comes from."""
        low, size = self.low, self.shape[self.axis]
        cache = low.read(k, 3 + self.which)
        count: Expr | None = None
        if self.settings.ring:
            numbers = low.read(k, 2)
            start = numbers.load_flat(k.i32(START))
            first = k.let((start % size + size) % size, "first")
            if self.settings.counted:
                count = k.let(numbers.load_flat(k.i32(COUNT)), "count")
        else:
            start = low.read(k, 5 + self.which).load_lane(0, k.i32(self.axis))
            first = k.let(k.clamp(start, 0, size - self.tokens), "first")

        def where(index: Sequence[Expr]) -> ElementSource:
            token = index[self.axis] - first
            if self.settings.ring:
                token = (token + size) % size
            token = k.let(token, "token")
            inside = [(token >= 0) & (token < self.tokens)]
            if count is not None:
                inside.append(token < count)
            source = list(index)
            source[self.axis] = k.let(k.clamp(token, 0, self.tokens - 1), "from")
            if self.swap:
                source[2], source[3] = source[3], source[2]
            old = cache.load_lane(position(index[:-1], self.shape[:-1]), index[-1])
            return ElementSource(source, inside, old)

        return where


RULES = (KernelRule(NAME, "move", _build, accepts_moves(), pointwise=True),)
